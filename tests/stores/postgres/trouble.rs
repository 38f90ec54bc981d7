//! Servers that are gone, locks that are held, sessions that hang.

use std::{
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::runtime::Handle;
use tokio_postgres::types::ToSql;
use tower_reprise::store::{
    Claim, IdempotencyStore, Ownership, PostgresStore, StoreErrorKind,
    journal::{Journal, LeaseRequest, NewEntry, Settlement},
};

use super::{Postgres, client};
use crate::support::{
    database::{eventually, run},
    postgres::Own,
    records::{LEASE, claim, complete, own, reply},
};

/// Locks all records.
fn all_rows(postgres: &Postgres) -> String {
    let schema = &postgres.schema;
    format!("SELECT FROM {schema}.reprise_idempotency FOR UPDATE")
}

/// Counts the sessions that wait for a lock.
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                       AND query LIKE '%{schema}%' AND pid <> pg_backend_pid()";

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    // Bound, and nobody listens.
    let deaf = tokio::net::TcpSocket::new_v4().unwrap();
    deaf.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("postgres://nobody@{}/none", deaf.local_addr().unwrap());
    let error = PostgresStore::connect(url).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(!error.may_have_happened());
    let error = PostgresStore::connect("no address").await.unwrap_err();
    assert!(error.to_string().contains("postgres.url"), "{error}");
    let builder = PostgresStore::builder("postgres://localhost").table("a\"; --");
    let error = builder.connect().await.unwrap_err();
    assert!(error.to_string().contains("postgres.table is"), "{error}");
}

/// Somebody has locked the row, and there is one connection: who wants the row runs out of
/// time, who wants the connection is told that there is none.
#[tokio::test]
async fn waiting_is_bounded_and_says_for_what() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    // The tables are there, so that the time is for the claims alone.
    drop(postgres.store().await);
    let builder = postgres.builder().connections(1);
    let builder = builder.timeout(Duration::from_secs(4));
    let store = builder.connect().await.unwrap();
    let orphan = Claim {
        lease: Duration::ZERO,
        ..claim(1)
    };
    own(&store, orphan).await;
    let mut other = client(&postgres.url).await;
    let transaction = other.transaction().await.unwrap();
    transaction
        .execute(&all_rows(&postgres), &[])
        .await
        .unwrap();

    let first = claim(1);
    let blocked = tokio::spawn({
        let store = store.clone();
        let first = first.clone();
        async move { store.claim(first).await.unwrap_err() }
    });
    eventually("one waits", async || postgres.count(WAITING).await > 0).await;
    let error = store.claim(claim(2)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::PoolExhausted, "{error}");
    assert!(!error.may_have_happened() && !blocked.is_finished());
    let error = blocked.await.unwrap();
    assert_eq!(error.kind(), StoreErrorKind::Timeout, "{error}");

    transaction.rollback().await.unwrap();
    // Whether it happened after all or not, the claim can be repeated.
    own(&store, first).await;
    postgres.drop().await;
}

/// A transaction that a handler leaves open holds up the completion of its own record alone.
#[tokio::test]
async fn a_locked_record_does_not_hold_up_completions_of_others() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let locked = own(&store, claim(1)).await;
    let free = own(&store, claim(2)).await;
    let mut other = client(&postgres.url).await;
    let transaction = other.transaction().await.unwrap();
    let (key, day) = (claim(1).key, Duration::from_secs(24 * 60 * 60));
    let completed = store.complete_in(&transaction, key, locked, reply("paid"), day);
    completed.await.unwrap();

    let blocked = tokio::spawn({
        let store = store.clone();
        async move { complete(&store, 1, locked, reply("paid")).await }
    });
    eventually("one waits", async || postgres.count(WAITING).await > 0).await;
    complete(&store, 2, free, reply("paid")).await;
    assert!(!blocked.is_finished());
    transaction.commit().await.unwrap();
    blocked.await.unwrap();
    postgres.drop().await;
}

/// T-8: a claim that is cancelled while it waits for a lock, as a client that goes away cancels it,
/// holds up neither those that came after it nor those that get its connection.
#[tokio::test]
async fn t_8_a_cancelled_claim_holds_up_nobody() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.builder().connections(2).connect().await.unwrap();
    own(&store, claim(9)).await;
    store.sweep(1).await.unwrap();
    let mut admin = client(&postgres.url).await;
    let transaction = admin.transaction().await.unwrap();
    let insert = format!(
        "INSERT INTO {}.reprise_idempotency \
           (key, fingerprint, claim_id, token, state, orphaned, lease_until, expires, sweep_after) \
         VALUES ($1, '', '', 0, 0, false, 0, 0, 0)",
        postgres.schema
    );
    let key = claim(1).key;
    let parameters: [&(dyn ToSql + Sync); 1] = [&key.as_bytes().as_slice()];
    transaction.execute(&insert, &parameters).await.unwrap();
    let first = tokio::spawn({
        let store = store.clone();
        async move { store.claim(claim(1)).await }
    });
    eventually("one waits", async || postgres.count(WAITING).await > 0).await;
    let second = tokio::spawn({
        let store = store.clone();
        async move { own(&store, claim(2)).await }
    });
    tokio::task::yield_now().await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    second.await.unwrap();
    own(&store, claim(3)).await;
    assert_eq!(postgres.count(WAITING).await, 1, "it still waits");
    transaction.rollback().await.unwrap();
    postgres.drop().await;
}

/// A session that hangs is given up within the timeout; its connection is not used again.
#[tokio::test]
async fn a_session_that_hangs_is_a_timeout_in_doubt() {
    let Some(server) = Own::new().await else {
        return;
    };
    let builder = PostgresStore::builder(server.url()).connections(1);
    let builder = builder.timeout(Duration::from_secs(5));
    let store = builder.connect().await.unwrap();
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    own(&store, claim(1)).await;
    // The first claim begins a sweep, which takes the only connection several times.
    eventually("the sweep is over", async || tasks() <= before).await;
    let admin = client(&server.url()).await;
    let session = "SELECT pid FROM pg_stat_activity WHERE application_name = 'tower-reprise'";
    let pid: i32 = admin.query_one(session, &[]).await.unwrap().get(0);
    run(Command::new("kill").args(["-STOP", &pid.to_string()]));
    let first = claim(2);
    let error = store.claim(first.clone()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout, "{error}");
    assert!(error.may_have_happened(), "{error}");
    let token = own(&store, first).await;
    complete(&store, 2, token, reply("paid")).await;
    run(Command::new("kill").args(["-CONT", &pid.to_string()]));
}

/// Sessions that an administrator ends, idle ones and one in the middle of a claim.
#[tokio::test]
async fn a_lost_connection_is_replaced_and_the_verb_repeated() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let orphan = Claim {
        lease: Duration::ZERO,
        ..claim(1)
    };
    own(&store, orphan).await;
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE application_name = 'tower-reprise' AND query LIKE '%{schema}%'";
    assert!(postgres.count(end).await > 0, "an idle one");
    own(&store, claim(2)).await;

    let mut other = client(&postgres.url).await;
    let transaction = other.transaction().await.unwrap();
    transaction
        .execute(&all_rows(&postgres), &[])
        .await
        .unwrap();
    let blocked = tokio::spawn({
        let store = store.clone();
        async move { own(&store, claim(1)).await }
    });
    let busy = format!("{end} AND wait_event_type = 'Lock'");
    eventually("one is ended", async || postgres.count(&busy).await > 0).await;
    transaction.rollback().await.unwrap();
    let token = blocked.await.unwrap();
    complete(&store, 1, token, reply("paid")).await;
    postgres.drop().await;
}

/// T-2: a session that is ended after its commit, while it waits for a standby. The entry is gone, and the
/// settlement was made.
#[tokio::test]
async fn t_2_a_completion_that_is_kept_for_no_time_is_held_when_its_answer_is_lost() {
    let Some(server) = Own::new().await else {
        return;
    };
    let store = PostgresStore::connect(server.url()).await.unwrap();
    let entry = NewEntry::new("mails", "payload");
    store.enqueue(entry).await.unwrap();
    let request = LeaseRequest::new("mails", "", 1, LEASE);
    let entry = store.lease(request).await.unwrap().remove(0);
    let admin = client(&server.url()).await;
    for setting in [
        "SET synchronous_commit = local",
        "ALTER SYSTEM SET synchronous_standby_names = 'nobody'",
        "SELECT pg_reload_conf()",
    ] {
        admin.execute(setting, &[]).await.unwrap();
    }
    let settling = tokio::spawn({
        let (store, done) = (store.clone(), Settlement::completed("", Duration::ZERO));
        async move { store.settle(entry.id, entry.lease_token, done).await }
    });
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE wait_event = 'SyncRep'";
    let ended = async || admin.query_one(end, &[]).await.unwrap().get::<_, i64>(0) > 0;
    eventually("one is ended", ended).await;
    assert_eq!(settling.await.unwrap().unwrap(), Ownership::Held);
}

/// T-10: a password that changes while the store is in use, and a provider that fails for a while.
#[tokio::test]
async fn t_10_the_password_is_asked_for_with_each_connection() {
    let Some(server) = Own::new().await else {
        return;
    };
    let admin = client(&server.url()).await;
    let rules = server.folder.path().join("data/pg_hba.conf");
    let others = std::fs::read_to_string(&rules).unwrap();
    let rule = "host all shop 127.0.0.1/32 scram-sha-256\n";
    std::fs::write(&rules, format!("{rule}{others}")).unwrap();
    let create = "CREATE ROLE shop LOGIN PASSWORD 'one'; \
                  GRANT CREATE ON SCHEMA public TO shop; SELECT pg_reload_conf()";
    admin.batch_execute(create).await.unwrap();

    let now: Arc<Mutex<Result<&str, &str>>> = Arc::new(Mutex::new(Ok("one")));
    let provider = {
        let now = Arc::clone(&now);
        move || {
            let now = *now.lock().unwrap();
            async move { now.map(str::to_owned).map_err(Into::into) }
        }
    };
    let url = server.url().replace("reprise@", "shop:wrong@");
    let error = PostgresStore::connect(&url).await.unwrap_err();
    assert!(!error.is_transient(), "{error}");
    let builder = PostgresStore::builder(&url).password(provider);
    let store = builder.connections(1).connect().await.unwrap();
    own(&store, claim(1)).await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'shop'";
    *now.lock().unwrap() = Ok("two");
    admin
        .batch_execute("ALTER ROLE shop PASSWORD 'two'")
        .await
        .unwrap();
    own(&store, claim(2)).await;
    for (key, answer) in [(3, Ok("two")), (4, Err("no secrets today")), (5, Ok("two"))] {
        *now.lock().unwrap() = answer;
        admin.batch_execute(end).await.unwrap();
        own(&store, claim(key)).await;
    }
}
