//! T-8: the end that payloads have in common is stored once, and goes with the last entry that needs it.

use std::time::Duration;

use rusqlite::Connection;
use tower_reprise::store::journal::{
    EntryCommand, Journal, LeaseRequest, NewEntry, Settlement, SharedPayload,
};
use tower_reprise::store::{Ownership, StoreErrorKind};

use super::Sqlite;
use crate::support::records::LEASE;

const KEEP: Duration = Duration::from_secs(60);

fn new(shared: &SharedPayload) -> NewEntry {
    NewEntry::new("mails", "own ").ending_in(shared)
}

fn want(limit: u32) -> LeaseRequest {
    LeaseRequest::new("mails", "", limit, LEASE)
}

#[tokio::test]
async fn t_8_a_shared_end_is_stored_once_and_goes_with_the_last_entry() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let shared = SharedPayload::new(vec![b's'; 16 << 10]);
    let entries: Vec<_> = (0..1500).map(|_| new(&shared)).collect();
    let again = entries.clone();
    store.enqueue_many(entries).await.unwrap();
    // Neither a repeat nor a call that comes alone stores it again.
    store.enqueue_many(again).await.unwrap();
    store.enqueue(new(&shared)).await.unwrap();
    let connection = Connection::open(sqlite.folder.file()).unwrap();
    let number = |sql: &str| {
        connection
            .query_row(sql, [], |row| row.get::<_, i64>(0))
            .unwrap()
    };
    let ends = || number("SELECT count(*) FROM journal_shared");
    assert_eq!(ends(), 1);
    assert_eq!(number("SELECT sum(length(payload)) FROM journal"), 4 * 1501);

    let leased = store.lease(want(2000)).await.unwrap();
    assert_eq!(leased.len(), 1501);
    let (last, others) = leased.split_last().unwrap();
    for entry in others {
        assert_eq!(entry.payload.len(), 4 + (16 << 10));
        let done = Settlement::completed("", KEEP);
        let settled = store.settle(entry.id, entry.lease_token, done).await;
        assert_eq!(settled.unwrap(), Ownership::Held);
    }
    let failed = Settlement::failed("", 10 * KEEP);
    let settled = store.settle(last.id, last.lease_token, failed).await;
    assert_eq!(settled.unwrap(), Ownership::Held);
    let needed = "SELECT count(*) FROM journal WHERE shared IS NOT NULL";
    assert_eq!(number(needed), 1, "what is done needs no payload");
    sqlite.time.pass(2 * KEEP);
    while number("SELECT count(*) FROM journal") > 1 {
        store.lease(want(1)).await.unwrap();
    }
    assert_eq!(ends(), 1);
    let found = store.find(last.id).await.unwrap().unwrap();
    assert_eq!(found.payload, last.payload);
    store.command(last.id, EntryCommand::Purge).await.unwrap();
    assert_eq!(ends(), 0);
}

/// T-4: damage to the end is damage to each payload; an end that is not there makes no entry unknown.
#[tokio::test]
async fn t_4_a_damaged_end_is_not_taken_for_what_was_written() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let entry = new(&SharedPayload::new("the end"));
    let id = entry.id;
    store.enqueue(entry).await.unwrap();
    let connection = Connection::open(sqlite.folder.file()).unwrap();
    for damage in [
        "UPDATE journal_shared SET payload = CAST('the enD' AS BLOB)",
        "DELETE FROM journal_shared",
    ] {
        connection.execute(damage, []).unwrap();
        let error = store.find(id).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{damage}");
    }
}
