//! Costs that do not grow with what waits or is done: finding a lane with work beside lanes in backoff, a
//! 202 in front of a long queue, and counting.

use std::{fs, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{runtime::Runtime, time::Instant};
use tower_reprise::store::journal::{Journal, LeaseRequest, NewEntry, QueueBounds};

use crate::{
    QUEUE,
    file::folder,
    fill::{filled, with_finished, with_lanes},
    middle::median,
    report::Report,
};

const TURNS: usize = 201;
/// More than are leased.
pub(crate) const DUE: u32 = 220;
const LANES: [u32; 2] = [10, 50_000];
const QUEUED: [u32; 2] = [1, 1_000_000];
const FINISHED: [u32; 2] = [0, 5_000_000];
const WAITING: [u32; 2] = [0, 1_000_000];
const LEASE: Duration = Duration::from_secs(600);
/// As a replay counts its position.
const FAR: u32 = 1000;

pub(crate) fn run(report: &mut Report, quick: bool) {
    let runtime = Runtime::new().expect("a runtime");
    let sizes = |all: [u32; 2]| all.map(|n| if quick { n.min(50_000) } else { n });
    let folder = folder("journal-growth");
    let path = |name: &str, n: u32| folder.join(format!("{name}-{n}.db"));
    let mut measured = Measured {
        runtime: &runtime,
        report: &mut *report,
        store: "",
    };
    measured.lanes(LANES.map(|n| with_lanes(path("lanes", n), n, DUE)));
    measured.accepted(sizes(QUEUED).map(|n| filled(path("queued", n), n, 0)));
    let stores = sizes(FINISHED).map(|n| (with_finished(path("finished", n), n), n));
    measured.counts("counts", stores);
    let stores = sizes(WAITING).map(|n| (filled(path("waiting", n), n / 2, n / 2), n));
    measured.counts("counts_waiting", stores);
    let _ = fs::remove_dir_all(&folder);
    #[cfg(feature = "postgres")]
    {
        use crate::growth_postgres::Schemas;

        let Some(mut schemas) = runtime.block_on(Schemas::new()) else {
            return;
        };
        measured.store = "postgres_";
        let stores = LANES.map(|n| runtime.block_on(schemas.with_lanes(n, DUE)));
        measured.lanes(stores);
        let stores = sizes(QUEUED).map(|n| runtime.block_on(schemas.with_due(n)));
        measured.accepted(stores);
        let stores = sizes(FINISHED).map(|n| (runtime.block_on(schemas.with_finished(n)), n));
        measured.counts("counts", stores);
        let stores =
            sizes(WAITING).map(|n| (runtime.block_on(schemas.with_lanes(n / 2, n / 2)), n));
        measured.counts("counts_waiting", stores);
        runtime.block_on(schemas.drop());
    }
}

/// A report about one of the stores.
struct Measured<'a> {
    runtime: &'a Runtime,
    report: &'a mut Report,
    store: &'static str,
}

impl Measured<'_> {
    /// Leases from the lane that has work.
    fn lanes<J: Journal>(&mut self, stores: [J; 2]) {
        self.growth("lanes", stores, &async |store: &J| {
            let lanes = store.lanes(QUEUE, None, 64).await.expect("lanes");
            let request = LeaseRequest::new(QUEUE, lanes[0].clone(), 1, LEASE);
            assert_eq!(store.lease(request).await.expect("lease").len(), 1);
        });
    }

    /// Queues what is answered with 202, and its position.
    fn accepted<J: Journal>(&mut self, stores: [J; 2]) {
        self.growth("accepted", stores, &async |store: &J| {
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
    }

    /// Counts stores with so many entries.
    fn counts<J: Journal>(&mut self, name: &str, stores: [(J, u32); 2]) {
        let stores = stores.map(|(store, entries)| {
            let counts = self.runtime.block_on(store.counts(QUEUE));
            let counted: u64 = counts.expect("counts").by_status.iter().sum();
            assert_eq!(counted, u64::from(entries), "{name}");
            store
        });
        self.growth(name, stores, &async |store: &J| {
            store.counts(QUEUE).await.expect("counts");
        });
    }

    fn growth<J: Journal, F: AsyncFn(&J)>(&mut self, name: &str, stores: [J; 2], run: &F) {
        let [few, many] = by_turns(self.runtime, stores, run);
        let name = format!("{}{name}", self.store);
        self.report.note(&format!("{name}_micros"), few);
        self.report
            .at_most(&format!("{name}_growth"), many / few, 1.5);
    }
}

/// Returns the microseconds that something takes with each of two stores, which take turns.
fn by_turns<J: Journal, F: AsyncFn(&J)>(runtime: &Runtime, stores: [J; 2], run: &F) -> [f64; 2] {
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
