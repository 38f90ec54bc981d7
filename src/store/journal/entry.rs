use std::{borrow::Cow, fmt, time::Duration};

use bytes::Bytes;

use super::{EntryId, HistoryEvent, LeaseToken, Priority, SharedPayload, Status, Timestamp};
use crate::store::{Fingerprint, RecordKey};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The identity of an operation, by which duplicates are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dedup {
    /// The key of the operation.
    pub key: RecordKey,
    /// A digest of what was asked for.
    pub fingerprint: Fingerprint,
}

/// The most entries that a queue takes. They count from when they are
/// [enqueued](super::Journal::enqueue) with bounds until they are over: while they wait, are processed, or
/// are past their time and not settled yet. Other entries are neither bounded nor counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueBounds {
    /// The most entries of the queue.
    pub in_all: u32,
    /// The most entries of the queue that are of the entry's owner.
    pub per_owner: u32,
}

/// An entry to enqueue.
#[derive(Clone)]
#[must_use]
pub struct NewEntry {
    /// Its id, drawn by the caller so that enqueuing can be repeated.
    pub id: EntryId,
    /// The queue.
    pub queue: Cow<'static, str>,
    /// The lane of the queue: a slow lane does not keep the others waiting.
    pub lane: String,
    /// The owner, for lists.
    pub owner: String,
    /// A label, for lists: the function that it calls.
    pub label: String,
    /// The version of that, for people who query the store by SQL. It is not read back.
    pub version: Option<String>,
    /// Why it was queued, for lists.
    pub reason: Option<String>,
    /// The operation, if duplicates of it are to be found.
    pub dedup: Option<Dedup>,
    /// Its priority within the lane.
    pub priority: Priority,
    /// The time before the first attempt; at most `ttl`.
    pub delay: Duration,
    /// The time in which it must be started.
    pub ttl: Duration,
    /// The bounds of its queue; none for an entry that is always taken. Only
    /// [`enqueue`](super::Journal::enqueue) heeds them: an outbox and a dead letter are always taken.
    pub bounds: Option<QueueBounds>,
    /// The work, as bytes that mean nothing to a store.
    pub payload: Bytes,
    /// The end of the payload that other entries have as well, if there is one: see
    /// [`ending_in`](Self::ending_in). A store that ignores it keeps the whole payload with each.
    pub shared: Option<SharedPayload>,
}

impl NewEntry {
    /// Creates an entry with a random id, in the lane without a name, due now and for a day.
    pub fn new(queue: impl Into<Cow<'static, str>>, payload: impl Into<Bytes>) -> Self {
        Self {
            id: EntryId::random(),
            queue: queue.into(),
            lane: String::new(),
            owner: String::new(),
            label: String::new(),
            version: None,
            reason: None,
            dedup: None,
            priority: Priority::Normal,
            delay: Duration::ZERO,
            ttl: DAY,
            bounds: None,
            payload: payload.into(),
            shared: None,
        }
    }

    /// Returns the entry as it stands once it was inserted.
    pub(crate) fn queued(self, sequence: u64, now: Timestamp) -> Entry {
        let expires_at = now.after(self.ttl);
        Entry {
            id: self.id,
            queue: self.queue.into_owned(),
            lane: self.lane,
            owner: self.owner,
            label: self.label,
            priority: self.priority,
            status: Status::Queued,
            sequence,
            lease_token: LeaseToken::new(0),
            attempts: 0,
            redrives: 0,
            cause: None,
            repeats: 0,
            reason: self.reason,
            queued_at: now,
            due_at: now.after(self.delay).min(expires_at),
            expires_at,
            changed_at: now,
            payload: self.payload,
            result: None,
            history: Vec::new(),
        }
    }
}

/// Shows the length of the payload, never its bytes.
impl fmt::Debug for NewEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewEntry")
            .field("id", &self.id)
            .field("queue", &self.queue)
            .field("lane", &self.lane)
            .field("label", &self.label)
            .field("priority", &self.priority)
            .field("payload", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// The answer to [`enqueue`](super::Journal::enqueue). The entries are without payload, result and
/// history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enqueued {
    /// The entry is queued, durably.
    New(Entry),
    /// The entry, or the same operation under another id, was there before.
    Existing(Entry),
    /// The key was used for something else.
    Mismatch,
    /// The queue has as many entries as its [bounds](NewEntry::bounds) allow: nothing was queued.
    Full,
}

/// The entry that has a [`Dedup::key`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    /// The entry, without payload, result and history.
    pub entry: Entry,
    /// Its [`Dedup::fingerprint`].
    pub fingerprint: Fingerprint,
}

/// An entry of a queue.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its id.
    pub id: EntryId,
    /// The queue.
    pub queue: String,
    /// The lane of the queue.
    pub lane: String,
    /// The owner, for lists.
    pub owner: String,
    /// The label, for lists.
    pub label: String,
    /// Its priority within the lane.
    pub priority: Priority,
    /// Its state.
    pub status: Status,
    /// Its number in the order of arrival, which grows within a journal.
    pub sequence: u64,
    /// The token of its latest lease; zero if there was none.
    pub lease_token: LeaseToken,
    /// Attempts since it was queued or redriven.
    pub attempts: u32,
    /// Redrives so far.
    pub redrives: u32,
    /// Cause of the last attempt that failed, if its settlement named one. A redrive keeps it.
    pub cause: Option<String>,
    /// Failed attempts in a row that ended with `cause`, the last one included; zero after a
    /// redrive.
    pub repeats: u32,
    /// Why it was queued, if that was told.
    pub reason: Option<String>,
    /// When it was enqueued.
    pub queued_at: Timestamp,
    /// When it may be leased.
    pub due_at: Timestamp,
    /// From when on it must not be started.
    pub expires_at: Timestamp,
    /// When it came to its state: for an entry that was just leased, the time of the lease.
    pub changed_at: Timestamp,
    /// The work. A settlement as completed or expired, and a cancellation, drop it: see
    /// [`Settlement::remainder`](super::Settlement::remainder).
    pub payload: Bytes,
    /// The result of the work, as bytes that mean nothing to a store.
    pub result: Option<Bytes>,
    /// Its settlements and commands so far, for people.
    pub history: Vec<HistoryEvent>,
}

impl Entry {
    /// Returns how many attempts in a row, up to the last one, failed with this cause.
    #[must_use]
    pub fn repeats_of(&self, cause: &str) -> u32 {
        match self.cause.as_deref() == Some(cause) {
            true => self.repeats,
            false => 0,
        }
    }

    /// Returns whether an entry that was just leased is past its time, and was leased to be settled
    /// as such.
    #[must_use]
    pub fn is_past(&self) -> bool {
        self.expires_at <= self.changed_at
    }
}

/// Shows the lengths of payload and result, never their bytes.
impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("id", &self.id)
            .field("queue", &self.queue)
            .field("lane", &self.lane)
            .field("label", &self.label)
            .field("priority", &self.priority)
            .field("status", &self.status)
            .field("sequence", &self.sequence)
            .field("lease_token", &self.lease_token)
            .field("attempts", &self.attempts)
            .field("redrives", &self.redrives)
            .field("cause", &self.cause)
            .field("repeats", &self.repeats)
            .field("payload", &self.payload.len())
            .field("result", &self.result.as_ref().map(Bytes::len))
            .field("history", &self.history)
            .finish_non_exhaustive()
    }
}
