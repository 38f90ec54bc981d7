//! T-8: the end that payloads have in common is stored once, and goes with the last entry that needs it.

use std::time::Duration;

use tokio::task::JoinSet;
use tower_reprise::store::journal::{
    Enqueued, Entry, Journal, LeaseRequest, NewEntry, Settlement, SharedPayload,
};
use tower_reprise::store::{Ownership, PostgresStore, StoreErrorKind};

use super::{Postgres, client};
use crate::support::records::LEASE;

const ENDS: &str = "SELECT count(*) FROM {schema}.reprise_idempotency_shared";
const NEEDED: &str = "SELECT coalesce(sum(entries), 0)::bigint \
     - (SELECT count(*) FROM {schema}.reprise_idempotency_released) \
     FROM {schema}.reprise_idempotency_shared";
const RELEASED: &str = "SELECT count(*) FROM {schema}.reprise_idempotency_released";
const ENTRIES: &str = "SELECT count(*) FROM {schema}.reprise_idempotency_journal \
     WHERE shared IS NOT NULL";

fn new(shared: &SharedPayload) -> NewEntry {
    NewEntry::new("mails", "own ").ending_in(shared)
}

async fn lease(store: &PostgresStore, limit: u32) -> Vec<Entry> {
    let request = LeaseRequest::new("mails", "", limit, LEASE);
    store.lease(request).await.unwrap()
}

async fn complete(store: &PostgresStore, entry: &Entry) {
    complete_for(store, entry, Duration::ZERO).await;
}

async fn complete_for(store: &PostgresStore, entry: &Entry, keep: Duration) {
    let done = Settlement::completed("", keep);
    let settled = store.settle(entry.id, entry.lease_token, done).await;
    assert_eq!(settled.unwrap(), Ownership::Held);
}

#[tokio::test]
async fn t_8_a_shared_end_is_stored_once_and_goes_with_the_last_entry() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let shared = SharedPayload::new(vec![b's'; 16 << 10]);
    let entries: Vec<_> = (0..1500).map(|_| new(&shared)).collect();
    let again = entries.clone();
    store.enqueue_many(entries).await.unwrap();
    // Neither a repeat nor a call that comes alone stores it again.
    store.enqueue_many(again).await.unwrap();
    store.enqueue(new(&shared)).await.unwrap();
    assert_eq!(postgres.count(ENDS).await, 1);
    assert_eq!(postgres.count(NEEDED).await, 1501);
    let bytes =
        "SELECT sum(pg_column_size(j.*))::bigint FROM {schema}.reprise_idempotency_journal j";
    assert!(postgres.count(bytes).await < 1501 * 512);

    let leased = lease(&store, 2000).await;
    assert_eq!(leased.len(), 1501);
    for entry in &leased {
        assert_eq!(entry.payload.len(), 4 + (16 << 10));
    }
    let (last, others) = leased.split_last().unwrap();
    let mut settling = JoinSet::new();
    for (n, entry) in (0..).zip(others.iter().cloned()) {
        let (store, keep) = (store.clone(), LEASE * (n % 2));
        settling.spawn(async move { complete_for(&store, &entry, keep).await });
    }
    settling.join_all().await;
    assert_eq!(
        postgres.count(NEEDED).await,
        1,
        "what is done needs no payload"
    );
    while store.sweep(1000).await.unwrap() > 0 {}
    assert_eq!(postgres.count(ENDS).await, 1);
    assert_eq!(postgres.count(NEEDED).await, 1);
    let found = store.find(last.id).await.unwrap().unwrap();
    assert_eq!(found.payload, last.payload);
    complete(&store, last).await;
    while store.sweep(1000).await.unwrap() > 0 {}
    assert_eq!(postgres.count(ENDS).await, 0);
    assert_eq!(postgres.count(RELEASED).await, 0);
    postgres.drop().await;
}

/// T-8: a sweep takes all entries off the number, however many there are.
#[tokio::test]
async fn t_8_a_sweep_keeps_up_with_what_needs_no_end() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    store
        .enqueue(new(&SharedPayload::new("end")))
        .await
        .unwrap();
    for many in [
        "UPDATE {schema}.reprise_idempotency_shared SET entries = entries + 25000",
        "INSERT INTO {schema}.reprise_idempotency_released \
         SELECT id FROM {schema}.reprise_idempotency_shared, generate_series(1, 25000)",
    ] {
        postgres.execute(many).await;
    }
    assert_eq!(postgres.count(NEEDED).await, 1);
    store.sweep(1000).await.unwrap();
    assert_eq!(postgres.count(RELEASED).await, 0);
    assert_eq!(postgres.count(NEEDED).await, 1);
    postgres.drop().await;
}

/// Entries come and go all the time; each that is leased is whole, and none is counted twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t_8_an_end_that_is_needed_again_while_it_goes_is_there() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let shared = [vec![b'a'; 3000], vec![b'b'; 300]].map(SharedPayload::new);
    let mut tasks = JoinSet::new();
    for task in 0..4 {
        let (store, shared) = (postgres.store().await, shared.clone());
        tasks.spawn(async move {
            for round in 0..60 {
                let entries = (0..2).map(|n| new(&shared[(n + task) % 2])).collect();
                for enqueued in store.enqueue_many(entries).await.unwrap() {
                    assert!(matches!(enqueued, Enqueued::New(_)));
                }
                for entry in lease(&store, 3).await {
                    assert!([3004, 304].contains(&entry.payload.len()));
                    complete(&store, &entry).await;
                }
                if round % 2 == task % 2 {
                    store.sweep(100).await.unwrap();
                }
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(postgres.count(NEEDED).await, postgres.count(ENTRIES).await);
    let store = postgres.store().await;
    for entry in lease(&store, 1000).await {
        complete(&store, &entry).await;
    }
    while store.sweep(1000).await.unwrap() > 0 {}
    assert_eq!(postgres.count(ENDS).await, 0);
    postgres.drop().await;
}

/// T-8: a transaction of the user's that is open holds up no other entry with the end.
#[tokio::test]
async fn t_8_an_open_transaction_locks_no_end() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let shared = SharedPayload::new("end");
    store.enqueue(new(&shared)).await.unwrap();
    let mut client = client(&postgres.url).await;
    let transaction = client.transaction().await.unwrap();
    store.enqueue_in(&transaction, new(&shared)).await.unwrap();
    store.enqueue(new(&shared)).await.unwrap();
    transaction.commit().await.unwrap();
    let leased = lease(&store, 9).await;
    let whole = |entry: &Entry| entry.payload == "own end";
    assert!(leased.len() == 3 && leased.iter().all(whole));
    postgres.drop().await;
}

/// T-5: the release before knows of no end. It takes no part for the whole.
#[tokio::test]
async fn t_5_an_entry_without_its_end_is_not_read() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let entry = new(&SharedPayload::new("end"));
    let id = entry.id;
    store.enqueue(entry).await.unwrap();
    let payloads = "SELECT count(payload) FROM {schema}.reprise_idempotency_journal";
    assert_eq!(postgres.count(payloads).await, 0);
    postgres
        .execute("DELETE FROM {schema}.reprise_idempotency_shared")
        .await;
    let error = store.find(id).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    postgres.drop().await;
}
