//! Records past their time are removed.

use std::time::Duration;

use tower_reprise::store::conformance::Backend;

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
               (key, fingerprint, claim_id, token, state, orphaned, lease_until, expires) \
             SELECT n::text::bytea, '', '', n, 0, false, n, n FROM generate_series(1, 2500) n",
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
    // What is locked stays, and the live one.
    eventually("swept", async || postgres.count(ROWS).await == 2).await;
    transaction.rollback().await.unwrap();
    postgres.drop().await;
}
