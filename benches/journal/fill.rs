//! Queues that are long already.

use std::{path::PathBuf, time::Duration};

use bytes::Bytes;
use tokio::runtime::Runtime;
use tower_reprise::store::{
    SqliteStore,
    journal::{Journal, NewEntry},
};

use crate::{QUEUE, file::connect};

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Entries of one call.
const CHUNK: u32 = 10_000;

/// A store with so many entries that are due, behind as many that are not.
pub(crate) fn filled(path: PathBuf, due: u32, later: u32) -> SqliteStore {
    fill(&path, later, |_| waiting(String::new()));
    fill(&path, due, |_| entry());
    checkpointed(path)
}

/// A store with so many entries that wait for their next attempt, each in a lane of its own, and some
/// that are due in another one.
#[allow(dead_code, reason = "of one of both benchmarks")]
pub(crate) fn with_lanes(path: PathBuf, lanes: u32, due: u32) -> SqliteStore {
    fill(&path, lanes, |n| waiting(format!("lane {n}")));
    fill(&path, due, |_| entry());
    checkpointed(path)
}

/// A store with so many entries that are done.
#[allow(dead_code, reason = "of one of both benchmarks")]
pub(crate) fn with_finished(path: PathBuf, finished: u32) -> SqliteStore {
    fill(&path, finished, |_| entry());
    let connection = connect(&path);
    let finish = "UPDATE journal SET status = 2, until = expires";
    connection.execute(finish, []).expect("an update");
    drop(connection);
    checkpointed(path)
}

fn entry() -> NewEntry {
    NewEntry {
        ttl: YEAR,
        ..NewEntry::new(QUEUE, Bytes::from_static(&[7; 128]))
    }
}

fn waiting(lane: String) -> NewEntry {
    NewEntry {
        lane,
        delay: YEAR / 2,
        ..entry()
    }
}

fn fill(path: &PathBuf, entries: u32, new: impl Fn(u32) -> NewEntry) {
    let store = SqliteStore::open(path).expect("a store");
    let runtime = Runtime::new().expect("a runtime");
    for start in (0..entries).step_by(CHUNK as usize) {
        let some = (start..entries.min(start + CHUNK)).map(&new).collect();
        let enqueued = runtime.block_on(store.enqueue_many(some));
        enqueued.expect("enqueue_many");
    }
}

/// Opens a store whose log is in its file.
fn checkpointed(path: PathBuf) -> SqliteStore {
    let connection = connect(&path);
    let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
    let checkpointed = connection.query_row(checkpoint, [], |row| row.get::<_, i64>(0));
    assert_eq!(checkpointed.expect("a checkpoint"), 0);
    drop(connection);
    SqliteStore::open(path).expect("a store")
}
