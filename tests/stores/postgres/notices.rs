//! T-8: workers of other processes are told what was queued.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Notify, time::timeout};
use tower_reprise::store::{
    Ownership, PostgresStore,
    journal::{EntryCommand, EntryId, Journal, LeaseRequest, NewEntry, Settlement},
};

use super::Postgres;
use crate::support::database::eventually;

/// Far more than a notice takes.
const SOON: Duration = Duration::from_secs(20);
/// Far more than a notice takes, of one that is not to come.
const A_WHILE: Duration = Duration::from_millis(300);
const MINUTE: Duration = Duration::from_secs(60);

async fn is_woken(wake: &Notify) -> bool {
    timeout(SOON, wake.notified()).await.is_ok()
}

async fn stays_asleep(wake: &Notify) -> bool {
    timeout(A_WHILE, wake.notified()).await.is_err()
}

async fn put(store: &PostgresStore, queue: &'static str) -> EntryId {
    let new = NewEntry::new(queue, "payload");
    let id = new.id;
    drop(store.enqueue(new).await.unwrap());
    id
}

/// Watches a queue, and returns once the connection listens.
async fn watch(store: &PostgresStore, queue: &str) -> Arc<Notify> {
    let wake = Arc::new(Notify::new());
    store.watch(queue, &wake);
    assert!(is_woken(&wake).await, "of what was queued before");
    wake
}

#[tokio::test]
async fn t_8_what_is_queued_wakes_those_that_watch_its_queue() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let (here, there) = (postgres.store().await, postgres.store().await);
    let wake = watch(&there, "mails").await;
    let id = put(&here, "mails").await;
    assert!(is_woken(&wake).await);
    let many = vec![NewEntry::new("mails", ""), NewEntry::new("mails", "")];
    here.enqueue_many(many).await.unwrap();
    assert!(is_woken(&wake).await);
    here.command(id, EntryCommand::Trigger).await.unwrap();
    assert!(is_woken(&wake).await);
    // Entries that a settlement queues along with it.
    put(&here, "orders").await;
    let request = LeaseRequest::new("orders", "", 1, MINUTE);
    let leased = here.lease(request).await.unwrap().pop().unwrap();
    let mut done = Settlement::completed("", MINUTE);
    done.outbox.push(NewEntry::new("mails", "done"));
    let settled = here.settle(leased.id, leased.lease_token, done);
    assert_eq!(settled.await.unwrap(), Ownership::Held);
    assert!(is_woken(&wake).await);

    put(&here, "others").await;
    let later = NewEntry {
        delay: MINUTE,
        ..NewEntry::new("mails", "")
    };
    here.enqueue(later).await.unwrap();
    assert!(stays_asleep(&wake).await, "of another queue, and not due");
    postgres.drop().await;
}

#[tokio::test]
async fn t_8_a_lost_connection_is_replaced_and_misses_nothing() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let here = postgres.store().await;
    let name = &postgres.schema;
    let separator = if postgres.url.contains('?') { '&' } else { '?' };
    let url = format!("{}{separator}application_name={name}", postgres.url);
    let there = PostgresStore::builder(url).schema(&postgres.schema);
    let there = there.connect().await.unwrap();
    let wake = watch(&there, "mails").await;
    let listening = format!(
        "FROM pg_stat_activity WHERE application_name = '{name}' AND query LIKE 'LISTEN %'"
    );
    let connections = format!("SELECT count(*) {listening}");
    assert_eq!(postgres.count(&connections).await, 1);
    let end = format!("SELECT count(pg_terminate_backend(pid)) {listening}");
    assert_eq!(postgres.count(&end).await, 1);
    put(&here, "mails").await;
    assert!(is_woken(&wake).await);
    let once_more = async || postgres.count(&connections).await == 1;
    eventually("it listens again", once_more).await;
    let _ = stays_asleep(&wake).await;
    put(&here, "mails").await;
    assert!(is_woken(&wake).await);
    drop(there);
    let closed = async || postgres.count(&connections).await == 0;
    eventually("the connection is closed", closed).await;
    postgres.drop().await;
}

#[cfg(feature = "delivery")]
#[tokio::test]
async fn t_8_a_worker_of_another_process_starts_at_once() {
    use tower_reprise::{
        delivery::worker::{Handler, WorkerBuilder},
        store::journal::Entry,
    };

    struct Tells(Arc<Notify>);

    impl Handler for Tells {
        async fn handle(&self, _: Entry) -> Settlement {
            self.0.notify_one();
            Settlement::completed("", MINUTE)
        }
    }

    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let (here, there) = (postgres.store().await, postgres.store().await);
    let started = Arc::new(Notify::new());
    let worker = WorkerBuilder::new(there.clone(), "mails", Tells(Arc::clone(&started)));
    // It would not find the entry by itself in time.
    let worker = worker.poll(MINUTE).start().unwrap();
    drop(watch(&there, "mails").await);
    put(&here, "mails").await;
    assert!(is_woken(&started).await);
    worker.shutdown(SOON).await;
    postgres.drop().await;
}
