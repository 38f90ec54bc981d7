//! Workers, webhooks and dead letters on a journal.
#![cfg(all(feature = "delivery", feature = "axum"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

mod dead_letters;
mod slow_journal;
mod webhooks;
mod worker;

use std::time::Duration;

use tower_reprise::store::{
    MemoryStore,
    journal::{Entry, EntryId, Journal, Status},
};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

async fn find(journal: &MemoryStore, id: EntryId) -> Entry {
    journal.find(id).await.unwrap().unwrap()
}

/// Lets time pass until an entry is over.
async fn ended(journal: &MemoryStore, id: EntryId) -> Status {
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
async fn ended_really(journal: &MemoryStore, id: EntryId) -> Status {
    loop {
        let status = find(journal, id).await.status;
        if status.is_over() {
            return status;
        }
        tokio::task::yield_now().await;
    }
}
