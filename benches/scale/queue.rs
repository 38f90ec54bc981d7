//! The cost of queueing an entry, leasing the first and settling it, by the number of waiting
//! entries: in memory, and in a SQLite file, where concurrent callers share a commit. The length of
//! the queue stays the same.

use std::{fs, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{runtime::Runtime, task::JoinSet, time::Instant};
use tower_reprise::store::{
    MemoryStore, Ownership,
    journal::{Enqueued, Journal, LeaseRequest, NewEntry, Settlement},
};

use crate::{
    QUEUE,
    curve::{Chart, Turns},
    file::folder,
    fill::filled,
    report::Report,
};

const SIZES: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
const PAYLOAD: [u8; 128] = [7; 128];
/// None of them runs out.
const LEASE: Duration = Duration::from_secs(600);
const CALLERS: usize = 64;

pub(crate) fn run(report: &mut Report, turns: &mut Turns) -> Vec<Chart> {
    let sizes = turns.sizes(&SIZES);
    turns.begin("queue, in memory");
    let runtime = Runtime::new().expect("a runtime");
    let in_memory = |&size: &usize| {
        turns.tell(format_args!("{size} entries are queued"));
        let store = Arc::new(in_memory());
        runtime.block_on(async {
            for _ in 0..size {
                enqueue(&*store).await;
            }
        });
        store
    };
    let stores: Vec<_> = sizes.iter().map(in_memory).collect();
    let memory = turns.take(200, sizes.len(), |size, _| {
        runtime.block_on(nanos(&stores[size], 1, 200))
    });
    drop(stores);

    turns.begin("queue, in SQLite");
    let folder = folder("scale-queue");
    let in_file = |&size: &usize| {
        turns.tell(format_args!("{size} entries are queued"));
        let entries = u32::try_from(size).expect("a number");
        Arc::new(filled(folder.join(format!("{size}.db")), entries, 0))
    };
    let stores: Vec<_> = sizes.iter().map(in_file).collect();
    let sqlite = turns.take(40, sizes.len(), |size, _| {
        runtime.block_on(nanos(&stores[size], CALLERS, 4))
    });
    drop(stores);
    let _ = fs::remove_dir_all(&folder);

    let last = sizes.len() - 1;
    for (name, nanos) in [("memory", &memory), ("sqlite", &sqlite)] {
        report.note(&format!("queue_{name}_ns_1k"), nanos[0]);
        report.at_most(&format!("queue_{name}_growth"), nanos[last] / nanos[0], 2.0);
    }
    let chart = |name, curve| Chart {
        name,
        title: "What queuing, leasing and settling an entry costs, by how many wait",
        grows: "entries that wait",
        sizes: sizes.to_vec(),
        curves: vec![curve],
    };
    vec![
        chart("queue-memory", ("in memory", memory)),
        chart("queue-sqlite", ("in SQLite, 64 callers", sqlite)),
    ]
}

fn in_memory() -> MemoryStore {
    let store = MemoryStore::builder().max_entries(2_000_000);
    store.max_bytes(1 << 40).build().expect("a store")
}

async fn enqueue<J: Journal>(journal: &J) {
    let entry = NewEntry::new(QUEUE, Bytes::from_static(&PAYLOAD));
    let enqueued = journal.enqueue(entry).await.expect("enqueue");
    assert!(matches!(enqueued, Enqueued::New(_)), "{enqueued:?}");
}

/// Returns the nanoseconds an entry takes when so many callers each handle so many entries, one
/// after the other.
async fn nanos<J: Journal>(journal: &Arc<J>, callers: usize, entries: usize) -> f64 {
    let started = Instant::now();
    let mut calling = JoinSet::new();
    for _ in 0..callers {
        let journal = Arc::clone(journal);
        calling.spawn(async move {
            for _ in 0..entries {
                enqueue(&*journal).await;
                let leased = journal.lease(LeaseRequest::new(QUEUE, "", 1, LEASE)).await;
                let entry = leased.expect("lease").pop().expect("an entry");
                // Not kept, so that only the queue is long.
                let settled = Settlement::completed(Bytes::new(), Duration::ZERO);
                let settled = journal.settle(entry.id, entry.lease_token, settled).await;
                assert_eq!(settled.expect("settle"), Ownership::Held);
            }
        });
    }
    calling.join_all().await;
    started.elapsed().as_secs_f64() * 1e9 / (callers * entries) as f64
}
