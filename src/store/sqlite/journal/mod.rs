//! The journal, in the same file as the records. The writer thread makes its transitions, in one
//! transaction with whatever else is queued there; the reader thread answers the rest.

/// The columns that `row::summary` reads.
macro_rules! summary {
    () => {
        "sequence, id, queue, lane, owner, label, priority, status, turn, attempts, queued, due, \
         expires, changed, redrives, cause, repeats"
    };
}

/// The columns that `row::whole` reads.
macro_rules! whole {
    () => {
        concat!(
            summary!(),
            ", result, history, id, queue, lane, owner, label, fingerprint, payload, checksum"
        )
    };
}

mod lease;
mod read;
mod row;
mod write;

use std::time::Duration;

use bytes::Bytes;

pub(super) use self::write::sweep;
use super::SqliteStore;
use crate::store::{
    Ownership, RecordKey, StoreError,
    journal::{
        CommandResult, Counts, Duplicate, Enqueued, Entry, EntryCommand, EntryId, Journal,
        LeaseRequest, LeaseToken, NewEntry, Query, Settlement,
    },
};

impl Journal for SqliteStore {
    async fn enqueue(&self, entry: NewEntry) -> Result<Enqueued, StoreError> {
        self.writer
            .call_new(entry.payload.len(), move |batch| {
                write::enqueue(batch, &entry)
            })
            .await
    }

    async fn lanes(
        &self,
        queue: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        let (queue, after) = (queue.to_owned(), after.map(str::to_owned));
        self.reader
            .call(0, move |batch| {
                read::lanes(batch, &queue, after.as_deref(), limit)
            })
            .await
    }

    async fn lease(&self, request: LeaseRequest) -> Result<Vec<Entry>, StoreError> {
        self.writer
            .call(0, move |batch| lease::lease(batch, &request))
            .await
    }

    async fn extend(
        &self,
        id: EntryId,
        lease_token: LeaseToken,
        lease: Duration,
    ) -> Result<Ownership, StoreError> {
        self.writer
            .call(0, move |batch| write::extend(batch, id, lease_token, lease))
            .await
    }

    async fn settle(
        &self,
        id: EntryId,
        lease_token: LeaseToken,
        settlement: Settlement,
    ) -> Result<Ownership, StoreError> {
        let outbox = settlement.outbox.iter().map(|new| new.payload.len());
        let result = settlement.result.iter().map(Bytes::len);
        self.writer
            .call(outbox.chain(result).sum(), move |batch| {
                write::settle(batch, id, lease_token, &settlement)
            })
            .await
    }

    async fn bury(
        &self,
        entry: NewEntry,
        attempts: u32,
        settlement: Settlement,
    ) -> Result<Enqueued, StoreError> {
        let outbox = settlement.outbox.iter().map(|new| new.payload.len());
        let bytes = entry.payload.len() + outbox.sum::<usize>();
        self.writer
            .call(bytes, move |batch| {
                write::bury(batch, &entry, attempts, &settlement)
            })
            .await
    }

    async fn command(
        &self,
        id: EntryId,
        command: EntryCommand,
    ) -> Result<Option<CommandResult>, StoreError> {
        self.writer
            .call(0, move |batch| write::command(batch, id, command))
            .await
    }

    async fn find(&self, id: EntryId) -> Result<Option<Entry>, StoreError> {
        self.reader
            .call(0, move |batch| read::find(batch, id))
            .await
    }

    async fn find_duplicate(
        &self,
        queue: &str,
        key: RecordKey,
    ) -> Result<Option<Duplicate>, StoreError> {
        let queue = queue.to_owned();
        self.reader
            .call(0, move |batch| read::find_duplicate(batch, &queue, key))
            .await
    }

    async fn list(&self, query: Query) -> Result<Vec<Entry>, StoreError> {
        self.reader
            .call(0, move |batch| read::list(batch, &query))
            .await
    }

    async fn counts(&self, queue: &str) -> Result<Counts, StoreError> {
        let queue = queue.to_owned();
        self.reader
            .call(0, move |batch| read::counts(batch, &queue))
            .await
    }

    async fn position(&self, id: EntryId, limit: u32) -> Result<Option<u32>, StoreError> {
        self.reader
            .call(0, move |batch| read::position(batch, id, limit))
            .await
    }

    async fn secret(&self) -> Result<[u8; 32], StoreError> {
        self.reader.call(0, read::secret).await
    }
}
