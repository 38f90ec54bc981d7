//! Entries of a journal in memory, and how they end.

use std::time::Duration;

use tower_reprise::store::{
    MemoryStore,
    journal::{Entry, EntryId, Journal, Status},
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) async fn find(journal: &MemoryStore, id: EntryId) -> Entry {
    journal.find(id).await.unwrap().unwrap()
}

/// Lets time pass until an entry is over.
pub(crate) async fn ended(journal: &MemoryStore, id: EntryId) -> Status {
    for _ in 0..1_000_000 {
        let status = find(journal, id).await.status;
        if status.is_over() {
            return status;
        }
        tokio::time::sleep(SECOND / 2).await;
    }
    panic!("it never ends");
}

/// The same where time is real: as often as it can.
pub(crate) async fn ended_really(journal: &MemoryStore, id: EntryId) -> Status {
    loop {
        let status = find(journal, id).await.status;
        if status.is_over() {
            return status;
        }
        tokio::task::yield_now().await;
    }
}
