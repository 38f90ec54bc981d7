//! Dead letters: entries that failed for good, kept until an operator has looked at them.
//!
//! Endless retries hide bugs and fill queues; silent failures lose data. A replay, a webhook or an
//! event that failed for good stays in its queue as [`Status::Failed`], with its payload, its headers,
//! its attempts and the reason. An [`Alert`] is queued in the same settlement and fires at least once.
//! Once the cause is fixed, an operator [redrives](DeadLetters::redrive) the letter, or
//! [purges](DeadLetters::purge) one that nobody needs.
//!
//! # When to use it
//!
//! For work that nobody waits for: replays and webhooks dead-letter by themselves, and
//! [`DeadLetterLayer`] does the same for a consumer of events.
//!
//! Not for calls whose caller can be told of the error.
//!
//! # Defaults
//!
//! | setting | default |
//! | --- | --- |
//! | retention of a letter | 30 days |
//! | [`ttl`](DeadLetters::ttl): time for a redriven letter | 1 day |
//! | [`per_second`](Selection::per_second): rate of [`redrive_all`](DeadLetters::redrive_all) | 10 |
//! | rate of [`purge_all`](DeadLetters::purge_all) | none |
//!
//! ```
//! use std::time::Duration;
//! use tower_reprise::{
//!     delivery::{dead_letter::{DeadLetters, LogAlert, Redriven}, worker::{Handler, WorkerBuilder}},
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
//! let worker = WorkerBuilder::new(journal.clone(), "mails", Broken).start()?;
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
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | an entry that failed for good stays for its retention, with payload, attempts, times and cause | that credentials are among the headers, unless the journal is sealed |
//! | its alert is queued in the same commit, and fires at least once | that an alert reaches a person: that is your hook's |
//! | a purge removes a dead letter, and never an entry that was redriven | that a purged letter can be had back |
//! | a redrive keeps the history, and two redrives of one failure are one | that an event which its consumer processed in part is undone |
//!
//! # What goes wrong
//!
//! | mistake | what happens | instead |
//! | --- | --- | --- |
//! | no worker of [alerts](DeadLetters::alerts) | nobody hears of a letter, and alerts pile up in the journal, even past their time, until a journal in memory is full | one in some process, if only with [`LogAlert`] |
//! | a redrive before the cause is fixed | the letter comes back, with a longer history | look at [`Letter`], and redrive one first |
//! | all letters redriven at once | the service that just recovered is down again | [`redrive_all`](DeadLetters::redrive_all), which has a rate |

mod alert;
mod attempts;
mod layer;
pub(crate) mod reason;
mod record;
mod redelivery;
mod redrive;

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

pub(crate) use self::record::record_dead_letter;
pub use self::{
    alert::{Alert, AlertHandler, LogAlert},
    layer::{DeadLetterFuture, DeadLetterLayer, DeadLetterService, Delivered, Letter},
    redelivery::Redelivery,
    redrive::{Purged, Redriven, Selection, SelectionReport},
};
pub use crate::server::idempotency::events::{EventFailure, EventResponse};

use super::worker::{ALERTS, WorkerBuilder};
use crate::delivery::stored_message;
use crate::store::{
    StoreError,
    journal::{Entry, EntryId, EventKind, HistoryEvent, Journal, Query, Status, Timestamp},
};

/// The default retention of a letter.
pub(crate) const KEEP: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// An entry that failed for good.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The id of the entry.
    pub id: EntryId,
    /// The queue.
    pub queue: String,
    /// The owner.
    pub owner: String,
    /// The label.
    pub label: String,
    /// The reason why it failed, in the handler's words. It may quote the payload, so it is not for
    /// logs: see [`cause`](Self::cause).
    pub reason: String,
    /// The attempts since it was queued or redriven.
    pub attempts: u32,
    /// The time when it was queued.
    pub queued_at: Timestamp,
    /// The time when it failed.
    pub died_at: Timestamp,
    /// The headers, without credentials unless the journal is sealed.
    pub headers: HeaderMap,
    /// The body.
    pub payload: Bytes,
    /// Its history, attempt by attempt.
    pub history: Vec<HistoryEvent>,
    cause: String,
}

impl DeadLetter {
    /// Returns why it was given up in words that can be logged and sent on: the
    /// [cause](crate::store::journal::Settlement::cause) of its settlement, `failed` if that named
    /// none.
    #[must_use]
    pub fn cause(&self) -> &str {
        &self.cause
    }

    fn of(entry: Entry) -> Self {
        let raw = || (HeaderMap::new(), entry.payload.clone());
        let (headers, payload) =
            stored_message::contents(entry.payload.clone()).unwrap_or_else(raw);
        let cause = cause_of(&entry).to_owned();
        let history = attempts::expand(entry.history);
        Self {
            reason: last_note(&history),
            cause,
            id: entry.id,
            queue: entry.queue,
            owner: entry.owner,
            label: entry.label,
            attempts: entry.attempts,
            queued_at: entry.queued_at,
            died_at: entry.changed_at,
            headers,
            payload,
            history,
        }
    }
}

/// Returns the cause of an entry's last settlement, `failed` if that named none.
fn cause_of(entry: &Entry) -> &str {
    entry.cause.as_deref().unwrap_or("failed")
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
    /// Gives access to the dead letters of all queues in this journal.
    pub fn new(journal: J) -> Self {
        Self {
            journal,
            ttl: Duration::from_secs(24 * 60 * 60),
        }
    }

    /// Sets the time within which a redriven letter is done: a day by default.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Returns a worker that fires this alert for each letter at least once, with retries for as long
    /// as the letter is kept. Each journal with dead letters needs one; any number may run, in any
    /// process.
    pub fn alerts<A: Alert>(&self, alert: A) -> WorkerBuilder<J, AlertHandler<J, A>> {
        let handler = AlertHandler::new(self.journal.clone(), alert);
        WorkerBuilder::new(self.journal.clone(), ALERTS, handler)
    }

    /// Returns a whole letter; `None` if there is none of that id.
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

    /// Lists letters of a queue in the order in which they were queued, from the one after `after`,
    /// without payload, headers and history.
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
