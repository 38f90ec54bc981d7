//! The SQLite store at 256 concurrent requests, next to a loop without any store: one thread, the
//! same file layout, pragmas and statements, and as many in a transaction as the store may take:
//! half of what is under way, so that one half is on its way while the other is committed.

use std::{fs, path::PathBuf, sync::Arc};

use rusqlite::Connection;
use tokio::time::Instant;
use tower_reprise::store::{SqliteStore, Stored};

use crate::{
    file::{connect, folder},
    middle::upper_quartile,
    report::Report,
    work::{claim, reply, throughput},
};

const TASKS: u64 = 256;
const BATCH: u64 = TASKS / 2;
/// Of a turn, which begins and ends with batches that are not full.
const OPERATIONS: u64 = 64 * BATCH;
const ROUNDS: u64 = 21;
const REPLY: usize = 1024;

pub(crate) fn run(report: &mut Report) {
    let folder = folder("stores-sqlite");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let batch = usize::try_from(BATCH).expect("a number");
    let open = |path: PathBuf| SqliteStore::builder().batch(batch).open(path);
    let store = Arc::new(open(folder.join("store.db")).expect("a store"));
    let path = folder.join("bare.db");
    drop(open(path.clone()).expect("a schema"));
    let bare = connect(&path);

    let reply = reply(REPLY);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let operations = round * OPERATIONS..(round + 1) * OPERATIONS;
        theirs.push(bare_loop(&bare, operations.clone(), &reply));
        ours.push(runtime.block_on(throughput(&store, TASKS, operations, &reply)));
    }
    // Short turns, and the better ones of each: others use the disk too.
    let (ours, theirs) = (upper_quartile(ours), upper_quartile(theirs));
    report.note("sqlite_transitions_per_second", ours);
    report.note("sqlite_bare_transitions_per_second", theirs);
    report.at_least("sqlite_ratio", ours / theirs, 0.9);
    drop(store);
    let _ = fs::remove_dir_all(&folder);
}

/// Transitions a second.
fn bare_loop(connection: &Connection, operations: std::ops::Range<u64>, reply: &Stored) -> f64 {
    let Stored::Reply(reply) = reply else {
        panic!("a reply is stored");
    };
    let count = operations.end - operations.start;
    let started = Instant::now();
    let prepare = |sql| connection.prepare(sql).expect("a statement");
    let mut begin = prepare("BEGIN IMMEDIATE");
    let mut commit = prepare("COMMIT");
    let mut find = prepare(
        "SELECT token, fingerprint, claim, lease_until, expires, state, reply
         FROM idempotency WHERE key = ?1",
    );
    let mut insert = prepare(
        "INSERT INTO idempotency (key, fingerprint, claim, lease_until, expires, state)
         VALUES (?1, ?2, ?3, ?4, ?5, 0)",
    );
    let mut complete = prepare(
        "UPDATE idempotency SET state = 1, reply = ?3, expires = ?4
         WHERE token = ?1 AND key = ?2 AND state = 0 AND expires > ?5",
    );
    let (now, later) = (1_700_000_000_000_000_i64, 1_800_000_000_000_000_i64);
    let mut tokens = Vec::new();
    for first in operations.step_by(usize::try_from(BATCH).expect("a number")) {
        begin.execute([]).expect("begin");
        for n in first..first + BATCH {
            let claim = claim(n);
            assert!(!find.exists([claim.key.as_bytes()]).expect("find"));
            let (fingerprint, id) = (claim.fingerprint.as_bytes(), claim.id.as_bytes());
            let row = (claim.key.as_bytes(), fingerprint, id, later, later);
            insert.execute(row).expect("insert");
            tokens.push((claim.key, connection.last_insert_rowid()));
        }
        commit.execute([]).expect("commit");
        begin.execute([]).expect("begin");
        for (key, token) in tokens.drain(..) {
            let row = (token, key.as_bytes(), &**reply, later, now);
            assert_eq!(complete.execute(row).expect("complete"), 1);
        }
        commit.execute([]).expect("commit");
    }
    2.0 * count as f64 / started.elapsed().as_secs_f64()
}
