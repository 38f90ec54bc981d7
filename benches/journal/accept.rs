//! The rate at which SQLite accepts entries from 256 callers, each of which continues when its
//! entry is on disk. The baseline is a loop without any store: one thread, the same table with the
//! same indexes and pragmas, and as many entries in a transaction as the store may take: half of
//! those under way, so that one half is on its way while the other is committed.

use std::{fs, ops::Range, path::PathBuf, sync::Arc};

use bytes::Bytes;
use rusqlite::Connection;
use tokio::{task::JoinSet, time::Instant};
use tower_reprise::store::{
    SqliteStore,
    journal::{Enqueued, EntryId, Journal, NewEntry, QueueBounds},
};

use crate::{
    QUEUE,
    file::{connect, folder},
    middle::{median, upper_quartile},
    report::Report,
};

const TASKS: usize = 256;
const BATCH: usize = TASKS / 2;
const ENTRIES: usize = 16 * BATCH;
const PAYLOAD: usize = 1024;

pub(crate) fn run(report: &mut Report, quick: bool) {
    let folder = folder("journal-accept");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let open = |path: PathBuf| SqliteStore::builder().batch(BATCH).open(path);
    let store = Arc::new(open(folder.join("store.db")).expect("a store"));
    let path = folder.join("bare.db");
    drop(open(path.clone()).expect("a schema"));
    let bare = connect(&path);

    let payload = Bytes::from(vec![7; PAYLOAD]);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..if quick { 11 } else { 41 } {
        theirs.push(bare_loop(&bare, &payload));
        ours.push(runtime.block_on(accepts(&store, TASKS, 0..ENTRIES, &payload)));
    }
    let ratios = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs);
    report.note("accept_ratio_median_of_rounds", median(ratios.collect()));
    // Short turns, and the better ones of each: others use the disk too.
    let (ours, theirs) = (upper_quartile(ours), upper_quartile(theirs));
    report.note("sqlite_accepts_per_second", ours);
    report.note("sqlite_bare_accepts_per_second", theirs);
    report.at_least("accept_ratio", ours / theirs, 0.7);
    drop(store);
    let _ = fs::remove_dir_all(&folder);
}

/// Accepts a second, with that many callers at once; entry `n` is of the lane that its number says.
pub(crate) async fn accepts<J: Journal>(
    journal: &Arc<J>,
    callers: usize,
    entries: Range<usize>,
    payload: &Bytes,
) -> f64 {
    in_lanes(journal, callers, entries, (1, None), payload).await
}

/// The same, in so many lanes, and with these bounds.
pub(crate) async fn in_lanes<J: Journal>(
    journal: &Arc<J>,
    callers: usize,
    entries: Range<usize>,
    (lanes, bounds): (usize, Option<QueueBounds>),
    payload: &Bytes,
) -> f64 {
    let count = entries.len();
    let started = Instant::now();
    let mut running = JoinSet::new();
    for first in entries.start..entries.start + callers {
        let (journal, payload) = (Arc::clone(journal), payload.clone());
        let entries = (first..entries.end).step_by(callers);
        running.spawn(async move {
            for n in entries {
                let entry = NewEntry {
                    lane: match lanes {
                        1 => String::new(),
                        _ => format!("lane {}", n % lanes),
                    },
                    bounds,
                    ..NewEntry::new(QUEUE, payload.clone())
                };
                let enqueued = journal.enqueue(entry).await.expect("enqueue");
                assert!(matches!(enqueued, Enqueued::New(_)), "{enqueued:?}");
            }
        });
    }
    running.join_all().await;
    count as f64 / started.elapsed().as_secs_f64()
}

/// Accepts a second.
fn bare_loop(connection: &Connection, payload: &Bytes) -> f64 {
    let started = Instant::now();
    let prepare = |sql| connection.prepare(sql).expect("a statement");
    let mut begin = prepare("BEGIN IMMEDIATE");
    let mut commit = prepare("COMMIT");
    let mut insert = prepare(
        "INSERT INTO journal (id, queue, lane, owner, label, dedup, fingerprint, priority, status,
           turn, attempts, queued, due, expires, changed, until, history, payload)
         VALUES (?1, ?2, '', '', '', NULL, NULL, 2, 0, 0, 0, ?3, ?3, ?4, ?3, ?3, '', ?5)",
    );
    for batch in 0..ENTRIES / BATCH {
        let now = 1_700_000_000_000_000 + i64::try_from(batch).expect("a number");
        begin.execute([]).expect("begin");
        for _ in 0..BATCH {
            let id = EntryId::random();
            let row = (id.as_bytes(), QUEUE, now, 2 * now, &**payload);
            insert.execute(row).expect("insert");
        }
        commit.execute([]).expect("commit");
    }
    ENTRIES as f64 / started.elapsed().as_secs_f64()
}
