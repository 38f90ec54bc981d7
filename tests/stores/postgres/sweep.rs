//! Records past their time are removed.

use std::time::Duration;

use tokio::task::JoinSet;
use tower_reprise::store::{
    Claim, Claimed, IdempotencyStore, Ownership, Resolution, Resolved, conformance::Backend,
};

use super::{Postgres, client};
use crate::support::{
    database::eventually,
    records::{LEASE, RETENTION, claim, complete, own, reply},
};

const ROWS: &str = "SELECT count(*) FROM {schema}.reprise_idempotency";

#[tokio::test]
async fn i_11_what_is_past_its_time_is_removed_in_steps() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    for key in 0..10 {
        own(&store, claim(key)).await;
    }
    postgres
        .pass(LEASE + RETENTION + Duration::from_secs(1))
        .await;
    let token = own(&store, claim(20)).await;
    assert_eq!(store.sweep(100).await.unwrap(), 0, "too early");
    let minute = Duration::from_secs(60);
    postgres.pass(minute).await;
    assert_eq!(store.sweep(7).await.unwrap(), 7);
    assert_eq!(store.sweep(7).await.unwrap(), 3);
    assert_eq!(store.sweep(7).await.unwrap(), 0);
    assert_eq!(postgres.count(ROWS).await, 1);
    complete(&store, 20, token, reply("a live one")).await;
    postgres.drop().await;
}

/// More than one step's worth, while somebody has one of the rows.
#[tokio::test]
async fn i_11_a_store_in_use_sweeps_itself() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    drop(postgres.store().await);
    let filled = postgres
        .execute(
            "INSERT INTO {schema}.reprise_idempotency \
               (key, fingerprint, claim_id, token, state, orphaned, lease_until, expires, sweep_after) \
             SELECT n::text::bytea, '', '', n, 0, false, n, n, n FROM generate_series(1, 2500) n",
        )
        .await;
    assert_eq!(filled, 2500);
    let mut other = client(&postgres.url).await;
    let transaction = other.transaction().await.unwrap();
    let lock = format!(
        "SELECT FROM {}.reprise_idempotency WHERE token = 5 FOR UPDATE",
        postgres.schema
    );
    transaction.execute(&lock, &[]).await.unwrap();
    let store = postgres.store().await;
    own(&store, claim(1)).await;
    // The locked row stays, and the live one.
    eventually("swept", async || postgres.count(ROWS).await == 2).await;
    transaction.rollback().await.unwrap();
    postgres.drop().await;
}

/// T-8: of many processes one sweeps at a time.
#[tokio::test]
async fn t_8_a_store_does_not_sweep_beside_another() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    own(&store, claim(1)).await;
    has_swept(&postgres).await;
    postgres.pass(LEASE + RETENTION + LEASE * 3).await;
    let name = format!(
        r#"'tower-reprise sweep "{}"."reprise_idempotency"'"#,
        postgres.schema
    );
    let lock = |verb: &str| format!("SELECT 1::bigint FROM {verb}(hashtextextended({name}, 0))");
    postgres.count(&lock("pg_advisory_lock")).await;
    let other = postgres.store().await;
    own(&other, claim(2)).await;
    eventually("it has swept", async || postgres.count(SWEPT).await > 1).await;
    assert_eq!(postgres.count(ROWS).await, 2, "another one is at it");
    assert_eq!(other.sweep(100).await.unwrap(), 1, "as it was told to");
    postgres.count(&lock("pg_advisory_unlock")).await;
    postgres.drop().await;
}

/// I-27: the response to a resolution was lost, and the verb is repeated.
#[tokio::test]
async fn i_27_a_key_that_was_set_free_is_found_so_by_a_repeat() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let orphan = |key| Claim {
        lease: Duration::ZERO,
        ..claim(key)
    };
    let free = async |key, token| {
        let resolved = store.resolve(claim(key).key, token, Resolution::NoEffect);
        resolved.await.unwrap()
    };
    let token = own(&store, orphan(1)).await;
    assert_eq!(free(1, token).await, Resolved::Made);
    assert_eq!(free(1, token).await, Resolved::Made, "a repeat");
    own(&store, claim(1)).await;
    assert_eq!(free(1, token).await, Resolved::Conflict, "taken since");
    let token = own(&store, orphan(2)).await;
    let released = store.release(claim(2).key, token).await.unwrap();
    assert_eq!(released, Ownership::Held);
    assert_eq!(free(2, token).await, Resolved::Conflict, "by its owner");
    postgres.drop().await;
}

/// Counts the connections whose last statement was the last one of a sweep.
const SWEPT: &str = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle' \
                     AND query LIKE 'WITH summed AS (%\"{schema}\".%'";

/// Waits for the end of the sweep that the first use of a store begins.
async fn has_swept(postgres: &Postgres) {
    eventually("it has swept", async || postgres.count(SWEPT).await == 1).await;
}

/// I-11: a reply goes with its record, when that is swept and when its key is used again.
#[tokio::test]
async fn i_11_a_reply_goes_with_its_record() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let token = own(&store, claim(0)).await;
    has_swept(&postgres).await;
    complete(&store, 0, token, reply("paid")).await;
    for key in 1..3 {
        let token = own(&store, claim(key)).await;
        complete(&store, key, token, reply("paid")).await;
    }
    let replies = "SELECT count(*) FROM {schema}.reprise_idempotency_reply";
    assert_eq!(postgres.count(replies).await, 3);
    postgres.pass(RETENTION + Duration::from_secs(61)).await;
    let token = own(&store, claim(0)).await;
    assert_eq!(postgres.count(replies).await, 2, "its key is used again");
    complete(&store, 0, token, reply("paid")).await;
    assert_eq!(store.sweep(100).await.unwrap(), 2);
    assert_eq!(postgres.count(replies).await, 1, "of the live one");
    let found = store.claim(claim(0)).await.unwrap();
    assert_eq!(found, Claimed::done(reply("paid")));
    postgres.drop().await;
}

/// Returns how many updates of records needed a new place in the indexes, once the server has counted
/// so many.
async fn cold_updates(postgres: &Postgres, updates: u32) -> i64 {
    let cold = format!(
        "SELECT n_tup_upd - n_tup_hot_upd FROM pg_stat_user_tables \
         WHERE schemaname = '{}' AND relname = 'reprise_idempotency' AND n_tup_upd = {updates}",
        postgres.schema
    );
    let flush = "SELECT 1::bigint FROM pg_stat_clear_snapshot()";
    let mut counted = None;
    eventually("the server has counted", async || {
        postgres.count(flush).await;
        let rows = postgres.admin.query(&cold, &[]).await.unwrap();
        counted = rows.first().map(|row| row.get(0));
        counted.is_some()
    })
    .await;
    counted.unwrap()
}

/// T-9: what runs needs no new page and no new place in an index, which a full disk would not have.
#[tokio::test]
async fn t_9_renewals_and_completions_stay_on_their_page() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    for key in 0..100 {
        let token = own(&store, claim(key)).await;
        let renewed = store.renew(claim(key).key, token, LEASE, RETENTION).await;
        assert_eq!(renewed.unwrap(), Ownership::Held);
        complete(&store, key, token, reply("paid")).await;
    }
    let cold = cold_updates(&postgres, 200).await;
    assert!(cold <= 10, "{cold} of 200");
    postgres.drop().await;
}

/// T-8: also with replies of 1 KiB, of many requests at once, whose records are on the same pages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t_8_completions_of_large_replies_stay_on_their_page() {
    const KEYS: u32 = 1000;
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let mut tasks = JoinSet::new();
    for key in 0..KEYS.into() {
        let store = store.clone();
        tasks.spawn(async move {
            let token = own(&store, claim(key)).await;
            complete(&store, key, token, reply(&"paid".repeat(256))).await;
        });
    }
    tasks.join_all().await;
    let cold = cold_updates(&postgres, KEYS).await;
    assert!(cold <= i64::from(KEYS / 20), "{cold} of {KEYS}");
    postgres.drop().await;
}
