//! Costs that do not grow with what waits or is done: finding a lane with work beside lanes in backoff, a
//! 202 in front of a long queue, and counting.

use std::{fs, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{runtime::Runtime, time::Instant};
use tower_reprise::store::{
    SqliteStore,
    journal::{Journal, LeaseRequest, NewEntry, QueueBounds},
};

use crate::{
    QUEUE,
    file::folder,
    fill::{filled, with_finished, with_lanes},
    middle::median,
    report::Report,
};

const TURNS: usize = 201;
/// More than are leased.
const DUE: u32 = 220;
const LANES: [u32; 2] = [10, 50_000];
const QUEUED: [u32; 2] = [1, 1_000_000];
const FINISHED: [u32; 2] = [0, 5_000_000];
const LEASE: Duration = Duration::from_secs(600);
/// As a replay counts its position.
const FAR: u32 = 1000;

pub(crate) fn run(report: &mut Report, quick: bool) {
    let folder = folder("journal-growth");
    let runtime = Runtime::new().expect("a runtime");
    let path = |name: &str, n: u32| folder.join(format!("{name}-{n}.db"));
    let size = |n: u32| if quick { n.min(50_000) } else { n };

    let stores = LANES.map(|lanes| with_lanes(path("lanes", lanes), lanes, DUE));
    let [few, many] = by_turns(&runtime, stores, &async |store: &SqliteStore| {
        let lanes = store.lanes(QUEUE, None, 64).await.expect("lanes");
        let request = LeaseRequest::new(QUEUE, lanes[0].clone(), 1, LEASE);
        assert_eq!(store.lease(request).await.expect("lease").len(), 1);
    });
    report.note("lanes_micros_10", few);
    report.at_most("lanes_growth", many / few, 1.5);

    let stores = QUEUED.map(|queued| filled(path("queued", queued), size(queued), 0));
    let [one, many] = by_turns(&runtime, stores, &async |store: &SqliteStore| {
        let entry = NewEntry {
            bounds: Some(QueueBounds {
                in_all: u32::MAX,
                per_owner: u32::MAX,
            }),
            ..NewEntry::new(QUEUE, Bytes::from_static(&[7; 1024]))
        };
        let id = entry.id;
        store.enqueue(entry).await.expect("enqueue");
        assert!(store.position(id, FAR).await.expect("position").is_some());
    });
    report.note("accepted_micros_1", one);
    report.at_most("accepted_growth", many / one, 1.5);

    let stores = FINISHED.map(|n| with_finished(path("finished", n), size(n)));
    let [none, many] = by_turns(&runtime, stores, &async |store: &SqliteStore| {
        store.counts(QUEUE).await.expect("counts");
    });
    report.note("counts_micros_0", none);
    report.at_most("counts_growth", many / none, 1.5);
    let _ = fs::remove_dir_all(&folder);
}

/// Returns the microseconds that something takes with each of two stores, which take turns.
fn by_turns<F: AsyncFn(&SqliteStore)>(
    runtime: &Runtime,
    stores: [SqliteStore; 2],
    run: &F,
) -> [f64; 2] {
    let stores = stores.map(Arc::new);
    let mut took = [Vec::new(), Vec::new()];
    for turn in 0..TURNS {
        for at in [turn % 2, 1 - turn % 2] {
            let started = Instant::now();
            runtime.block_on(run(&stores[at]));
            took[at].push(started.elapsed().as_secs_f64() * 1e6);
        }
    }
    took.map(median)
}
