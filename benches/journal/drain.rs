//! The entries a second that a worker with an empty handler gets through: 64 at a time, all of one
//! lane, or of 64 lanes with at most 4 of each.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::Notify, time::Instant};
use tower_reprise::{
    delivery::worker::{Handler, WorkerBuilder},
    store::{
        MemoryStore, SqliteStore,
        journal::{Entry, Journal, QueueBounds, Settlement, Status},
    },
};

use crate::{QUEUE, accept::in_lanes, file::folder, middle::median, report::Report};

const CONCURRENCY: usize = 64;
const ENTRIES: usize = 4_000;
const LANES: usize = 64;
const CALLERS: usize = 256;
const PAYLOAD: usize = 1024;
const KEEP: Duration = Duration::from_secs(3600);

pub(crate) fn run(report: &mut Report, quick: bool) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let folder = folder("journal-drain");
    let store = SqliteStore::open(folder.join("store.db")).expect("a store");
    runtime.block_on(measure("sqlite", store, report, quick));
    let store = MemoryStore::builder().max_bytes(1 << 40).build();
    runtime.block_on(measure("memory", store.expect("a store"), report, quick));
    let _ = fs::remove_dir_all(&folder);
}

pub(crate) async fn measure<J: Journal>(name: &str, journal: J, report: &mut Report, quick: bool) {
    let journal = Arc::new(journal);
    // Never reached, but counted.
    let bounds = Some(QueueBounds {
        in_all: u32::MAX,
        per_owner: u32::MAX,
    });
    let (mut one, mut many, mut bounded) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..if quick { 3 } else { 7 } {
        one.push(drain(&journal, (1, None), CONCURRENCY).await);
        bounded.push(drain(&journal, (1, bounds), CONCURRENCY).await);
        many.push(drain(&journal, (LANES, None), 4).await);
    }
    report.note(&format!("{name}_drain_bounded_per_second"), median(bounded));
    report.note(&format!("{name}_drain_per_second"), median(one));
    report.note(&format!("{name}_drain_lanes_per_second"), median(many));
}

/// Entries a second, until the last one is settled.
async fn drain<J: Journal>(
    journal: &Arc<J>,
    lanes: (usize, Option<QueueBounds>),
    per_lane: usize,
) -> f64 {
    let before = completed(journal).await;
    let payload = Bytes::from(vec![7; PAYLOAD]);
    in_lanes(journal, CALLERS, 0..ENTRIES, lanes, &payload).await;
    let work = Arc::new(Work::default());
    let started = Instant::now();
    let worker = WorkerBuilder::new(Arc::clone(journal), QUEUE, Counts(Arc::clone(&work)))
        .concurrency(CONCURRENCY)
        .per_lane(per_lane)
        .start()
        .expect("a worker");
    work.finished.notified().await;
    // Until what was handled is settled.
    worker.shutdown(Duration::from_secs(60)).await;
    let took = started.elapsed();
    assert_eq!(completed(journal).await - before, ENTRIES as u64);
    ENTRIES as f64 / took.as_secs_f64()
}

async fn completed<J: Journal>(journal: &Arc<J>) -> u64 {
    let counts = journal.counts(QUEUE).await.expect("counts");
    counts.of(Status::Completed)
}

#[derive(Default)]
struct Work {
    handled: AtomicUsize,
    finished: Notify,
}

struct Counts(Arc<Work>);

impl Handler for Counts {
    async fn handle(&self, _: Entry) -> Settlement {
        if self.0.handled.fetch_add(1, Ordering::Relaxed) + 1 == ENTRIES {
            self.0.finished.notify_one();
        }
        Settlement::completed(Bytes::new(), KEEP)
    }
}
