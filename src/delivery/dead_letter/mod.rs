//! What could not be done, kept until somebody has looked at it.
//!
//! Retrying for ever hides bugs and fills queues; giving up silently loses data. What is given up
//! here, a replay, a webhook or an event, stays in its queue as [`Status::Failed`], with its
//! payload, its headers, what happened at each attempt and why it was given up: a dead letter. An
//! [`Alert`] is queued together with it and fires at least once. Once the cause is mended, it can
//! be [redriven](DeadLetters::redrive).
//!
//! Some process has to run the worker of [alerts](DeadLetters::alerts) for each journal, if only
//! with [`LogAlert`]. What nobody takes from a queue stays there, also past its time: without that
//! worker nobody is told of a letter, and alerts pile up in the journal, until one in memory is
//! full.
//!
//! ```
//! use std::time::Duration;
//! use tower_reprise::{
//!     delivery::{dead_letter::{DeadLetters, LogAlert, Redriven}, worker::{Handler, Worker}},
//!     store::{MemoryStore, journal::{Entry, Journal, NewEntry, Settlement}},
//! };
//!
//! struct Broken;
//!
//! impl Handler for Broken {
//!     async fn handle(&self, _: Entry) -> Settlement {
//!         Settlement::failed("no such account", Duration::from_secs(3600))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let journal = MemoryStore::new();
//! let letters = DeadLetters::new(journal.clone());
//! let alerts = letters.alerts(LogAlert).start()?;
//! let worker = Worker::builder(journal.clone(), "mails", Broken).start()?;
//!
//! journal.enqueue(NewEntry::new("mails", "welcome, Ada")).await?;
//! worker.wake();
//! # while letters.list("mails", None, 1).await?.is_empty() { tokio::task::yield_now().await; }
//!
//! let letter = &letters.list("mails", None, 10).await?[0];
//! let letter = letters.get(letter.id).await?.expect("a letter");
//! assert_eq!(letter.reason, "no such account");
//! assert_eq!(letters.redrive(letter.id).await?, Redriven::Queued);
//! # alerts.shutdown(Duration::ZERO).await;
//! # worker.shutdown(Duration::ZERO).await;
//! # Ok(())
//! # }
//! ```
//!
//! [`DeadLetterLayer`] gives the same end to any consumer of events that is a `Service`.

mod alert;
mod bury;
mod layer;
pub(crate) mod reason;
mod redelivery;
mod redrive;

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

pub(crate) use self::bury::bury;
pub use self::{
    alert::{Alert, AlertHandler, LogAlert},
    layer::{DeadLetterFuture, DeadLetterLayer, DeadLetterService, Delivered, Letter},
    redelivery::Redelivery,
    redrive::{Redrive, RedriveReport, Redriven},
};
use super::{
    parcel,
    worker::{ALERTS, Worker},
};
use crate::store::{
    StoreError,
    journal::{Entry, EntryId, EventKind, HistoryEvent, Journal, Query, Status, Timestamp},
};

/// How long a letter is kept unless told otherwise: 30 days from when it became one.
pub(crate) const KEEP: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Something that could not be done.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Its name.
    pub id: EntryId,
    /// The queue it is in.
    pub queue: String,
    /// Whose it is.
    pub owner: String,
    /// What it is.
    pub label: String,
    /// Why it was given up, in the words of whoever did. They may quote the payload, so they are
    /// not for logs: see [`cause`](Self::cause).
    pub reason: String,
    /// How often it was attempted, since it was queued or redriven.
    pub attempts: u32,
    /// When it was queued.
    pub queued_at: Timestamp,
    /// When it was given up.
    pub died_at: Timestamp,
    /// Its headers, without credentials unless the journal is sealed.
    pub headers: HeaderMap,
    /// What was to be done, as it came.
    pub payload: Bytes,
    /// What happened to it, attempt by attempt.
    pub history: Vec<HistoryEvent>,
    cause: Option<String>,
}

impl DeadLetter {
    /// Returns why it was given up in words that can be logged and sent on: the
    /// [cause](crate::store::journal::Settlement::cause) of its settlement, `failed` if that named
    /// none.
    #[must_use]
    pub fn cause(&self) -> &str {
        self.cause.as_deref().unwrap_or("failed")
    }

    fn of(entry: Entry) -> Self {
        let raw = || (HeaderMap::new(), entry.payload.clone());
        let (headers, payload) = parcel::contents(entry.payload.clone()).unwrap_or_else(raw);
        Self {
            reason: last_note(&entry.history),
            id: entry.id,
            queue: entry.queue,
            owner: entry.owner,
            label: entry.label,
            attempts: entry.attempts,
            queued_at: entry.queued_at,
            died_at: entry.changed_at,
            headers,
            payload,
            history: entry.history,
            cause: entry.cause,
        }
    }
}

/// Returns the note of the last settlement.
fn last_note(history: &[HistoryEvent]) -> String {
    let mut events = history.iter().rev();
    let last = events.find(|event| event.kind == EventKind::Settlement);
    last.map(|event| event.note.clone()).unwrap_or_default()
}

/// The dead letters of a journal.
///
/// # Clone
///
/// Clones share the journal.
#[derive(Debug, Clone)]
pub struct DeadLetters<J> {
    journal: J,
    ttl: Duration,
}

impl<J: Journal + Clone> DeadLetters<J> {
    /// The dead letters of all queues in this journal.
    pub fn new(journal: J) -> Self {
        Self {
            journal,
            ttl: Duration::from_secs(24 * 60 * 60),
        }
    }

    /// How long what is redriven may take: a day unless told otherwise.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// A worker that fires this alert for each letter, at least once: again and again until it
    /// succeeds, for as long as the letter is kept. A journal with dead letters needs one; any
    /// number will do, in any process.
    pub fn alerts<A: Alert>(&self, alert: A) -> Worker<J, AlertHandler<J, A>> {
        let handler = AlertHandler::new(self.journal.clone(), alert);
        Worker::builder(self.journal.clone(), ALERTS, handler)
    }

    /// A letter, whole; `None` if there is none of that id.
    ///
    /// # Errors
    ///
    /// The journal failed.
    pub async fn get(&self, id: EntryId) -> Result<Option<DeadLetter>, StoreError> {
        let entry = self.journal.find(id).await?;
        Ok(entry
            .filter(|entry| entry.status == Status::Failed)
            .map(DeadLetter::of))
    }

    /// Letters of a queue in the sequence in which they were queued, without payload, headers and
    /// history: those after one that was listed before, or from the first.
    ///
    /// # Errors
    ///
    /// The journal failed.
    pub async fn list(
        &self,
        queue: &str,
        after: Option<&Entry>,
        limit: u32,
    ) -> Result<Vec<Entry>, StoreError> {
        let query = Query {
            status: Some(Status::Failed),
            after: after.map_or(0, |entry| entry.sequence),
            ..Query::new(queue.to_owned(), limit)
        };
        self.journal.list(query).await
    }
}
