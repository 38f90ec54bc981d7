use std::{
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use super::{MemoryQueue, MemoryStore};
use crate::store::{
    Ownership, RecordKey,
    journal::{
        CommandResult, Counts, Duplicate, Enqueued, Entry, EntryCommand, EntryId, Erased, Journal,
        LeaseRequest, LeaseToken, NewEntry, Query, Settlement,
    },
    verbs::verbs,
};

impl MemoryStore {
    /// Locks the queues. Nothing panics while they are locked, so that poison means nothing.
    fn queue(&self) -> MutexGuard<'_, MemoryQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal for MemoryStore {
    verbs! { self;
        enqueue(entry: NewEntry) -> Enqueued = async move { self.queue().enqueue(entry) };
        lanes(queue: &str, after: Option<&str>, limit: u32) -> Vec<String>
            = async move { Ok(self.queue().lanes(queue, after, limit)) };
        lease(request: LeaseRequest) -> Vec<Entry> = async move { Ok(self.queue().lease(&request)) };
        extend(id: EntryId, lease_token: LeaseToken, lease: Duration) -> Ownership
            = async move { Ok(self.queue().extend(id, lease_token, lease)) };
        settle(id: EntryId, lease_token: LeaseToken, settlement: Settlement) -> Ownership
            = async move { self.queue().settle(id, lease_token, settlement) };
        bury(entry: NewEntry, attempts: u32, settlement: Settlement) -> Enqueued
            = async move { self.queue().bury(entry, attempts, settlement) };
        command(id: EntryId, command: EntryCommand) -> Option<CommandResult>
            = async move { Ok(self.queue().command(id, command)) };
        erase(queue: &str, owner: &str, limit: u32) -> Erased
            = async move { Ok(self.queue().erase(queue, owner, limit)) };
        find(id: EntryId) -> Option<Entry> = async move { Ok(self.queue().find(id)) };
        find_duplicate(queue: &str, key: RecordKey) -> Option<Duplicate>
            = async move { Ok(self.queue().find_duplicate(queue, key)) };
        list(query: Query) -> Vec<Entry> = async move { Ok(self.queue().list(&query)) };
        counts(queue: &str) -> Counts = async move { Ok(self.queue().counts(queue)) };
        position(id: EntryId, limit: u32) -> Option<u32>
            = async move { Ok(self.queue().position(id, limit)) };
        secret() -> [u8; 32] = async move { Ok(self.queue().secret()) };
    }
}
