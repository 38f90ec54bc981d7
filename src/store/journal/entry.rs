use std::{borrow::Cow, fmt, time::Duration};

use bytes::Bytes;

use super::{EntryId, LeaseToken, Priority, Status, Timestamp};
use crate::store::{Fingerprint, RecordKey};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What makes an entry the same as another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dedup {
    /// Which operation it is.
    pub key: RecordKey,
    /// What was asked for.
    pub fingerprint: Fingerprint,
}

/// Something to be done.
#[derive(Clone)]
#[must_use]
pub struct NewEntry {
    /// Its name, drawn by who enqueues it so that enqueuing can be repeated.
    pub id: EntryId,
    /// Which queue.
    pub queue: Cow<'static, str>,
    /// Which part of the queue: one that is slow does not keep the others waiting.
    pub lane: String,
    /// Whose it is.
    pub owner: String,
    /// What it is, for lists.
    pub label: String,
    /// What makes it the same as another one, if it can be.
    pub dedup: Option<Dedup>,
    /// What goes first.
    pub priority: Priority,
    /// How long to wait before the first attempt; at most the time until it is past its time.
    pub delay: Duration,
    /// How long it may wait in all.
    pub ttl: Duration,
    /// What to do, as bytes that mean nothing to a store.
    pub payload: Bytes,
}

impl NewEntry {
    /// An entry with a random id, in the one lane that has no name, due now and for a day.
    pub fn new(queue: impl Into<Cow<'static, str>>, payload: impl Into<Bytes>) -> Self {
        Self {
            id: EntryId::random(),
            queue: queue.into(),
            lane: String::new(),
            owner: String::new(),
            label: String::new(),
            dedup: None,
            priority: Priority::Normal,
            delay: Duration::ZERO,
            ttl: DAY,
            payload: payload.into(),
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
            turn: LeaseToken::new(0),
            attempts: 0,
            redrives: 0,
            cause: None,
            repeats: 0,
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

/// Shows how long the payload is, never what is in it.
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

/// What became of a [`NewEntry`]. The entries are without payload, result and history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enqueued {
    /// It is queued, durably.
    New(Entry),
    /// It, or the same under another id, was there before.
    Existing(Entry),
    /// Its key was used for something else.
    Mismatch,
}

/// An entry as it stands.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub id: EntryId,
    /// Which queue.
    pub queue: String,
    /// Which part of it.
    pub lane: String,
    /// Whose it is.
    pub owner: String,
    /// What it is.
    pub label: String,
    /// What goes first.
    pub priority: Priority,
    /// Where it stands.
    pub status: Status,
    /// In which sequence entries came; it grows within a journal.
    pub sequence: u64,
    /// Its latest lease; zero if there was none.
    pub turn: LeaseToken,
    /// How often it was attempted, since it was queued or redriven.
    pub attempts: u32,
    /// Redrives so far.
    pub redrives: u32,
    /// Cause of the last attempt that failed, if its settlement named one. A redrive keeps it.
    pub cause: Option<String>,
    /// Failed attempts in a row that ended with `cause`, the last one included; zero after a
    /// redrive.
    pub repeats: u32,
    /// When it was enqueued.
    pub queued_at: Timestamp,
    /// When it may be leased.
    pub due_at: Timestamp,
    /// From when on it must not be started.
    pub expires_at: Timestamp,
    /// When it came to where it stands: for an entry that was just leased, the time of the lease.
    pub changed_at: Timestamp,
    /// What to do.
    pub payload: Bytes,
    /// What came of it, as bytes that mean nothing to a store.
    pub result: Option<Bytes>,
    /// What happened to it so far.
    pub history: Vec<Attempted>,
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

    /// Whether an entry that was just leased is past its time: it was leased to be told so.
    #[must_use]
    pub fn is_past(&self) -> bool {
        self.expires_at <= self.changed_at
    }
}

/// Shows how long payload and result are, never what is in them.
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
            .field("turn", &self.turn)
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

/// One line of an entry's history, for people: no code decides by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempted {
    /// When it happened, on the store's clock.
    pub at: Timestamp,
    /// The kind of transition that wrote it.
    pub kind: EventKind,
    /// Note of the settlement, or name of the command.
    pub note: String,
}

/// The transition that wrote a line of history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// [`Journal::settle`](super::Journal::settle).
    Settlement,
    /// [`Journal::command`](super::Journal::command).
    Command,
}

impl Attempted {
    /// The longest note that is stored, in bytes.
    const MAX_NOTE: usize = 512;

    /// Returns the part of a note that is stored.
    pub(crate) fn cut(note: &str) -> &str {
        cut(note, Self::MAX_NOTE)
    }
}

/// Cuts text to a length in bytes, between two characters.
pub(super) fn cut(text: &str, longest: usize) -> &str {
    let mut end = text.len().min(longest);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
