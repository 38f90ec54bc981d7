//! A worker on a journal that takes its time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    delivery::{
        dead_letter::{DeadLetterLayer, Delivered, Letter},
        replay::Replay,
        webhooks::{Signer, Webhooks},
        worker::{Handler, WorkerBuilder, WorkerHandle},
    },
    error::BoxError,
    store::{
        MemoryStore, Ownership, StoreError, StoreErrorKind,
        journal::{
            Enqueued, Entry, EntryId, Journal, LeaseRequest, LeaseToken, NewEntry, Query,
            Settlement, Status, WrapJournal, WrappedJournal,
        },
    },
};

use crate::setup::{DAY, SECOND};

/// Takes so long to commit an outcome, and counts what it is asked.
#[derive(Clone, Default)]
struct Slowly {
    settling: Duration,
    down: Arc<AtomicBool>,
    lanes: Arc<AtomicUsize>,
    leases: Arc<AtomicUsize>,
    sealed: bool,
}

type Slow = WrappedJournal<MemoryStore, Slowly>;

impl Slowly {
    fn journal(self) -> Slow {
        WrappedJournal::new(MemoryStore::new(), self)
    }

    fn up(&self) -> Result<(), StoreError> {
        match self.down.load(Ordering::Relaxed) {
            true => Err(StoreError::new(StoreErrorKind::Unavailable, "down")),
            false => Ok(()),
        }
    }
}

impl WrapJournal for Slowly {
    async fn lanes<J: Journal>(
        &self,
        journal: &J,
        queue: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        self.lanes.fetch_add(1, Ordering::Relaxed);
        journal.lanes(queue, after, limit).await
    }

    async fn lease<J: Journal>(
        &self,
        journal: &J,
        request: LeaseRequest,
    ) -> Result<Vec<Entry>, StoreError> {
        self.leases.fetch_add(1, Ordering::Relaxed);
        journal.lease(request).await
    }

    async fn settle<J: Journal>(
        &self,
        journal: &J,
        id: EntryId,
        lease_token: LeaseToken,
        settlement: Settlement,
    ) -> Result<Ownership, StoreError> {
        tokio::time::sleep(self.settling).await;
        self.up()?;
        journal.settle(id, lease_token, settlement).await
    }

    async fn bury<J: Journal>(
        &self,
        journal: &J,
        entry: NewEntry,
        attempts: u32,
        settlement: Settlement,
    ) -> Result<Enqueued, StoreError> {
        self.up()?;
        journal.bury(entry, attempts, settlement).await
    }

    fn is_sealed<J: Journal>(&self, _: &J) -> bool {
        self.sealed
    }
}

/// Takes so long, and counts.
#[derive(Clone, Default)]
struct Handled {
    handling: Duration,
    handled: Arc<AtomicUsize>,
}

impl Handler for Handled {
    async fn handle(&self, _: Entry) -> Settlement {
        tokio::time::sleep(self.handling).await;
        self.handled.fetch_add(1, Ordering::Relaxed);
        Settlement::completed("", DAY)
    }
}

impl Handled {
    fn count(&self) -> usize {
        self.handled.load(Ordering::Relaxed)
    }
}

fn entry(lane: &str) -> NewEntry {
    NewEntry {
        lane: lane.to_owned(),
        ..NewEntry::new("jobs", "")
    }
}

async fn with(entries: usize, settling: Duration) -> Slow {
    let slowly = Slowly {
        settling,
        ..Slowly::default()
    };
    let journal = slowly.journal();
    for _ in 0..entries {
        journal.enqueue(entry("")).await.unwrap();
    }
    journal
}

async fn completed(journal: &Slow) -> u64 {
    journal.counts("jobs").await.unwrap().of(Status::Completed)
}

/// The next is handled while the outcome of the one before is committed, but nobody runs away
/// from a journal that does not keep up.
#[tokio::test(start_paused = true)]
async fn a_handler_is_free_before_its_outcome_is_committed() {
    let journal = with(20, 10 * SECOND).await;
    let handler = Handled::default();
    let worker = WorkerBuilder::new(journal.clone(), "jobs", handler.clone()).concurrency(2);
    let worker = worker.start().unwrap();
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(completed(&journal).await, 0, "not yet");
    assert_eq!(handler.count(), 4 * 2, "a few times as many as at a time");
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!((handler.count(), completed(&journal).await), (20, 20));
    drop(worker);
}

/// With handlers that finish at once, each lease asks for as many entries as the worker may hold,
/// rather than for the places that the first few left.
#[tokio::test(start_paused = true)]
async fn quick_handlers_have_full_leases() {
    let journal = with(480, Duration::ZERO).await;
    let handler = Handled::default();
    let worker = WorkerBuilder::new(journal.clone(), "jobs", handler.clone());
    let worker = worker.concurrency(16).prefetch(32).per_lane(48);
    let worker = worker.start().unwrap();
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!((handler.count(), completed(&journal).await), (480, 480));
    let leases = journal.wrapper().leases.load(Ordering::Relaxed);
    assert!(leases <= 480 / 48 + 1, "{leases}");
    drop(worker);
}

/// A shutdown waits for what was handled, not only for what is.
#[tokio::test(start_paused = true)]
async fn a_shutdown_commits_what_was_handled() {
    let journal = with(20, 10 * SECOND).await;
    let handler = Handled::default();
    let worker = WorkerBuilder::new(journal.clone(), "jobs", handler.clone()).concurrency(2);
    let worker = worker.start().unwrap();
    tokio::time::sleep(5 * SECOND).await;
    worker.shutdown(60 * SECOND).await;
    assert_eq!((handler.count(), completed(&journal).await), (8, 8));
    let queued = journal.counts("jobs").await.unwrap().of(Status::Queued);
    assert_eq!(queued, 12);
}

/// J-14: a journal that is down, or that hangs, does not keep a process from ending. What it was
/// not told is attempted again when the lease has run out.
#[tokio::test(start_paused = true)]
async fn j_14_a_shutdown_does_not_wait_for_a_journal_that_is_down() {
    for (settling, handling) in [
        (Duration::ZERO, Duration::ZERO),
        (Duration::ZERO, 3600 * SECOND),
        (3600 * SECOND, Duration::ZERO),
    ] {
        let journal = with(1, settling).await;
        journal.wrapper().down.store(true, Ordering::Relaxed);
        let handler = Handled {
            handling,
            ..Handled::default()
        };
        let worker = WorkerBuilder::new(journal.clone(), "jobs", handler.clone()).start();
        let worker = worker.unwrap();
        tokio::time::sleep(SECOND).await;
        let ended = worker.shutdown(SECOND);
        let most = SECOND + WorkerHandle::RELEASE_TIMEOUT;
        let ended = tokio::time::timeout(most + SECOND / 10, ended).await;
        assert!(ended.is_ok(), "{settling:?} {handling:?}");
        tokio::time::sleep(60 * SECOND).await;
        let leased = journal
            .lease(LeaseRequest::new("jobs", "", 1, DAY))
            .await
            .unwrap();
        assert_eq!(leased.len(), 1, "nothing is lost, and nobody holds it");
    }
}

/// Dropping the future of a shutdown aborts the handlers that still run.
#[tokio::test(start_paused = true)]
async fn a_shutdown_that_is_dropped_leaves_nobody_behind() {
    let journal = with(1, Duration::ZERO).await;
    let handler = Handled {
        handling: 100 * SECOND,
        ..Handled::default()
    };
    let worker = WorkerBuilder::new(journal.clone(), "jobs", handler.clone()).start();
    let worker = worker.unwrap();
    tokio::time::sleep(SECOND).await;
    let dropped = tokio::time::timeout(SECOND, worker.shutdown(DAY)).await;
    assert!(dropped.is_err());
    tokio::time::sleep(200 * SECOND).await;
    assert_eq!(handler.count(), 0);
}

/// J-5: lanes that had more are leased from in turn, without asking each time which there are.
#[tokio::test(start_paused = true)]
async fn j_5_known_lanes_are_not_asked_for_again() {
    let journal = with(0, Duration::ZERO).await;
    for n in 0..120 {
        journal
            .enqueue(entry(["a", "b", "c"][n % 3]))
            .await
            .unwrap();
    }
    let handler = Handled::default();
    let worker = WorkerBuilder::new(journal.clone(), "jobs", handler.clone());
    let worker = worker.concurrency(4).per_lane(2).start().unwrap();
    tokio::time::sleep(SECOND / 2).await;
    assert_eq!(completed(&journal).await, 120);
    let (lanes, leases) = (&journal.wrapper().lanes, &journal.wrapper().leases);
    let (lanes, leases) = (
        lanes.load(Ordering::Relaxed),
        leases.load(Ordering::Relaxed),
    );
    assert!(lanes <= 5 && leases >= 60, "{lanes} looks, {leases} leases");
    drop(worker);
}

/// J-5: a lane that comes later gets its turn, however much there is in those that are known.
#[tokio::test(start_paused = true)]
async fn j_5_a_new_lane_is_found_at_the_next_look() {
    let journal = with(1_000, Duration::ZERO).await;
    let handler = Handled {
        handling: SECOND / 10,
        ..Handled::default()
    };
    let worker = WorkerBuilder::new(journal.clone(), "jobs", handler.clone()).concurrency(4);
    let worker = worker.start().unwrap();
    tokio::time::sleep(5 * SECOND).await;
    let late = entry("late");
    let id = late.id;
    journal.enqueue(late).await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    let late = journal.find(id).await.unwrap().unwrap();
    assert_eq!(late.status, Status::Completed);
    assert!(completed(&journal).await < 1_000, "while others still wait");
    drop(worker);
}

/// Entries that are leased ahead are handled in turn, within the limit of concurrency; a shutdown
/// gives the rest back, as if they had not been leased.
#[tokio::test(start_paused = true)]
async fn what_is_leased_ahead_waits_and_is_given_back() {
    let journal = with(20, Duration::ZERO).await;
    let handler = Handled {
        handling: 100 * SECOND,
        ..Handled::default()
    };
    let worker = WorkerBuilder::new(journal.clone(), "jobs", handler.clone()).lease(9 * SECOND);
    let worker = worker.concurrency(2).prefetch(3).per_lane(10);
    let worker = worker.start().unwrap();
    tokio::time::sleep(50 * SECOND).await;
    let counts = journal.counts("jobs").await.unwrap();
    assert_eq!(counts.of(Status::Processing), 5);
    tokio::time::sleep(100 * SECOND).await;
    assert_eq!((handler.count(), completed(&journal).await), (2, 2));
    worker.shutdown(200 * SECOND).await;
    assert_eq!((handler.count(), completed(&journal).await), (4, 4));
    let left = journal.list(Query::new("jobs", 100)).await.unwrap();
    let left = left.iter().filter(|entry| !entry.status.is_over());
    let left: Vec<_> = left.map(|it| (it.status, it.attempts)).collect();
    assert_eq!(left, vec![(Status::Queued, 0); 16]);
}

#[tokio::test]
async fn too_many_ahead_are_refused() {
    let worker = WorkerBuilder::new(Slowly::default().journal(), "jobs", Handled::default());
    let error = worker.prefetch(10_001).start().unwrap_err().to_string();
    assert_eq!(error, "worker.prefetch is 10001, allowed: 0 to 10000");
}

/// an event is not acknowledged before its letter is stored.
#[tokio::test(start_paused = true)]
async fn q_1_q_5_a_letter_is_stored_whole_or_not_acknowledged() {
    let journal = Slowly::default().journal();
    let letter = |id: &&str| Letter {
        id: Some((*id).to_owned()),
        ..Letter::default()
    };
    let layer = DeadLetterLayer::new(journal.clone(), "orders", letter);
    let consumer = layer.layer(service_fn(async |_: &str| {
        Err::<(), BoxError>("broken".into())
    }));
    let deliver = || consumer.clone().oneshot("1");
    let letters = async || {
        let mut query = Query::new("orders", 9);
        query.status = Some(Status::Failed);
        journal.count(query).await.unwrap()
    };

    journal.wrapper().down.store(true, Ordering::Relaxed);
    deliver().await.unwrap_err();
    journal.wrapper().down.store(false, Ordering::Relaxed);
    assert_eq!(letters().await, 0);
    assert!(matches!(
        deliver().await.unwrap(),
        Delivered::DeadLettered(_)
    ));
    assert_eq!(letters().await, 1);
    let alerts = Query::new("reprise.alerts", 9);
    assert_eq!(journal.count(alerts).await.unwrap(), 1);
}

/// J-13: headers of a callback are written down with the request, so that it is that journal which
/// has to be sealed.
#[tokio::test(start_paused = true)]
async fn j_13_credentials_of_callbacks_need_a_sealed_journal_of_replays() {
    for (sealed, status) in [(false, 400), (true, 202)] {
        let journal = |sealed| {
            let slowly = Slowly {
                sealed,
                ..Slowly::default()
            };
            slowly.journal()
        };
        let signer = Signer::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let webhooks = Webhooks::builder(journal(!sealed), signer).build();
        let replay = Replay::builder(journal(sealed), Scope::new(|_| Some("ada")))
            .callbacks(webhooks.unwrap())
            .build()
            .unwrap();
        replay.maintenance().on(None);
        let service = replay
            .layer()
            .layer(service_fn(async |_: Request<Full<Bytes>>| {
                Ok::<_, BoxError>(Response::new(Full::<Bytes>::default()))
            }));
        let request = Request::post("/orders")
            .header("replay", "true")
            .header("idempotency-key", "1")
            .header("replay-callback", "https://shop.example/hook")
            .header("replay-callback-header", "authorization: Bearer s3cret");
        let request = request.body(Full::<Bytes>::default()).unwrap();
        let response = service.oneshot(request).await.unwrap();
        assert_eq!(response.status(), status, "{sealed}");
    }
}

/// J-17: a journal that takes no settlements for longer than a lease, and then does.
#[tokio::test(start_paused = true)]
async fn j_17_a_lease_is_extended_while_its_settlement_waits() {
    let journal = with(1, Duration::ZERO).await;
    let handler = Handled::default();
    let worker = WorkerBuilder::new(journal.clone(), "jobs", handler.clone());
    let worker = worker.lease(10 * SECOND).start().unwrap();
    let other = WorkerBuilder::new(journal.clone(), "jobs", handler.clone());
    let other = other.lease(10 * SECOND).start().unwrap();
    journal.wrapper().down.store(true, Ordering::Relaxed);
    tokio::time::sleep(3600 * SECOND).await;
    assert_eq!(handler.count(), 1);
    journal.wrapper().down.store(false, Ordering::Relaxed);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!((handler.count(), completed(&journal).await), (1, 1));
    drop((worker, other));
}
