//! Queues that are long already.

use std::path::PathBuf;

use tower_reprise::store::SqliteStore;

use crate::{QUEUE, file::connect};

/// A store with so many entries that are due, behind as many that are not.
pub(crate) fn filled(path: PathBuf, due: u32, later: u32) -> SqliteStore {
    let (status, lane) = (0, "''");
    fill(
        path,
        [
            Rows {
                entries: later,
                due: FAR_OFF,
                status,
                lane,
            },
            Rows {
                entries: due,
                due: LONG_AGO,
                status,
                lane,
            },
        ],
    )
}

/// A store with so many entries that wait for their next attempt, each in a lane of its own, and some
/// that are due in another one.
#[allow(dead_code, reason = "of one of both benchmarks")]
pub(crate) fn with_lanes(path: PathBuf, waiting: u32, due: u32) -> SqliteStore {
    let rows = |entries, due, lane| Rows {
        entries,
        due,
        status: 0,
        lane,
    };
    fill(
        path,
        [
            rows(waiting, FAR_OFF, "'lane ' || n"),
            rows(due, LONG_AGO, "''"),
        ],
    )
}

/// A store with so many entries that are done.
#[allow(dead_code, reason = "of one of both benchmarks")]
pub(crate) fn with_finished(path: PathBuf, finished: u32) -> SqliteStore {
    let (due, lane) = (LONG_AGO, "''");
    fill(
        path,
        [Rows {
            entries: finished,
            due,
            status: 2,
            lane,
        }],
    )
}

const LONG_AGO: i64 = 1_700_000_000_000_000;
const FAR_OFF: i64 = 4_000_000_000_000_000;
const FARTHER_OFF: i64 = 5_000_000_000_000_000;

/// Entries of one kind.
struct Rows {
    entries: u32,
    due: i64,
    status: u8,
    /// An expression.
    lane: &'static str,
}

fn fill(path: PathBuf, rows: impl IntoIterator<Item = Rows>) -> SqliteStore {
    drop(SqliteStore::open(&path).expect("a schema"));
    let connection = connect(&path);
    // Only to fill it.
    let hurry = "PRAGMA synchronous = off; PRAGMA cache_size = -400000;";
    connection.execute_batch(hurry).expect("pragmas");
    for Rows {
        entries,
        due,
        status,
        lane,
    } in rows
    {
        let sql = format!(
            "WITH RECURSIVE entries (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM entries LIMIT ?1)
             INSERT INTO journal (id, queue, lane, owner, label, priority, status, turn, attempts,
               queued, due, expires, changed, until, history, payload)
             SELECT randomblob(16), ?2, {lane}, '', '', 2, ?3, 0, 0, ?4, ?5 + n, ?6, ?4, ?6, '',
               randomblob(128)
             FROM entries WHERE ?1 > 0"
        );
        let row = (entries, QUEUE, status, LONG_AGO, due, FARTHER_OFF);
        connection.execute(&sql, row).expect("entries");
    }
    let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
    let checkpointed = connection.query_row(checkpoint, [], |row| row.get::<_, i64>(0));
    assert_eq!(checkpointed.expect("a checkpoint"), 0);
    drop(connection);
    SqliteStore::open(path).expect("a store")
}
