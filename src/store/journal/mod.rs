//! Durable queues: requests to replay, webhooks to deliver, dead letters.
//!
//! All three are entries of a named queue, and differ in their worker. An entry is
//! [enqueued](Journal::enqueue), [leased](Journal::lease) by a worker, and [settled](Journal::settle)
//! by it; operators give [commands](Journal::command) meanwhile. A purge removes a dead letter, and [`erase`](Journal::erase)
//! all that an owner has in a queue. Every verb is one atomic transition
//! on the store's clock, so that a cancel and a start, or two workers, never both win.
//!
//! ```text
//!           enqueue              lease                  settle
//!  (none) ───────────▶ queued ───────────▶ processing ─────────────▶ completed
//!                       │  ▲                 │  │ │
//!            cancel     │  │ retry, release, │  │ └────────────────▶ failed: a dead letter
//!  cancelled ◀──────────┤  │ lease ran out   │  │                       │
//!                       │  └─────────────────┘  └─ was past its time ─▶ expired
//!  expired ◀────────────┘  ▲                                             │
//!        past its time     └──────────────────── redrive ◀───(failed)────┘
//! ```
//!
//! Entries that follow from a settlement, a callback or an alert, are enqueued by the same `settle`
//! and committed together with it: the outbox.
//!
//! [`MemoryStore`](super::MemoryStore) keeps a journal until the process ends; the stores of the
//! features `sqlite`, `postgres` and `redis` keep theirs beside the idempotency records.
//! [`conformance::journal`](super::conformance::journal) tests a store of your own for the contract.
//!
//! # Reading it with SQL
//!
//! SQLite keeps entries in the table `journal`, PostgreSQL in `reprise_idempotency_journal` (the
//! name of the records' table and `_journal`); in Redis an entry is a hash whose fields have the same
//! names, but for `ends` (both `until` and `leased`), `key` and `print` (`dedup` and `fingerprint`).
//! Times are microseconds since 1970. Read it as you like; to change it use the verbs, which keep
//! the columns in agreement.
//!
//! | column | meaning |
//! | --- | --- |
//! | `sequence` | number in the order of arrival; grows, and is not used twice |
//! | `id` | sixteen bytes, shown as 32 hexadecimal digits |
//! | `queue`, `lane` | the queue, and the part of it whose entries are leased in order |
//! | `owner`, `label` | filters of lists; of a replay the label is the function |
//! | `version` | SQLite and PostgreSQL: the version of that function, NULL if there is none |
//! | `reason` | why it was queued, NULL if that was not told |
//! | `dedup`, `fingerprint` | key and digest of the operation; `dedup` is NULL once the key is free |
//! | `priority` | 0 urgent, 1 high, 2 normal, 3 low |
//! | `status` | 0 queued, 1 processing, 2 completed, 3 failed, 4 expired, 5 cancelled; in PostgreSQL 0 with `leased` above 0 is processing; a queued entry whose `expires` has passed counts as expired |
//! | `lease_token` | the lease token: leases so far |
//! | `attempts` | attempts since the entry was queued or redriven |
//! | `redrives` | redrives so far |
//! | `cause` | cause of the last failed attempt; NULL if it named none |
//! | `repeats` | failed attempts in a row with that cause; 0 after a redrive |
//! | `queued`, `due`, `expires` | when it was enqueued, may be leased, must not be started any more |
//! | `changed` | when it came to its state |
//! | `leased` | PostgreSQL: end of the lease; 0 if there is none; in a completed entry it may be that of the last one |
//! | `until` | SQLite: end of the lease while processing; once over: when the row may be removed |
//! | `history` | lines for people: time in 16 digits, kind in one (0 settlement, 1 command), length in three, note |
//! | `bounded` | SQLite: 1 if it was enqueued with bounds; the table `journal_open` counts those that are not over, `journal_states` all by state (0 queued or processed) |
//! | `in_all`, `per_owner` | PostgreSQL: those bounds; the table that ends in `_open` counts, the ones that end in `_entries` and `_finished` count all, and those that are over |
//! | `payload`, `result` | the work and its result, sealed if the store is; the payload of a completed, expired or cancelled entry is gone |
//! | `shared` | the id of the end that the payload [shares](SharedPayload) with others, NULL if there is none; the table `journal_shared`, in PostgreSQL the one that ends in `_shared`, has the ends. `payload` is what comes before it; in PostgreSQL `own` is, and `payload` is NULL |
//!
//! ```sql
//! -- what fails most, and since when
//! SELECT queue, cause, count(*), min(changed) FROM journal WHERE status = 3 GROUP BY 1, 2;
//! ```
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use tower_reprise::store::{
//!     MemoryStore, Ownership,
//!     journal::{Enqueued, Journal, NewEntry, Settlement, Status, LeaseRequest},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_reprise::store::StoreError> {
//! let journal = MemoryStore::new();
//! let entry = NewEntry::new("mails", "welcome, Ada");
//! let id = entry.id;
//! assert!(matches!(journal.enqueue(entry).await?, Enqueued::New(_)));
//!
//! let leased = journal.lease(LeaseRequest::new("mails", "", 1, Duration::from_secs(30))).await?;
//! assert_eq!((&*leased[0].payload, leased[0].attempts), (&b"welcome, Ada"[..], 1));
//!
//! let done = Settlement::completed("sent", Duration::from_secs(3600));
//! assert_eq!(journal.settle(id, leased[0].lease_token, done).await?, Ownership::Held);
//! assert_eq!(journal.find(id).await?.map(|entry| entry.status), Some(Status::Completed));
//! # Ok(())
//! # }
//! ```

#[cfg(any(feature = "delivery", feature = "postgres", feature = "redis"))]
pub(crate) mod coalesce;
mod command;
mod entry;
mod erasure;
pub(crate) mod history;
mod id;
mod lease;
mod query;
mod settlement;
mod shared_payload;
mod status;
mod timestamp;
mod wrap;

use std::{future::Future, sync::Arc, time::Duration};

use tokio::sync::Notify;

#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) use self::lease::{FEW_DUE, page_of_lanes};
#[cfg(feature = "sqlite")]
pub(crate) use self::shared_payload::stored_bytes;
pub use self::{
    command::{CommandResult, EntryCommand},
    entry::{Dedup, Duplicate, Enqueued, Entry, NewEntry, QueueBounds},
    erasure::Erased,
    history::{EventKind, HistoryEvent},
    id::{EntryId, InvalidEntryId, LeaseToken},
    lease::LeaseRequest,
    query::{Counts, Query},
    settlement::{Settlement, SettlementOutcome},
    shared_payload::SharedPayload,
    status::{Priority, Status},
    timestamp::Timestamp,
    wrap::{WrapJournal, WrappedJournal},
};
use super::{Ownership, RecordKey, StoreError, verbs::verbs};

/// A store of durable queues.
///
/// # Contract
///
/// - Order within a lane: [`Priority`], then the time at which an entry is due, which is when it
///   was queued unless it had to wait, then its sequence. Lanes are independent of each other.
/// - An entry past its time is [`Status::Expired`] to readers and commands, and is only leased to be
///   settled as such, which counts no attempt.
/// - A lease counts an attempt, durably, before it is answered. A lease that ran out changes
///   nothing by itself: until the entry is leased again, its owner can extend or settle it.
/// - A settlement other than a release sets the entry's cause, to none if it names none, and counts
///   how often in a row it was that one. A redrive is counted, and begins a new row.
/// - Concurrent calls never exceed [bounds](NewEntry::bounds): the check and the insert are one. It costs
///   nothing that grows with the entries that wait or are over.
/// - An entry that is completed, expired or cancelled loses its payload at once, but for what its
///   [settlement](Settlement::remainder) puts in the place; a dead letter keeps it, to be redriven.
/// - Counting costs nothing that grows with the entries that wait or are over.
/// - A payload comes back whole. A store may keep an end that entries [share](NewEntry::shared) once; it stays
///   for as long as an entry needs it, and goes at no cost that grows.
/// - An entry that is over is kept for as long as its settlement says, and then gone.
/// - Every verb but `lease` can be repeated when its answer got lost.
/// - Names of queues and lanes, owners, labels, reasons and causes are text without NUL. Callers of `enqueue`
///   bound their lengths.
/// - Durations of any size are taken: one that can't be represented is as good as forever.
///
/// The types of this module are exhaustive on purpose: a store must know every state there is.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no journal",
    note = "there are `MemoryStore`, and with the features of these names `SqliteStore::open(path)?`, \
            `PostgresStore::connect(url).await?` and `RedisStore::connect(url).await?`"
)]
pub trait Journal: Send + Sync + 'static {
    /// Queues an entry. If one with that [id](NewEntry::id) is there already, the call is a repeat;
    /// if one of the same queue has the same [`Dedup::key`] and is neither cancelled nor expired,
    /// the answer is [`Enqueued::Existing`], or [`Enqueued::Mismatch`] if its fingerprint differs. A
    /// new entry past its [bounds](NewEntry::bounds) is not queued: [`Enqueued::Full`].
    fn enqueue(&self, entry: NewEntry)
    -> impl Future<Output = Result<Enqueued, StoreError>> + Send;

    /// Queues many entries, each by itself, in a few commits where that saves some: the answers are in
    /// their order. If it fails, some may be queued; it can be repeated, as can
    /// [`enqueue`](Self::enqueue).
    fn enqueue_many(
        &self,
        entries: Vec<NewEntry>,
    ) -> impl Future<Output = Result<Vec<Enqueued>, StoreError>> + Send {
        enqueued_one_by_one(self, entries)
    }

    /// Returns the lanes of a queue in which something can be leased now, in order of their names:
    /// up to `limit` of those after `after`.
    fn lanes(
        &self,
        queue: &str,
        after: Option<&str>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;

    /// Leases the next entries of a lane: first those past their time, of any priority, then those
    /// due and as urgent as [`LeaseRequest::through`], in order, or only
    /// [one at a time](LeaseRequest::in_order). Each is [`Status::Processing`] until
    /// settled, or until the lease runs out and another worker leases it. Each lease of an entry has
    /// a greater [`LeaseToken`], and counts an attempt unless the entry is past its time.
    fn lease(
        &self,
        request: LeaseRequest,
    ) -> impl Future<Output = Result<Vec<Entry>, StoreError>> + Send;

    /// Lets the lease start anew. [`Ownership::Lost`] if the entry is not being processed under this
    /// token.
    fn extend(
        &self,
        id: EntryId,
        lease_token: LeaseToken,
        lease: Duration,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send;

    /// Ends a lease, and enqueues the outbox of its settlement, all or nothing.
    /// [`Ownership::Lost`] if the entry was leased again. If this lease has ended already, the call
    /// is a repeat, the first settlement stands, and the answer is [`Ownership::Held`].
    fn settle(
        &self,
        id: EntryId,
        lease_token: LeaseToken,
        settlement: Settlement,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send;

    /// Stores an entry that failed after so many attempts without having been queued: a dead letter,
    /// and the outbox of its settlement, all or nothing. The answer is that of
    /// [`enqueue`](Self::enqueue); an entry that is there already stays as it is, and the outbox is
    /// not queued again.
    fn bury(
        &self,
        entry: NewEntry,
        attempts: u32,
        settlement: Settlement,
    ) -> impl Future<Output = Result<Enqueued, StoreError>> + Send;

    /// Cancels, triggers, redrives or purges an entry, if it is in a state for that; `None` if there
    /// is no such entry.
    fn command(
        &self,
        id: EntryId,
        command: EntryCommand,
    ) -> impl Future<Output = Result<Option<CommandResult>, StoreError>> + Send;

    /// Removes up to `limit` entries of an owner from a queue, with their payloads, results, histories and
    /// [keys](Dedup::key), whatever their state: entries that wait are not executed any more, and dead
    /// letters can't be redriven. An entry under a lease is left to end, so repeat the call until
    /// none is [left](Erased::left), and do so for each queue of the owner. An empty owner has no entries.
    /// Erase replays by [`Replay::erase`](crate::delivery::replay::Replay::erase), which frees their
    /// idempotency keys, too.
    ///
    /// ```
    /// # use tower_reprise::store::{StoreError, journal::Journal};
    /// # use std::time::Duration;
    /// /// Erases what a customer has in a queue.
    /// async fn forget(journal: &impl Journal, owner: &str) -> Result<(), StoreError> {
    ///     while journal.erase("webhooks", owner, 500).await?.left > 0 {
    ///         tokio::time::sleep(Duration::from_millis(100)).await;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// Entries of a queue are all that has an owner here. An idempotency record is found by a digest
    /// of its scope and key alone, so those of an owner can't be listed: they go with their
    /// retention.
    fn erase(
        &self,
        queue: &str,
        owner: &str,
        limit: u32,
    ) -> impl Future<Output = Result<Erased, StoreError>> + Send;

    /// Returns an entry with payload, result and history.
    fn find(&self, id: EntryId) -> impl Future<Output = Result<Option<Entry>, StoreError>> + Send;

    /// Returns the entry of a queue that has this key, as [`enqueue`](Self::enqueue) would find it.
    fn find_duplicate(
        &self,
        queue: &str,
        key: RecordKey,
    ) -> impl Future<Output = Result<Option<Duplicate>, StoreError>> + Send;

    /// Lists entries by sequence, without payload, result and history.
    fn list(&self, query: Query) -> impl Future<Output = Result<Vec<Entry>, StoreError>> + Send;

    /// Counts the entries of a query, up to its limit.
    fn count(&self, query: Query) -> impl Future<Output = Result<u32, StoreError>> + Send {
        counted(self, query)
    }

    /// Counts the entries of a queue by state.
    fn counts(&self, queue: &str) -> impl Future<Output = Result<Counts, StoreError>> + Send;

    /// Counts the entries that will be leased before this one if none is added, up to `limit`;
    /// `None` if it is not queued.
    fn position(
        &self,
        id: EntryId,
        limit: u32,
    ) -> impl Future<Output = Result<Option<u32>, StoreError>> + Send;

    /// Notifies `wake` when another call, of any process, may have made an entry of the queue due, for as
    /// long as `wake` is held elsewhere. A hint: some calls are missed, by default all of them, and nothing
    /// tells of an entry that is due later. Workers poll, too.
    fn watch(&self, queue: &str, wake: &Arc<Notify>) {
        let _ = (queue, wake);
    }

    /// Returns thirty-two random bytes that were drawn when the journal was made: the same for all
    /// processes that share it.
    fn secret(&self) -> impl Future<Output = Result<[u8; 32], StoreError>> + Send;

    /// Returns whether payloads and results are encrypted where they are stored, so that they may
    /// hold credentials.
    fn is_sealed(&self) -> bool {
        false
    }
}

async fn enqueued_one_by_one<J: Journal + ?Sized>(
    journal: &J,
    entries: Vec<NewEntry>,
) -> Result<Vec<Enqueued>, StoreError> {
    let mut enqueued = Vec::with_capacity(entries.len());
    for entry in entries {
        enqueued.push(journal.enqueue(entry).await?);
    }
    Ok(enqueued)
}

/// Counts page by page.
async fn counted<J: Journal + ?Sized>(journal: &J, mut query: Query) -> Result<u32, StoreError> {
    const PAGE: u32 = 1000;
    let (mut count, limit) = (0, query.limit);
    while count < limit {
        query.limit = PAGE.min(limit - count);
        let page = journal.list(query.clone()).await?;
        let length = u32::try_from(page.len()).unwrap_or(u32::MAX);
        count += length;
        match page.last() {
            Some(last) if length >= query.limit => query.after = last.sequence,
            _ => break,
        }
    }
    Ok(count)
}

impl<J: Journal> Journal for Arc<J> {
    verbs! { self;
        enqueue(entry: NewEntry) -> Enqueued = (**self).enqueue(entry);
        enqueue_many(entries: Vec<NewEntry>) -> Vec<Enqueued> = (**self).enqueue_many(entries);
        lanes(queue: &str, after: Option<&str>, limit: u32) -> Vec<String>
            = (**self).lanes(queue, after, limit);
        lease(request: LeaseRequest) -> Vec<Entry> = (**self).lease(request);
        extend(id: EntryId, lease_token: LeaseToken, lease: Duration) -> Ownership
            = (**self).extend(id, lease_token, lease);
        settle(id: EntryId, lease_token: LeaseToken, settlement: Settlement) -> Ownership
            = (**self).settle(id, lease_token, settlement);
        bury(entry: NewEntry, attempts: u32, settlement: Settlement) -> Enqueued
            = (**self).bury(entry, attempts, settlement);
        command(id: EntryId, command: EntryCommand) -> Option<CommandResult>
            = (**self).command(id, command);
        erase(queue: &str, owner: &str, limit: u32) -> Erased = (**self).erase(queue, owner, limit);
        find(id: EntryId) -> Option<Entry> = (**self).find(id);
        find_duplicate(queue: &str, key: RecordKey) -> Option<Duplicate>
            = (**self).find_duplicate(queue, key);
        list(query: Query) -> Vec<Entry> = (**self).list(query);
        count(query: Query) -> u32 = (**self).count(query);
        counts(queue: &str) -> Counts = (**self).counts(queue);
        position(id: EntryId, limit: u32) -> Option<u32> = (**self).position(id, limit);
        secret() -> [u8; 32] = (**self).secret();
    }

    fn watch(&self, queue: &str, wake: &Arc<Notify>) {
        (**self).watch(queue, wake);
    }

    fn is_sealed(&self) -> bool {
        (**self).is_sealed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[tokio::test]
    async fn j_10_a_count_goes_on_behind_a_page_and_no_further_than_asked() {
        let journal = MemoryStore::new();
        for _ in 0..1001 {
            let entry = NewEntry::new("q", "");
            journal.enqueue(entry).await.unwrap();
        }
        for (limit, count) in [(0, 0), (7, 7), (1000, 1000), (1001, 1001), (10_000, 1001)] {
            let query = Query::new("q", limit);
            assert_eq!(journal.count(query).await.unwrap(), count, "{limit}");
        }
        assert_eq!(journal.count(Query::new("other", 10)).await.unwrap(), 0);
    }
}
