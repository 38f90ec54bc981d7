//! The cost of leasing one entry of a lane with a million waiting entries, next to a lane with a
//! thousand. A single lease is mostly a commit, so leases are also made concurrently: they share a
//! commit, and the search dominates.

use std::{fs, sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::Instant};
use tower_reprise::store::{
    SqliteStore,
    journal::{Journal, LeaseRequest},
};

use crate::{QUEUE, file::folder, fill::filled, middle::median, report::Report};

const FEW: u32 = 1_000;
const MANY: u32 = 1_000_000;
const MANY_QUICK: u32 = 100_000;
/// So many leases one at a time, and as often so many at once. `FEW` are enough for all of them.
const LEASES: usize = 201;
const BURSTS: usize = 11;
const BURST: usize = 64;
/// None of them runs out.
const LEASE: Duration = Duration::from_secs(600);

pub(crate) fn run(report: &mut Report, quick: bool) {
    let many = if quick { MANY_QUICK } else { MANY };
    let folder = folder("journal-lease");
    let open = |name: &str, due, later| Arc::new(filled(folder.join(name), due, later));
    // In the third, all but a few are not due yet, and were queued before those.
    let stores = [
        open("few.db", FEW, 0),
        open("many.db", many, 0),
        open("later.db", FEW, many),
    ];
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let [mut alone, mut together] = [(); 2].map(|()| stores.clone().map(|_| Vec::new()));
    for turn in 0..BURSTS + LEASES {
        // Nobody is always the first.
        for at in (0..stores.len()).map(|n| (n + turn) % stores.len()) {
            let store = &stores[at];
            // The first turn is not counted.
            match turn {
                0 => drop(runtime.block_on(micros(store, BURST))),
                1..BURSTS => together[at].push(runtime.block_on(micros(store, BURST))),
                _ => alone[at].push(runtime.block_on(micros(store, 1))),
            }
        }
    }
    let [few, many, later] = together.map(median);
    report.note("lease_grouped_micros_1k", few);
    report.note("lease_grouped_growth", many / few);
    report.note("lease_grouped_growth_not_due", later / few);
    let [few, many, later] = alone.map(median);
    report.note("lease_micros_1k", few);
    report.at_most("lease_growth", many / few, 2.0);
    report.at_most("lease_growth_not_due", later / few, 2.0);
    drop(stores);
    let _ = fs::remove_dir_all(&folder);
}

/// Returns the microseconds a lease takes when so many are requested at once.
async fn micros(store: &Arc<SqliteStore>, leases: usize) -> f64 {
    let started = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..leases {
        let store = Arc::clone(store);
        running.spawn(async move { store.lease(LeaseRequest::new(QUEUE, "", 1, LEASE)).await });
    }
    for leased in running.join_all().await {
        assert_eq!(leased.expect("lease").len(), 1);
    }
    started.elapsed().as_secs_f64() * 1e6 / leases as f64
}
