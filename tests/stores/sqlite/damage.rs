//! Files that are damaged: refused, or answered from as if they were not; never taken for empty.

use std::fs;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use rusqlite::Connection;
use tower_reprise::store::{
    Claimed, IdempotencyStore, SqliteStore, StoreError, StoreErrorKind, journal::Journal,
};

use super::{Sqlite, queue::queue, reply};
use crate::support::records::{claim, own};

const RECORDS: u64 = 50;
const PAGE: usize = 4096;

/// A file with finished operations, as it is after a clean stop.
async fn finished() -> (Sqlite, Vec<u8>) {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let mut owned = Vec::new();
    for key in 0..RECORDS {
        owned.push((key, own(&store, claim(key)).await, reply(500)));
    }
    queue(&store, owned).await.join_all().await;
    drop(store);
    let bytes = settled(&sqlite);
    (sqlite, bytes)
}

/// The bytes of the file, with all that was in the log.
fn settled(sqlite: &Sqlite) -> Vec<u8> {
    let connection = Connection::open(sqlite.folder.file()).unwrap();
    let patience = std::time::Duration::from_secs(10);
    connection.busy_timeout(patience).unwrap();
    let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
    let busy: i64 = connection
        .query_row(checkpoint, [], |row| row.get(0))
        .unwrap();
    assert_eq!(busy, 0);
    drop(connection);
    fs::read(sqlite.folder.file()).unwrap()
}

fn open(sqlite: &Sqlite, bytes: &[u8]) -> Result<SqliteStore, StoreError> {
    for beside in ["-wal", "-shm"] {
        let _ = fs::remove_file(format!("{}{beside}", sqlite.folder.file().display()));
    }
    fs::write(sqlite.folder.file(), bytes).unwrap();
    sqlite.time.store().open(sqlite.folder.file())
}

/// The repeat of a finished operation finds its reply, or an error.
async fn never_again(store: &SqliteStore, what: &str) {
    for key in 0..RECORDS {
        match store.claim(claim(key)).await {
            Ok(claimed) => assert_eq!(claimed, Claimed::done(reply(500)), "{what}: {key}"),
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{what}: {error}"),
        }
    }
}

/// T-4: in 50 of 50 the operation was executed again, since a key was not found.
#[tokio::test]
async fn t_4_garbage_in_the_middle_of_the_file_is_refused() {
    let (sqlite, whole) = finished().await;
    let pages = whole.len() / PAGE;
    assert!(pages > 15, "{pages}");
    let middle = |bytes: &mut [u8], fill: u8| {
        for page in bytes.chunks_mut(PAGE).skip(1) {
            page[PAGE / 2..PAGE - 200].fill(fill);
        }
    };
    for fill in [0, 0x55, 0xff] {
        let mut bytes = whole.clone();
        middle(&mut bytes, fill);
        let error = open(&sqlite, &bytes).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("idempotency.db"), "{error}");
    }
    let store = open(&sqlite, &whole).unwrap();
    never_again(&store, "undamaged").await;
}

#[tokio::test]
async fn t_4_a_file_that_was_cut_is_refused() {
    let (sqlite, whole) = finished().await;
    for length in [whole.len() / 2, whole.len() - PAGE, whole.len() / 2 + 100] {
        let error = open(&sqlite, &whole[..length]).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{length}: {error}");
    }
    // Also while there is a log that goes beyond the cut.
    let store = open(&sqlite, &whole).unwrap();
    own(&store, claim(RECORDS)).await;
    let file = fs::File::options()
        .write(true)
        .open(sqlite.folder.file())
        .unwrap();
    file.set_len(whole.len() as u64 / 2).unwrap();
    let error = sqlite.time.store().open(sqlite.folder.file()).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
    drop(store);
}

/// Any few bytes, anywhere.
#[tokio::test]
async fn t_4_no_damage_makes_a_finished_operation_run_again() {
    let (sqlite, whole) = finished().await;
    let (mut refused, mut random) = (0, StdRng::seed_from_u64(7));
    for round in 0..150 {
        let mut bytes = whole.clone();
        let from = random.random_range(PAGE..bytes.len() - 64);
        let length = random.random_range(1..64);
        random.fill(&mut bytes[from..from + length]);
        match open(&sqlite, &bytes) {
            Ok(store) => never_again(&store, &format!("round {round}, {length} at {from}")).await,
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 5, "{refused}");
}

/// The file is open while a row of it changes, or a page: the store is of no use from then on.
#[tokio::test]
async fn t_4_damage_that_was_seen_fails_all_verbs_for_good() {
    for nonsense in [
        "state = 9",
        "state = 1",
        "fingerprint = x'01'",
        "claim = x'01'",
        "expires = 1 << 60",
        "reply = x'00'",
        "note = x'00'",
    ] {
        let sqlite = Sqlite::new();
        let store = sqlite.open();
        own(&store, claim(1)).await;
        let token = own(&store, claim(2)).await;
        let sql = format!("UPDATE idempotency SET {nonsense} WHERE token < {token}");
        let connection = Connection::open(sqlite.folder.file()).unwrap();
        assert_eq!(connection.execute(&sql, []).unwrap(), 1);
        let error = store.claim(claim(1)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{nonsense}: {error}");
        for error in [
            store.claim(claim(3)).await.map(drop).unwrap_err(),
            store
                .release(claim(2).key, token)
                .await
                .map(drop)
                .unwrap_err(),
            store.lanes("replay", None, 1).await.map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{nonsense}: {error}");
            assert!(!error.is_transient(), "{error}");
        }
    }
}
