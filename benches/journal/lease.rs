//! What it costs to lease one entry of a lane in which a million wait, next to one in which a
//! thousand do. One at a time a lease is mostly a commit; so leases are also made many at once,
//! which share a commit, and then what is left is the search.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::Instant};
use tower_reprise::store::{
    SqliteStore,
    journal::{Journal, Want},
};

use crate::{
    QUEUE,
    file::{connect, folder},
    middle::median,
    report::Report,
};

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

/// What a lease took, when so many are asked for at once.
async fn micros(store: &Arc<SqliteStore>, leases: usize) -> f64 {
    let started = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..leases {
        let store = Arc::clone(store);
        running.spawn(async move { store.lease(Want::new(QUEUE, "", 1, LEASE)).await });
    }
    for leased in running.join_all().await {
        assert_eq!(leased.expect("lease").len(), 1);
    }
    started.elapsed().as_secs_f64() * 1e6 / leases as f64
}

/// A store with so many entries that are due, behind as many that are not.
fn filled(path: PathBuf, due: u32, later: u32) -> SqliteStore {
    drop(SqliteStore::open(&path).expect("a schema"));
    let connection = connect(&path);
    // Only to fill it.
    let hurry = "PRAGMA synchronous = off; PRAGMA cache_size = -400000;";
    connection.execute_batch(hurry).expect("pragmas");
    let mut fill = connection
        .prepare(
            "WITH RECURSIVE entries (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM entries LIMIT ?1)
             INSERT INTO journal (id, queue, lane, owner, label, priority, status, turn, attempts,
               queued, due, expires, changed, until, history, payload)
             SELECT randomblob(16), ?2, '', '', '', 2, 0, 0, 0, ?3, ?4 + n, ?5, ?3, ?3, '',
               randomblob(128)
             FROM entries WHERE ?1 > 0",
        )
        .expect("a statement");
    let (long_ago, far_off, farther_off) = (
        1_700_000_000_000_000_i64,
        4_000_000_000_000_000_i64,
        5_000_000_000_000_000_i64,
    );
    for (entries, due) in [(later, far_off), (due, long_ago)] {
        let row = (entries, QUEUE, long_ago, due, farther_off);
        fill.execute(row).expect("entries");
    }
    let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
    let checkpointed = connection.query_row(checkpoint, [], |row| row.get::<_, i64>(0));
    assert_eq!(checkpointed.expect("a checkpoint"), 0);
    drop(fill);
    drop(connection);
    SqliteStore::open(path).expect("a store")
}
