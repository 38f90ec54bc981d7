//! The clock, the sweep and the version of the schema.

use std::time::Duration;

use rusqlite::Connection;
use tokio::task::JoinSet;
use tower_reprise::store::journal::{EntryCommand, Journal, LeaseRequest, NewEntry, Settlement};
use tower_reprise::store::{IdempotencyStore, Ownership, SqliteStore, StoreErrorKind, Stored};

use super::{Folder, Sqlite, reply};
use crate::support::records::{LEASE, RETENTION, claim, complete, own};

#[tokio::test]
async fn t_3_a_clock_that_is_set_back_gives_no_smaller_tokens() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let before = own(&store, claim(1)).await;
    let released = store.release(claim(1).key, before).await;
    assert_eq!(released.unwrap(), Ownership::Held);
    sqlite.time.go_back(Duration::from_secs(24 * 60 * 60));
    assert!(own(&store, claim(1)).await > before);
    assert!(own(&sqlite.open(), claim(2)).await > before);
}

#[tokio::test]
async fn t_3_a_clock_that_is_set_forward_fences_the_owner() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let stale = own(&store, claim(1)).await;
    sqlite.time.pass(LEASE);
    let token = own(&store, claim(1)).await;
    let late = store.complete(claim(1).key, stale, reply(1), RETENTION);
    assert_eq!(late.await.unwrap(), Ownership::Lost);
    complete(&store, 1, token, reply(2)).await;
}

fn rows(folder: &Folder) -> i64 {
    let connection = Connection::open(folder.file()).unwrap();
    let count = "SELECT count(*) FROM idempotency";
    connection.query_row(count, [], |row| row.get(0)).unwrap()
}

pub(super) async fn until_rows_are(count: i64, folder: &Folder) {
    let swept = async {
        while rows(folder) != count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let patience = Duration::from_secs(30);
    tokio::time::timeout(patience, swept).await.expect("swept");
}

#[tokio::test]
async fn t_3_what_is_past_its_time_is_swept() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let mut claims = JoinSet::new();
    for key in 0..1_000 {
        let store = store.clone();
        claims.spawn(async move { own(&store, claim(key)).await });
    }
    let tokens = claims.join_all().await;
    sqlite.time.pass(RETENTION);
    let live = own(&store, claim(5_000)).await;
    assert_eq!(rows(&sqlite.folder), 1_001, "none is past its time");
    sqlite.time.pass(LEASE);

    // It sweeps when it is opened, whether or not anybody asks for anything.
    drop(store);
    let store = sqlite.open();
    until_rows_are(1, &sqlite.folder).await;
    complete(&store, 5_000, live, reply(1)).await;
    assert!(own(&store, claim(1)).await > tokens.into_iter().max().unwrap());
}

// --- the schema ---------------------------------------------------------------------------------

fn set_version(folder: &Folder, version: i64) {
    let connection = Connection::open(folder.file()).unwrap();
    connection
        .pragma_update(None, "user_version", version)
        .unwrap();
}

fn version(folder: &Folder) -> i64 {
    let connection = Connection::open(folder.file()).unwrap();
    let version = connection.pragma_query_value(None, "user_version", |row| row.get(0));
    version.unwrap()
}

#[tokio::test]
async fn t_5_a_newer_schema_is_refused() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let token = own(&store, claim(1)).await;
    let known = version(&sqlite.folder);
    set_version(&sqlite.folder, known + 1);

    let error = SqliteStore::open(sqlite.folder.file()).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NewerSchema);
    let message = error.to_string();
    let expected = format!(
        "idempotency.db: the schema is version {}, written by a newer release; this one knows up to {known}",
        known + 1
    );
    assert!(message.contains(&expected), "{message}");

    // Also if the newer one came while this one was running.
    for error in [
        store.claim(claim(1)).await.unwrap_err(),
        store.claim(claim(2)).await.unwrap_err(),
        store.release(claim(1).key, token).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::NewerSchema);
        assert!(!error.may_have_happened());
    }
    // Nothing is kept locked meanwhile.
    set_version(&sqlite.folder, known);
    complete(&store, 1, token, reply(1)).await;
}

/// Schemas were changed before they were released.
#[test]
fn t_5_a_file_of_before_the_release_is_refused_when_it_is_opened() {
    for column in ["idempotency.reply", "journal.label"] {
        let folder = Folder::new();
        drop(SqliteStore::open(folder.file()).unwrap());
        drop(SqliteStore::open(folder.file()).unwrap());
        let known = version(&folder);
        let (table, name) = column.split_once('.').unwrap();
        let connection = Connection::open(folder.file()).unwrap();
        connection
            .execute_batch(&format!("ALTER TABLE {table} DROP COLUMN {name}"))
            .unwrap();
        let error = SqliteStore::open(folder.file()).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Other);
        let message = error.to_string();
        let says = format!("says version {known}, and has no {column}");
        assert!(message.contains(&says), "{message}");
    }
}

#[test]
fn t_5_another_applications_database_is_left_alone() {
    let folder = Folder::new();
    let connection = Connection::open(folder.file()).unwrap();
    connection
        .execute_batch("CREATE TABLE accounts (id)")
        .unwrap();
    let error = SqliteStore::open(folder.file()).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("another application's database"),
        "{message}"
    );
    let mode: String = connection
        .pragma_query_value(None, "journal_mode", |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "delete", "nothing was changed");
}

#[test]
fn t_5_many_that_create_the_file_at_once() {
    for _ in 0..20 {
        let folder = Folder::new();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| SqliteStore::open(folder.file()).unwrap());
            }
        });
    }
}

/// T-5: 002 and 003 recommend columns for the function and the version of a call.
#[cfg(all(feature = "forrst", feature = "delivery"))]
#[tokio::test]
async fn t_5_function_and_version_of_a_call_are_columns() {
    use crate::calls::{CALLS, make};

    let sqlite = Sqlite::new();
    let store = sqlite.open();
    make(store.clone()).await;
    own(&store, claim(1)).await; // of plain HTTP
    let connection = Connection::open(sqlite.folder.file()).unwrap();
    let rows = |sql: &str| {
        let mut statement = connection.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        rows.unwrap().collect::<Result<Vec<_>, _>>().unwrap()
    };
    let owned = |(function, version): (&str, Option<&str>), more: &str| {
        (
            Some(format!("{function}{more}")),
            version.map(str::to_owned),
        )
    };
    let calls: Vec<(Option<String>, Option<String>)> = CALLS.map(|call| owned(call, "")).to_vec();
    let mut records = rows("SELECT function, version FROM idempotency ORDER BY token");
    assert_eq!(records.pop(), Some((None, None)));
    assert_eq!(records, calls);
    let entries = rows("SELECT label, version FROM journal ORDER BY sequence");
    assert_eq!(entries, CALLS.map(|call| owned(call, "!")).to_vec());
}

/// I-27, T-5: a file of version 5 knows nobody's policy; what may be of unknown outcome is listed.
#[tokio::test]
async fn i_27_t_5_unknown_outcomes_of_an_older_file_are_listed() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    for (key, stored) in [(1, Stored::Unknown), (2, reply(2))] {
        let token = own(&store, claim(key)).await;
        complete(&store, key, token, stored).await;
    }
    own(&store, claim(3)).await;
    drop(store);
    take_back_to_5(&sqlite.folder);

    sqlite.time.pass(LEASE);
    let page = sqlite.open().unknown_outcomes(None, 10).await.unwrap();
    let keys: Vec<_> = page.outcomes.iter().map(|unknown| unknown.key).collect();
    assert_eq!(keys, [claim(1).key, claim(3).key]);
}

/// Makes a file one of version 5.
fn take_back_to_5(folder: &Folder) {
    let connection = Connection::open(folder.file()).unwrap();
    let back = "DROP INDEX idempotency_watched; ALTER TABLE idempotency DROP COLUMN watched;
        DROP TRIGGER journal_opened; DROP TRIGGER journal_reopened; DROP TRIGGER journal_closed;
        DROP TRIGGER journal_removed; DROP TABLE journal_open;
        DROP TRIGGER journal_finish; DROP TRIGGER journal_redrive; DROP TRIGGER journal_sweep;
        DROP TRIGGER journal_queued; DROP TABLE journal_states;
        DROP INDEX journal_expiring; DROP INDEX journal_waiting;
        DROP TRIGGER journal_unshared; DROP TRIGGER journal_released; DROP INDEX journal_sharing;
        DROP TABLE journal_shared; ALTER TABLE journal DROP COLUMN shared;
        ALTER TABLE journal DROP COLUMN bounded; ALTER TABLE journal DROP COLUMN reason";
    connection.execute_batch(back).unwrap();
    drop(connection);
    set_version(folder, 5);
}

/// T-5: a queue of which only dead letters are left when the file is updated.
#[tokio::test]
async fn t_5_an_older_file_counts_what_is_redriven() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let fail = async |store: &SqliteStore| {
        for entry in store.lease(want(9)).await.unwrap() {
            let failed = Settlement::failed("404", RETENTION);
            let settled = store.settle(entry.id, entry.lease_token, failed).await;
            assert_eq!(settled.unwrap(), Ownership::Held);
        }
    };
    let entries = [(); 2].map(|()| NewEntry::new("mails", "payload"));
    let id = entries[0].id;
    store.enqueue_many(entries.into()).await.unwrap();
    fail(&store).await;
    drop(store);
    take_back_to_5(&sqlite.folder);

    let store = sqlite.open();
    let counts = async || store.counts("mails").await.unwrap().by_status;
    assert_eq!(counts().await, [0, 0, 0, 2, 0, 0]);
    let redriven = store.command(id, EntryCommand::Redrive(RETENTION)).await;
    assert!(redriven.unwrap().is_some_and(|redriven| redriven.applied));
    assert_eq!(counts().await, [1, 0, 0, 1, 0, 0]);
    fail(&store).await;
    assert_eq!(counts().await, [0, 0, 0, 2, 0, 0]);
}

fn want(limit: u32) -> LeaseRequest {
    LeaseRequest::new("mails", "", limit, LEASE)
}
