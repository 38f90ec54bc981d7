//! What must be done, though not now: requests to replay, webhooks to deliver, dead letters.
//!
//! All three are one kind of entry in a named queue, and differ in who works on it. An entry is
//! [enqueued](Journal::enqueue), [leased](Journal::lease) by a worker, and [settled](Journal::settle)
//! by it; people [steer](Journal::command) it meanwhile. Every verb is one atomic transition on the
//! store's clock, so that a cancel and a start, or two workers, never both win.
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
//! What follows from an outcome, a callback or an alert, is enqueued by the same `settle` and so
//! committed together with it: the outbox.
//!
//! [`MemoryStore`](super::MemoryStore) keeps a journal for one process that may forget on restart;
//! the stores of the features `sqlite`, `postgres` and `redis` keep theirs beside the idempotency
//! records. [`conformance::journal`](super::conformance::journal) shows in one test whether a store
//! of your own keeps the contract.
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
//! assert_eq!(journal.settle(id, leased[0].turn, done).await?, Ownership::Held);
//! assert_eq!(journal.find(id).await?.map(|entry| entry.status), Some(Status::Completed));
//! # Ok(())
//! # }
//! ```

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
pub(crate) mod columns;
mod entry;
#[cfg(any(feature = "delivery", feature = "postgres"))]
pub(crate) mod gather;
mod names;
mod verbs;

use std::{future::Future, sync::Arc, time::Duration};

pub use self::{
    entry::{Attempted, Dedup, Enqueued, Entry, EventKind, NewEntry},
    names::{EntryId, InvalidEntryId, LeaseToken, Priority, Status, Timestamp},
    verbs::{CommandResult, Counts, EntryCommand, LeaseRequest, Outcome, Query, Settlement},
};
use super::{Ownership, StoreError};

/// Queues of entries, and what can happen to one.
///
/// # Contract
///
/// - Order within a lane: [`Priority`], then the time at which an entry is due, which is when it
///   was queued unless it had to wait, then the sequence in which entries came. Lanes are
///   independent of each other.
/// - An entry past its time is [`Status::Expired`] to all who look or steer, and can only be leased
///   to be told so, which counts no attempt.
/// - A lease counts an attempt, durably, before it is answered. A lease that ran out changes
///   nothing by itself: until the entry is leased again, its owner can extend or settle it.
/// - A settlement other than a release sets the entry's cause, to none if it names none, and counts
///   how often in a row it was that one. A redrive is counted, and begins a new row.
/// - What is over is kept for as long as its settlement says, and then gone.
/// - Every verb but `lease` can be repeated when its answer got lost.
/// - Names of queues and lanes, owners, labels and causes are text without NUL. Who enqueues bounds them.
/// - Durations of any size are taken: what can't be represented is as good as forever.
///
/// The types of this module are exhaustive on purpose: a store must know every state there is.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no journal",
    note = "there are `MemoryStore`, and with the features of these names `SqliteStore::open(path)?`, \
            `PostgresStore::connect(url).await?` and `RedisStore::connect(url).await?`"
)]
pub trait Journal: Send + Sync + 'static {
    /// Queues an entry. If one with that [id](NewEntry::id) is there already, it is a repeat; if
    /// one of the same queue is there with the same [`Dedup::key`] and is neither cancelled nor
    /// expired, that one is [`Enqueued::Existing`], or [`Enqueued::Mismatch`] if its fingerprint
    /// is another.
    fn enqueue(&self, entry: NewEntry)
    -> impl Future<Output = Result<Enqueued, StoreError>> + Send;

    /// The lanes of a queue in which something can be leased now, in order of their names: up to
    /// `limit` of those after `after`.
    fn lanes(
        &self,
        queue: &str,
        after: Option<&str>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;

    /// Takes what is next in a lane: first what is past its time, of any priority, then what is
    /// due and as urgent as [`LeaseRequest::through`], in order. It is [`Status::Processing`] until
    /// settled, or until the lease runs out and somebody else leases it. Each lease of an entry
    /// has a greater [`LeaseToken`], and counts an attempt unless the entry is past its time.
    fn lease(
        &self,
        want: LeaseRequest,
    ) -> impl Future<Output = Result<Vec<Entry>, StoreError>> + Send;

    /// Lets the lease start anew. [`Ownership::Lost`] if the entry is not being processed in this
    /// turn.
    fn extend(
        &self,
        id: EntryId,
        turn: LeaseToken,
        lease: Duration,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send;

    /// Says how a turn ended, and enqueues what follows from that, all or nothing.
    /// [`Ownership::Lost`] if the turn is not this one. If this turn is over already, it is a
    /// repeat, what was said first stands, and the answer is [`Ownership::Held`].
    fn settle(
        &self,
        id: EntryId,
        turn: LeaseToken,
        settle: Settlement,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send;

    /// Cancels, triggers or redrives an entry, if it is in a state for that; `None` if there is no
    /// such entry.
    fn command(
        &self,
        id: EntryId,
        command: EntryCommand,
    ) -> impl Future<Output = Result<Option<CommandResult>, StoreError>> + Send;

    /// The entry, whole.
    fn find(&self, id: EntryId) -> impl Future<Output = Result<Option<Entry>, StoreError>> + Send;

    /// Entries in the sequence in which they came, without payload, result and history.
    fn list(&self, query: Query) -> impl Future<Output = Result<Vec<Entry>, StoreError>> + Send;

    /// How many entries a query has, counted up to its limit.
    fn count(&self, query: Query) -> impl Future<Output = Result<u32, StoreError>> + Send {
        counted(self, query)
    }

    /// How many entries of a queue there are in each state.
    fn counts(&self, queue: &str) -> impl Future<Output = Result<Counts, StoreError>> + Send;

    /// How many entries will be leased before this one if none is added, counted up to `limit`;
    /// `None` if it is not queued.
    fn position(
        &self,
        id: EntryId,
        limit: u32,
    ) -> impl Future<Output = Result<Option<u32>, StoreError>> + Send;

    /// Thirty-two random bytes that were drawn when the journal was made: the same for all who
    /// share it.
    fn secret(&self) -> impl Future<Output = Result<[u8; 32], StoreError>> + Send;

    /// Whether payloads and results can't be read where they are stored, so that credentials may
    /// be among them.
    fn is_sealed(&self) -> bool {
        false
    }
}

/// Page by page.
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
    fn enqueue(
        &self,
        entry: NewEntry,
    ) -> impl Future<Output = Result<Enqueued, StoreError>> + Send {
        (**self).enqueue(entry)
    }

    fn lanes(
        &self,
        queue: &str,
        after: Option<&str>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send {
        (**self).lanes(queue, after, limit)
    }

    fn lease(
        &self,
        want: LeaseRequest,
    ) -> impl Future<Output = Result<Vec<Entry>, StoreError>> + Send {
        (**self).lease(want)
    }

    fn extend(
        &self,
        id: EntryId,
        turn: LeaseToken,
        lease: Duration,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send {
        (**self).extend(id, turn, lease)
    }

    fn settle(
        &self,
        id: EntryId,
        turn: LeaseToken,
        settle: Settlement,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send {
        (**self).settle(id, turn, settle)
    }

    fn command(
        &self,
        id: EntryId,
        command: EntryCommand,
    ) -> impl Future<Output = Result<Option<CommandResult>, StoreError>> + Send {
        (**self).command(id, command)
    }

    fn find(&self, id: EntryId) -> impl Future<Output = Result<Option<Entry>, StoreError>> + Send {
        (**self).find(id)
    }

    fn list(&self, query: Query) -> impl Future<Output = Result<Vec<Entry>, StoreError>> + Send {
        (**self).list(query)
    }

    fn count(&self, query: Query) -> impl Future<Output = Result<u32, StoreError>> + Send {
        (**self).count(query)
    }

    fn counts(&self, queue: &str) -> impl Future<Output = Result<Counts, StoreError>> + Send {
        (**self).counts(queue)
    }

    fn position(
        &self,
        id: EntryId,
        limit: u32,
    ) -> impl Future<Output = Result<Option<u32>, StoreError>> + Send {
        (**self).position(id, limit)
    }

    fn secret(&self) -> impl Future<Output = Result<[u8; 32], StoreError>> + Send {
        (**self).secret()
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
