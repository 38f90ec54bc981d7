//! The journal, in the same file as the records. The writer thread makes its transitions, in one
//! transaction with whatever else is queued there; the reader thread answers the rest.

/// The columns that `row::summary` reads.
macro_rules! summary {
    () => {
        "sequence, id, queue, lane, owner, label, priority, status, turn, attempts, queued, due, \
         expires, changed, redrives, cause, repeats, reason"
    };
}

/// The columns that `row::whole` reads.
macro_rules! whole {
    () => {
        concat!(
            summary!(),
            ", result, history, id, queue, lane, owner, label, fingerprint, payload, checksum, shared"
        )
    };
}

mod erase;
mod lease;
mod read;
mod row;
mod write;

use std::time::Duration;

use bytes::Bytes;

pub(super) use self::write::sweep;
use super::SqliteStore;
use crate::store::{
    Ownership, RecordKey,
    journal::{
        CommandResult, Counts, Duplicate, Enqueued, Entry, EntryCommand, EntryId, Erased, Journal,
        LeaseRequest, LeaseToken, NewEntry, Query, Settlement, stored_bytes,
    },
    verbs::verbs,
};

/// The most entries of one call in one commit.
const COMMIT: usize = 1000;

impl Journal for SqliteStore {
    verbs! { self;
        enqueue(entry: NewEntry) -> Enqueued
            = self.writer.call_new(entry.payload.len(), move |batch| write::enqueue(batch, &entry));
        enqueue_many(entries: Vec<NewEntry>) -> Vec<Enqueued> = async move {
            let mut enqueued = Vec::with_capacity(entries.len());
            let mut entries = entries.into_iter().peekable();
            while entries.peek().is_some() {
                // Others wait meanwhile: not for all of them.
                let some: Vec<_> = entries.by_ref().take(COMMIT).collect();
                let bytes = stored_bytes(&some);
                let some = self.writer.call_new(bytes, move |batch| {
                    some.iter().map(|new| write::enqueue(batch, new)).collect::<Result<Vec<_>, _>>()
                });
                enqueued.extend(some.await?);
            }
            Ok(enqueued)
        };
        lanes(queue: &str, after: Option<&str>, limit: u32) -> Vec<String> = {
            let (queue, after) = (queue.to_owned(), after.map(str::to_owned));
            self.reader.call(0, move |batch| {
                read::lanes(batch, &queue, after.as_deref(), limit)
            })
        };
        lease(request: LeaseRequest) -> Vec<Entry>
            = self.writer.call(0, move |batch| lease::lease(batch, &request));
        extend(id: EntryId, lease_token: LeaseToken, lease: Duration) -> Ownership
            = self.writer.call(0, move |batch| write::extend(batch, id, lease_token, lease));
        settle(id: EntryId, lease_token: LeaseToken, settlement: Settlement) -> Ownership
            = self.writer.call(bytes(&settlement), move |batch| {
                write::settle(batch, id, lease_token, &settlement)
            });
        bury(entry: NewEntry, attempts: u32, settlement: Settlement) -> Enqueued
            = self.writer.call(entry.payload.len() + bytes(&settlement), move |batch| {
                write::bury(batch, &entry, attempts, &settlement)
            });
        command(id: EntryId, command: EntryCommand) -> Option<CommandResult>
            = self.writer.call(0, move |batch| write::command(batch, id, command));
        erase(queue: &str, owner: &str, limit: u32) -> Erased = {
            let (queue, owner) = (queue.to_owned(), owner.to_owned());
            self.writer.call(0, move |batch| erase::erase(batch, &queue, &owner, limit))
        };
        find(id: EntryId) -> Option<Entry>
            = self.reader.call(0, move |batch| read::find(batch, id));
        find_duplicate(queue: &str, key: RecordKey) -> Option<Duplicate> = {
            let queue = queue.to_owned();
            self.reader.call(0, move |batch| read::find_duplicate(batch, &queue, key))
        };
        list(query: Query) -> Vec<Entry>
            = self.reader.call(0, move |batch| read::list(batch, &query));
        counts(queue: &str) -> Counts = {
            let queue = queue.to_owned();
            self.reader.call(0, move |batch| read::counts(batch, &queue))
        };
        position(id: EntryId, limit: u32) -> Option<u32>
            = self.reader.call(0, move |batch| read::position(batch, id, limit));
        secret() -> [u8; 32] = self.reader.call(0, read::secret);
    }
}

/// Returns about how much a settlement adds to a transaction.
fn bytes(settlement: &Settlement) -> usize {
    let stored = [settlement.result.as_ref(), settlement.stored_remainder()];
    stored_bytes(&settlement.outbox) + stored.into_iter().flatten().map(Bytes::len).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settlement_adds_all_that_it_stores() {
        let outbox = [NewEntry::new("mails", "four")];
        let done = Settlement::completed("result", Duration::ZERO);
        let done = done.remainder("rest").followed_by(outbox);
        assert_eq!(bytes(&done), 4 + 6 + 4);
    }
}
