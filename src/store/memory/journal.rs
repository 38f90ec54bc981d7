use std::{
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use super::{Book, MemoryStore};
use crate::store::{
    Ownership, StoreError,
    journal::{
        CommandResult, Counts, Enqueued, Entry, EntryCommand, EntryId, Journal, LeaseRequest,
        LeaseToken, NewEntry, Query, Settlement,
    },
};

impl MemoryStore {
    /// Nothing panics while it is held.
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal for MemoryStore {
    async fn enqueue(&self, entry: NewEntry) -> Result<Enqueued, StoreError> {
        self.book().enqueue(entry)
    }

    async fn lanes(
        &self,
        queue: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        Ok(self.book().lanes(queue, after, limit))
    }

    async fn lease(&self, want: LeaseRequest) -> Result<Vec<Entry>, StoreError> {
        Ok(self.book().lease(&want))
    }

    async fn extend(
        &self,
        id: EntryId,
        turn: LeaseToken,
        lease: Duration,
    ) -> Result<Ownership, StoreError> {
        Ok(self.book().extend(id, turn, lease))
    }

    async fn settle(
        &self,
        id: EntryId,
        turn: LeaseToken,
        settle: Settlement,
    ) -> Result<Ownership, StoreError> {
        self.book().settle(id, turn, settle)
    }

    async fn command(
        &self,
        id: EntryId,
        command: EntryCommand,
    ) -> Result<Option<CommandResult>, StoreError> {
        Ok(self.book().command(id, command))
    }

    async fn find(&self, id: EntryId) -> Result<Option<Entry>, StoreError> {
        Ok(self.book().find(id))
    }

    async fn list(&self, query: Query) -> Result<Vec<Entry>, StoreError> {
        Ok(self.book().list(&query))
    }

    async fn counts(&self, queue: &str) -> Result<Counts, StoreError> {
        Ok(self.book().counts(queue))
    }

    async fn position(&self, id: EntryId, limit: u32) -> Result<Option<u32>, StoreError> {
        Ok(self.book().position(id, limit))
    }

    async fn secret(&self) -> Result<[u8; 32], StoreError> {
        Ok(self.book().secret())
    }
}
