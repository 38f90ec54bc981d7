//! Consumers of events: I-24.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::Semaphore;
use tower::{Layer, Service, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_reprise::{
    error::BoxError,
    server::idempotency::events::{Consumed, EventDedupLayer, NotConsumed},
    store::{CrashPolicy, IdempotencyStore, MemoryStore, StoreErrorKind},
};

use crate::setup::{DAY, Fault, Flaky, LEASE, SECOND, Verb, settle};

#[derive(Debug, Clone)]
struct Event {
    id: Option<&'static str>,
    /// The consumer's reaction to it.
    then: Then,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Succeed,
    Fail,
    Panic,
}

fn event(id: &'static str) -> Event {
    then(id, Then::Succeed)
}

fn then(id: &'static str, then: Then) -> Event {
    Event { id: Some(id), then }
}

type Consumer = BoxCloneSyncService<Event, Consumed<usize>, BoxError>;

#[derive(Clone)]
struct Runs {
    count: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
}

impl Runs {
    fn new(free: usize) -> Self {
        Self {
            count: Arc::default(),
            gate: Arc::new(Semaphore::new(free)),
        }
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    fn consumer<St: IdempotencyStore>(
        &self,
        store: St,
        name: &'static str,
        crash_policy: CrashPolicy,
    ) -> Consumer {
        let runs = self.clone();
        let inner = service_fn(move |event: Event| {
            let runs = runs.clone();
            async move {
                let run = runs.count.fetch_add(1, Ordering::SeqCst) + 1;
                runs.gate.acquire().await.unwrap().forget();
                match event.then {
                    Then::Succeed => Ok(run),
                    Then::Fail => Err(BoxError::from("database down")),
                    Then::Panic => panic!("on purpose"),
                }
            }
        });
        let layer = EventDedupLayer::builder(store, name)
            .id(|event: &Event| event.id)
            .crash_policy(crash_policy)
            .build()
            .unwrap();
        BoxCloneSyncService::new(layer.layer(inner))
    }
}

async fn deliver(consumer: &Consumer, event: Event) -> Result<Consumed<usize>, BoxError> {
    let mut consumer = consumer.clone();
    consumer.ready().await?.call(event).await
}

fn why(result: Result<Consumed<usize>, BoxError>) -> NotConsumed {
    *result.unwrap_err().downcast::<NotConsumed>().unwrap()
}

#[tokio::test(start_paused = true)]
async fn i_24_duplicates_are_dropped_for_seven_days() {
    let runs = Runs::new(99);
    let consumer = runs.consumer(MemoryStore::new(), "ledger", CrashPolicy::Reexecute);
    let processed = deliver(&consumer, event("e1")).await.unwrap();
    assert_eq!(processed, Consumed::Processed(1));
    for _ in 0..7 {
        let duplicate = deliver(&consumer, event("e1")).await.unwrap();
        assert_eq!(duplicate, Consumed::Duplicate);
        tokio::time::advance(DAY - SECOND).await;
    }
    let duplicate = deliver(&consumer, event("e1")).await.unwrap();
    assert_eq!(duplicate, Consumed::Duplicate);
    let other = deliver(&consumer, event("e2")).await.unwrap();
    assert_eq!(other, Consumed::Processed(2));
    tokio::time::advance(8 * SECOND).await;
    let late = deliver(&consumer, event("e1")).await.unwrap();
    assert_eq!(late, Consumed::Processed(3));
}

#[tokio::test(start_paused = true)]
async fn i_24_each_consumer_gets_each_event() {
    let (store, runs) = (MemoryStore::new(), Runs::new(99));
    let ledger = runs.consumer(store.clone(), "ledger", CrashPolicy::Reexecute);
    let mails = runs.consumer(store, "mails", CrashPolicy::Reexecute);
    let first = deliver(&ledger, event("e1")).await.unwrap();
    let second = deliver(&mails, event("e1")).await.unwrap();
    assert_eq!(
        (first, second),
        (Consumed::Processed(1), Consumed::Processed(2))
    );
}

#[tokio::test(start_paused = true)]
async fn i_24_what_failed_is_processed_again() {
    let runs = Runs::new(99);
    let consumer = runs.consumer(MemoryStore::new(), "ledger", CrashPolicy::Unknown);
    let failed = deliver(&consumer, then("e1", Then::Fail)).await;
    assert_eq!(failed.unwrap_err().to_string(), "database down");
    let processed = deliver(&consumer, event("e1")).await.unwrap();
    assert_eq!(processed, Consumed::Processed(2));
}

#[tokio::test(start_paused = true)]
async fn i_24_in_flight_is_not_acknowledged() {
    let runs = Runs::new(0);
    let consumer = runs.consumer(MemoryStore::new(), "ledger", CrashPolicy::Reexecute);
    let mut deliveries = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let consumer = consumer.clone();
        deliveries.spawn(async move { deliver(&consumer, event("e1")).await });
    }
    settle().await;
    // Longer than the lease, which is renewed.
    tokio::time::sleep(5 * LEASE).await;
    let busy = why(deliver(&consumer, event("e1")).await);
    assert!(
        matches!(busy, NotConsumed::InFlight(wait) if wait <= LEASE),
        "{busy}"
    );
    runs.gate.add_permits(1);
    let results = deliveries.join_all().await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn i_24_i_14_a_crash_is_an_orphan() {
    for crash_policy in [CrashPolicy::Reexecute, CrashPolicy::Unknown] {
        let runs = Runs::new(99);
        let consumer = runs.consumer(MemoryStore::new(), "ledger", crash_policy);
        let crashed = why(deliver(&consumer, then("e1", Then::Panic)).await);
        assert!(matches!(crashed, NotConsumed::Crashed));
        let busy = why(deliver(&consumer, event("e1")).await);
        assert!(matches!(busy, NotConsumed::InFlight(_)));
        tokio::time::advance(LEASE + SECOND).await;
        let again = deliver(&consumer, event("e1")).await;
        match crash_policy {
            CrashPolicy::Reexecute => assert_eq!(again.unwrap(), Consumed::Processed(2)),
            CrashPolicy::Unknown => assert!(matches!(why(again), NotConsumed::OutcomeUnknown)),
        }
    }
}

/// A consumer that is stopped does not leave an event half processed.
#[tokio::test(start_paused = true)]
async fn i_24_i_16_who_delivers_may_go_away() {
    let runs = Runs::new(0);
    let consumer = runs.consumer(MemoryStore::new(), "ledger", CrashPolicy::Unknown);
    let delivery = tokio::spawn({
        let consumer = consumer.clone();
        async move { deliver(&consumer, event("e1")).await }
    });
    settle().await;
    delivery.abort();
    settle().await;
    runs.gate.add_permits(1);
    settle().await;
    let duplicate = deliver(&consumer, event("e1")).await.unwrap();
    assert_eq!(duplicate, Consumed::Duplicate);
}

#[tokio::test(start_paused = true)]
async fn i_24_i_21_a_store_that_is_down() {
    let (store, runs) = (Flaky::default(), Runs::new(99));
    let consumer = runs.consumer(store.clone(), "ledger", CrashPolicy::Reexecute);
    store.fail(Verb::Claim, Fault::Error(StoreErrorKind::Unavailable), 2);
    let NotConsumed::Store(error) = why(deliver(&consumer, event("e1")).await) else {
        panic!("another error");
    };
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert_eq!(runs.count(), 0);
    assert!(deliver(&consumer, event("e1")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn i_24_an_event_without_an_id() {
    let runs = Runs::new(99);
    let consumer = runs.consumer(MemoryStore::new(), "ledger", CrashPolicy::Reexecute);
    let nameless = Event {
        id: None,
        then: Then::Succeed,
    };
    let refused = why(deliver(&consumer, nameless).await);
    assert!(matches!(refused, NotConsumed::NoId));
    assert_eq!(runs.count(), 0);
}

#[test]
fn i_24_no_less_than_seven_days() {
    let layer = |window: Duration| {
        EventDedupLayer::builder(MemoryStore::new(), "ledger")
            .crash_policy(CrashPolicy::Reexecute)
            .id(|event: &Event| event.id)
            .window(window)
            .build()
    };
    assert!(layer(7 * DAY).is_ok());
    assert_eq!(
        layer(7 * DAY - SECOND).unwrap_err().to_string(),
        "events.window is 604799s, allowed: 7 days (R-6) to 365 days"
    );
}

/// I-24: a consumer that answers with a failed response did not process its event.
#[tokio::test(start_paused = true)]
async fn i_24_a_response_that_says_that_its_event_failed_is_not_remembered() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let layer = EventDedupLayer::builder(MemoryStore::new(), "ledger")
        .id(|id: &&'static str| Some(*id))
        .crash_policy(CrashPolicy::Reexecute)
        .build()
        .unwrap();
    let consumer = layer.layer(service_fn(move |_: &'static str| {
        let status = match counted.fetch_add(1, Ordering::SeqCst) {
            0 => 503,
            1 => 400,
            _ => 204,
        };
        let response = http::Response::builder().status(status).body(());
        std::future::ready(Ok::<_, BoxError>(response.unwrap()))
    }));
    for attempts in 1..=2 {
        let failed = consumer.clone().oneshot("evt-1").await.unwrap_err();
        let failed = failed.downcast::<NotConsumed>().unwrap();
        assert!(matches!(*failed, NotConsumed::Failed(_)), "{failed}");
        assert_eq!(calls.load(Ordering::SeqCst), attempts);
    }
    let processed = consumer.clone().oneshot("evt-1").await.unwrap();
    assert!(matches!(processed, Consumed::Processed(response) if response.status() == 204));
    let repeated = consumer.oneshot("evt-1").await.unwrap();
    assert!(matches!(repeated, Consumed::Duplicate));
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}
