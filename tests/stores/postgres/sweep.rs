//! Records past their time are removed.

use std::time::Duration;

use tower_reprise::store::{IdempotencyStore, Ownership, conformance::Backend};

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
    let updates = "SELECT n_tup_upd - n_tup_hot_upd FROM pg_stat_user_tables \
                   WHERE schemaname = '{schema}' AND relname = 'reprise_idempotency' \
                   AND n_tup_upd = 200";
    let flush = "SELECT 1::bigint FROM pg_stat_clear_snapshot()";
    let mut cold = None;
    eventually("the server has counted", async || {
        postgres.count(flush).await;
        let sql = updates.replace("{schema}", &postgres.schema);
        let rows = postgres.admin.query(&sql, &[]).await.unwrap();
        cold = rows.first().map(|row| row.get::<_, i64>(0));
        cold.is_some()
    })
    .await;
    assert!(cold.is_some_and(|cold| cold <= 10), "{cold:?} of 200");
    postgres.drop().await;
}
