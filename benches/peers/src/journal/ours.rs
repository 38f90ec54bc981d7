use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::Notify, task::JoinSet, time::Instant};
use tower_reprise::{
    delivery::worker::{Handler, WorkerBuilder},
    store::journal::{Entry, Journal, NewEntry, Settlement, Status},
};

const CONCURRENCY: usize = 64;

pub(super) struct Ours<J> {
    journal: Arc<J>,
    queue: &'static str,
    keep: Duration,
    payload: Bytes,
}

impl<J: Journal> Ours<J> {
    /// `keep` is for how long jobs are kept when they are done.
    pub(super) fn new(journal: &Arc<J>, queue: &'static str, keep: Duration) -> Self {
        Self {
            journal: Arc::clone(journal),
            queue,
            keep,
            payload: Bytes::from(vec![b'7'; 1024]),
        }
    }

    /// Rates, as `MEASURED` has them.
    pub(super) async fn round(&self, jobs: usize, alone: usize) -> [f64; 3] {
        [
            self.enqueue(1, alone).await,
            self.enqueue(CONCURRENCY, jobs - alone).await,
            self.drain(jobs).await,
        ]
    }

    async fn enqueue(&self, callers: usize, jobs: usize) -> f64 {
        let started = Instant::now();
        let mut running = JoinSet::new();
        for caller in 0..callers {
            let (journal, payload) = (Arc::clone(&self.journal), self.payload.clone());
            let queue = self.queue;
            running.spawn(async move {
                for _ in (caller..jobs).step_by(callers) {
                    let entry = NewEntry::new(queue, payload.clone());
                    journal.enqueue(entry).await.expect("enqueue");
                }
            });
        }
        running.join_all().await;
        jobs as f64 / started.elapsed().as_secs_f64()
    }

    /// Until the last one is settled.
    async fn drain(&self, jobs: usize) -> f64 {
        let before = self.completed().await;
        let work = Arc::new(Work {
            keep: self.keep,
            ..Work::default()
        });
        work.left.store(jobs, Ordering::Relaxed);
        let started = Instant::now();
        let worker = WorkerBuilder::new(
            Arc::clone(&self.journal),
            self.queue,
            Counts(Arc::clone(&work)),
        )
        .concurrency(CONCURRENCY)
        // As many as the other's local queue holds.
        .prefetch(2 * CONCURRENCY)
        .per_lane(3 * CONCURRENCY)
        .start()
        .expect("a worker");
        work.finished.notified().await;
        worker.shutdown(Duration::from_secs(60)).await;
        let took = started.elapsed();
        let kept = if self.keep.is_zero() { 0 } else { jobs };
        assert_eq!(self.completed().await - before, kept as u64);
        jobs as f64 / took.as_secs_f64()
    }

    async fn completed(&self) -> u64 {
        let counts = self.journal.counts(self.queue).await.expect("counts");
        counts.of(Status::Completed)
    }
}

#[derive(Default)]
struct Work {
    keep: Duration,
    left: AtomicUsize,
    finished: Notify,
}

struct Counts(Arc<Work>);

impl Handler for Counts {
    async fn handle(&self, _: Entry) -> Settlement {
        if self.0.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.finished.notify_one();
        }
        Settlement::completed(Bytes::new(), self.0.keep)
    }
}
