//! The contract of all stores, several processes, and a server that crashes.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::task::JoinSet;
use tower_reprise::store::{
    Claim, Claimed, CrashPolicy, FencingToken, Fingerprint, IdempotencyStore, Ownership,
    PostgresStore, Stored,
    conformance::{self, Backend},
};

use super::{Postgres, address};
use crate::support::{
    crash,
    database::left_out,
    outage,
    postgres::{Own, postgres_bin},
    records::{LEASE, RETENTION, claim, complete, own, reply},
};

#[test]
fn postgres_is_there_or_said_to_be_left_out() {
    let mut missing = Vec::new();
    if address().is_none() {
        missing.push("REPRISE_TEST_POSTGRES is not set");
    }
    if postgres_bin().is_none() {
        missing.push("there is no initdb to make a server with, to start and stop");
    }
    for reason in missing {
        left_out("PostgreSQL", reason);
    }
}

/// The entry point of the other processes of these tests; see `crash`.
#[test]
#[ignore = "is run by other tests"]
fn child() {
    crash::child::<Postgres>();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t_1_t_2_t_3_i_6_the_contract() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    conformance::run(&postgres).await;
    postgres.drop().await;
}

#[tokio::test]
async fn i_27_t_2_the_contract_of_unknown_outcomes() {
    if let Some(postgres) = Postgres::new().await {
        conformance::unknown_outcomes(&postgres).await;
        postgres.drop().await;
    }
}

/// Side by side, since each of them mostly waits for the disk.
#[tokio::test]
async fn t_1_t_2_the_model() {
    let mut plays = JoinSet::new();
    let local = tokio::task::LocalSet::new();
    for seed in 0..12 {
        let play = async move {
            if let Some(postgres) = Postgres::new().await {
                conformance::model(&postgres, seed, 150).await;
                postgres.drop().await;
            }
        };
        plays.spawn_local_on(play, &local);
    }
    local.run_until(plays.join_all()).await;
}

#[tokio::test]
async fn t_2_i_6_two_processes_share_it() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    crash::race::<Postgres>(&format!("{} {}", postgres.url, postgres.schema)).await;
    postgres.drop().await;
}

#[tokio::test]
async fn i_14_i_15_killed_at_any_point() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    crash::killed::<Postgres>(&format!("{} {}", postgres.url, postgres.schema), 20).await;
    postgres.drop().await;
}

#[tokio::test]
async fn i_15_stopped_past_its_lease() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    crash::stopped::<Postgres>(&format!("{} {}", postgres.url, postgres.schema)).await;
    postgres.drop().await;
}

#[tokio::test]
async fn i_21_a_server_that_crashes_loses_nothing() {
    let Some(mut server) = Own::new().await else {
        return;
    };
    let builder = PostgresStore::builder(server.url()).timeout(Duration::from_secs(2));
    let store = builder.connect().await.unwrap();
    outage::survives(&mut server, store).await;
}

/// Owners that take turns, as fast as they can: each has a greater token than the one before, also
/// if its claim had to wait for a row that was released meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i_15_tokens_grow_while_owners_take_turns() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let (store, tokens) = (store.clone(), Arc::clone(&tokens));
        tasks.spawn(async move {
            while tokens.lock().unwrap().len() < 300 {
                if let Claimed::New(lease) = store.claim(claim(1)).await.expect("claim") {
                    // Nobody else can be here until it is released.
                    tokens.lock().unwrap().push(lease.token);
                    let released = store.release(claim(1).key, lease.token).await;
                    assert_eq!(released.expect("release"), Ownership::Held);
                }
            }
        });
    }
    tasks.join_all().await;
    let tokens = std::mem::take(&mut *tokens.lock().unwrap());
    let stale = tokens.windows(2).find(|pair| pair[0] >= pair[1]);
    assert_eq!(stale, None);
    postgres.drop().await;
}

/// Claims of one key among those of others, and completions, all at the same time: each key is
/// executed once, and far fewer statements than transitions are committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t_8_i_6_concurrent_transitions_share_their_commits() {
    const KEYS: u32 = 200;
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let mut tasks = JoinSet::new();
    for n in 0..3 * KEYS {
        let store = store.clone();
        tasks.spawn(async move {
            let claim = claim(u64::from(n % KEYS));
            match store.claim(claim.clone()).await.expect("claim") {
                Claimed::New(lease) => {
                    let reply = reply(&format!("reply {}", n % KEYS));
                    let completed = store.complete(claim.key, lease.token, reply, RETENTION);
                    assert_eq!(completed.await.expect("complete"), Ownership::Held);
                    let stale = FencingToken::new(lease.token.get() - 1);
                    let refused = store.complete(claim.key, stale, Stored::NotRetained, RETENTION);
                    assert_eq!(refused.await.expect("complete"), Ownership::Lost);
                    1
                }
                Claimed::InFlight { .. } | Claimed::Done { .. } => 0,
                other => panic!("{other:?}"),
            }
        });
    }
    let executed: u32 = tasks.join_all().await.iter().sum();
    assert_eq!(executed, KEYS);
    for n in 0..KEYS {
        let found = store.claim(claim(u64::from(n))).await.expect("claim");
        let Claimed::Done { stored, .. } = found else {
            panic!("{found:?}");
        };
        assert_eq!(stored, reply(&format!("reply {n}")));
    }
    let commits = "SELECT count(DISTINCT xmin::text) FROM {schema}.reprise_idempotency";
    let commits = postgres.count(commits).await;
    assert!(
        commits <= i64::from(KEYS / 4),
        "{commits} commits of completions"
    );
    postgres.drop().await;
}

#[tokio::test]
async fn i_15_tokens_grow_when_the_clock_went_back() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    own(&store, claim(1)).await;
    own(&store, claim(2)).await;
    let late = 1_i64 << 52;
    postgres
        .execute(&format!(
            "UPDATE {{schema}}.reprise_idempotency SET token = {late}"
        ))
        .await;
    postgres.pass(LEASE + Duration::from_secs(1)).await;
    assert_eq!(own(&store, claim(1)).await.get(), (1 << 52) + 1);
    postgres.pass(LEASE + RETENTION).await;
    assert_eq!(own(&store, claim(2)).await.get(), (1 << 52) + 1);
    postgres.drop().await;
}

#[tokio::test]
async fn t_3_a_lease_runs_out_on_the_servers_clock() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let short = Claim {
        lease: Duration::from_millis(100),
        ..claim(1)
    };
    let token = own(&store, short).await;
    let next = loop {
        match store.claim(claim(1)).await.unwrap() {
            Claimed::InFlight { remaining, .. } => tokio::time::sleep(remaining).await,
            Claimed::New(lease) => break lease,
            other => panic!("{other:?}"),
        }
    };
    assert!(next.orphaned && next.token > token);
    postgres.drop().await;
}

/// A claim that only reads must not cost a commit.
#[tokio::test]
async fn i_8_a_duplicate_writes_nothing() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    own(&store, claim(1)).await;
    let token = own(&store, claim(2)).await;
    complete(&store, 2, token, reply("paid")).await;
    let versions = "SELECT sum(xmin::text::bigint + xmax::text::bigint)::bigint \
                    FROM {schema}.reprise_idempotency";
    let before = postgres.count(versions).await;
    let other = Claim {
        fingerprint: Fingerprint::new([9; 32]),
        ..claim(2)
    };
    for claim in [claim(1), claim(2), other] {
        assert!(!matches!(
            store.claim(claim).await.unwrap(),
            Claimed::New(_)
        ));
    }
    assert_eq!(postgres.count(versions).await, before);
    postgres.drop().await;
}

/// Also where sessions are set up for something else.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t_2_i_6_whatever_the_defaults_of_a_session() {
    let Some(mut postgres) = Postgres::new().await else {
        return;
    };
    postgres.url += "?options=-c%20default_transaction_isolation%3Dserializable\
                     %20-c%20synchronous_commit%3Doff";
    let store = postgres.store().await;
    for key in 0..5 {
        let mut claims = JoinSet::new();
        for _ in 0..100 {
            let store = store.clone();
            claims.spawn(async move { store.claim(claim(key)).await.expect("claim") });
        }
        let claimed = claims.join_all().await.into_iter();
        let won = claimed.filter(|claimed| matches!(claimed, Claimed::New(_)));
        assert_eq!(won.count(), 1);
    }
    postgres.drop().await;
}

/// I-27: a list reads an index that settled records are not in.
#[tokio::test]
async fn i_27_a_list_reads_its_index_alone() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let unknown = Claim {
        crash_policy: CrashPolicy::Unknown,
        ..claim(1)
    };
    own(&store, unknown).await;
    postgres
        .execute(
            "INSERT INTO {schema}.reprise_idempotency \
               (key, fingerprint, claim_id, token, state, orphaned, lease_until, expires, sweep_after) \
             SELECT sha256(n::text::bytea), fingerprint, claim_id, token, 1, false, 0, expires, \
               sweep_after \
             FROM {schema}.reprise_idempotency, generate_series(1, 20000) n",
        )
        .await;
    postgres
        .execute("ANALYZE {schema}.reprise_idempotency")
        .await;
    postgres.pass(LEASE).await;
    let plan = postgres
        .plan(
            "SELECT key FROM {schema}.reprise_idempotency \
             WHERE watched IS NOT NULL AND (watched, key) > (0, ''::bytea) \
               AND (state = 3 OR state = 0 AND lease_until <= 7) AND expires > 7 \
             ORDER BY watched, key LIMIT 10",
        )
        .await;
    assert!(plan.contains("reprise_idempotency_watched"), "{plan}");
    assert!(
        !plan.contains("Sort") && !plan.contains("Seq Scan"),
        "{plan}"
    );
    let page = store.unknown_outcomes(None, 10).await.unwrap();
    assert_eq!(page.outcomes.len(), 1);
    postgres.drop().await;
}
