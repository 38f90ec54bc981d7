use std::{
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use super::{MemoryQueue, MemoryStore};
use crate::store::{
    Ownership, RecordKey, StoreError,
    journal::{
        CommandResult, Counts, Duplicate, Enqueued, Entry, EntryCommand, EntryId, Journal,
        LeaseRequest, LeaseToken, NewEntry, Query, Settlement,
    },
};

impl MemoryStore {
    /// Locks the queues. Nothing panics while they are locked, so that poison means nothing.
    fn queue(&self) -> MutexGuard<'_, MemoryQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal for MemoryStore {
    async fn enqueue(&self, entry: NewEntry) -> Result<Enqueued, StoreError> {
        self.queue().enqueue(entry)
    }

    async fn lanes(
        &self,
        queue: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        Ok(self.queue().lanes(queue, after, limit))
    }

    async fn lease(&self, request: LeaseRequest) -> Result<Vec<Entry>, StoreError> {
        Ok(self.queue().lease(&request))
    }

    async fn extend(
        &self,
        id: EntryId,
        lease_token: LeaseToken,
        lease: Duration,
    ) -> Result<Ownership, StoreError> {
        Ok(self.queue().extend(id, lease_token, lease))
    }

    async fn settle(
        &self,
        id: EntryId,
        lease_token: LeaseToken,
        settlement: Settlement,
    ) -> Result<Ownership, StoreError> {
        self.queue().settle(id, lease_token, settlement)
    }

    async fn bury(
        &self,
        entry: NewEntry,
        attempts: u32,
        settlement: Settlement,
    ) -> Result<Enqueued, StoreError> {
        self.queue().bury(entry, attempts, settlement)
    }

    async fn command(
        &self,
        id: EntryId,
        command: EntryCommand,
    ) -> Result<Option<CommandResult>, StoreError> {
        Ok(self.queue().command(id, command))
    }

    async fn find(&self, id: EntryId) -> Result<Option<Entry>, StoreError> {
        Ok(self.queue().find(id))
    }

    async fn find_duplicate(
        &self,
        queue: &str,
        key: RecordKey,
    ) -> Result<Option<Duplicate>, StoreError> {
        Ok(self.queue().find_duplicate(queue, key))
    }

    async fn list(&self, query: Query) -> Result<Vec<Entry>, StoreError> {
        Ok(self.queue().list(&query))
    }

    async fn counts(&self, queue: &str) -> Result<Counts, StoreError> {
        Ok(self.queue().counts(queue))
    }

    async fn position(&self, id: EntryId, limit: u32) -> Result<Option<u32>, StoreError> {
        Ok(self.queue().position(id, limit))
    }

    async fn secret(&self) -> Result<[u8; 32], StoreError> {
        Ok(self.queue().secret())
    }
}
