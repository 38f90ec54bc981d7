//! Queues that are long already.

use std::path::PathBuf;

use tower_reprise::store::SqliteStore;

use crate::{QUEUE, file::connect};

/// A store with so many entries that are due, behind as many that are not.
pub(crate) fn filled(path: PathBuf, due: u32, later: u32) -> SqliteStore {
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
