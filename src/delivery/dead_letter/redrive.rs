use std::time::{Duration, SystemTime};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{DeadLetters, cause_of};
use crate::store::{
    StoreError,
    journal::{Entry, EntryCommand, EntryId, Journal, Query, Status, Timestamp},
};

/// Letters that are listed in one call.
const PAGE: u32 = 100;

/// The result of a redrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redriven {
    /// The letter is queued again.
    Queued,
    /// The entry is no dead letter (any more), and is unchanged.
    NotDead(Status),
    /// There is no entry of that id.
    Unknown,
}

/// The result of a purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purged {
    /// The letter is removed.
    Removed,
    /// The entry is no dead letter (any more), and is unchanged.
    NotDead(Status),
    /// There is no entry of that id.
    Unknown,
}

/// A selection of many letters, and how to redrive or purge them.
#[derive(Debug, Clone)]
#[must_use]
pub struct Selection {
    query: Query,
    cause: Option<String>,
    since: Option<Timestamp>,
    dry_run: bool,
    per_second: Option<u32>,
    at_most: u64,
    progress: Option<watch::Sender<SelectionReport>>,
}

impl Selection {
    /// Selects all letters of a queue.
    pub fn queue(queue: impl Into<String>) -> Self {
        Self {
            query: Query {
                status: Some(Status::Failed),
                ..Query::new(queue.into(), PAGE)
            },
            cause: None,
            since: None,
            dry_run: false,
            per_second: None,
            at_most: u64::MAX,
            progress: None,
        }
    }

    /// Selects letters of this owner only.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.query.owner = Some(owner.into());
        self
    }

    /// Selects letters of this label only.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.query.label = Some(label.into());
        self
    }

    /// Selects letters of this [cause](super::DeadLetter::cause) only.
    pub fn cause(mut self, cause: impl Into<String>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Selects letters that failed at this time or later only.
    pub fn since(mut self, since: SystemTime) -> Self {
        self.since = Some(since.into());
        self
    }

    /// Counts the letters without changing them.
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    /// Sets the rate: at least one a second. By default ten a second are redriven, and letters are
    /// purged as fast as the journal removes them.
    pub fn per_second(mut self, per_second: u32) -> Self {
        self.per_second = Some(per_second.max(1));
        self
    }

    /// Sets the most letters.
    pub fn at_most(mut self, letters: u64) -> Self {
        self.at_most = letters;
        self
    }

    /// Sends the report after each letter, for a display of progress.
    pub fn progress(mut self, report: watch::Sender<SelectionReport>) -> Self {
        self.progress = Some(report);
        self
    }

    fn selects(&self, letter: &Entry) -> bool {
        let is_of = |cause: &String| cause == cause_of(letter);
        self.cause.as_ref().is_none_or(is_of)
            && self.since.is_none_or(|since| letter.changed_at >= since)
    }
}

/// The result of a redrive or purge of many letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SelectionReport {
    /// The letters that matched.
    pub matched: u64,
    /// The letters that were redriven or purged. Another operator may have had the others.
    pub changed: u64,
}

impl<J: Journal + Clone> DeadLetters<J> {
    /// Queues a letter again, with zero attempts and its history. A second redrive changes nothing.
    ///
    /// # What happens again
    ///
    /// A webhook is delivered again under its id, and an event goes to its consumer again.
    ///
    /// A replay calls the service again under its idempotency key, so that a request that succeeded
    /// meanwhile is not executed twice. If the reply stored under that key is a failure, as it is when
    /// the replay failed of it, the request is **executed again** under a key of that redrive: the
    /// replay's id without `rpl_`, `-` and a number. A transient failure is attempted again as in any
    /// replay. The handler sees that key, and passes it on. The new reply is the replay's reply, which its callback gets; a client
    /// that repeats the request itself still gets the failure stored under its own key. A request whose
    /// outcome is unknown or was not retained is not executed again: the letter fails once more.
    ///
    /// # Errors
    ///
    /// The journal failed.
    pub async fn redrive(&self, id: EntryId) -> Result<Redriven, StoreError> {
        let result = self
            .journal
            .command(id, EntryCommand::Redrive(self.ttl))
            .await?;
        Ok(match result {
            Some(result) if result.applied => Redriven::Queued,
            Some(result) => Redriven::NotDead(result.entry.status),
            None => Redriven::Unknown,
        })
    }

    /// Queues many letters again, at a bounded rate. A future that is dropped leaves the rest as they
    /// are, for the next call.
    ///
    /// # Errors
    ///
    /// The journal failed. Letters redriven before that stay so.
    pub async fn redrive_all(&self, selection: Selection) -> Result<SelectionReport, StoreError> {
        let pause = Duration::from_secs(1) / selection.per_second.unwrap_or(10);
        let redrive = EntryCommand::Redrive(self.ttl);
        self.command_all(selection, redrive, pause).await
    }

    /// Removes a letter for good, with its payload and history. An entry that was redriven meanwhile
    /// stays.
    ///
    /// The key of a replay is free then: a repeat of its request is executed, unless the idempotency
    /// store still has its reply.
    ///
    /// # Errors
    ///
    /// The journal failed.
    pub async fn purge(&self, id: EntryId) -> Result<Purged, StoreError> {
        let result = self.journal.command(id, EntryCommand::Purge).await?;
        Ok(match result {
            Some(result) if result.applied => Purged::Removed,
            Some(result) => Purged::NotDead(result.entry.status),
            None => Purged::Unknown,
        })
    }

    /// Removes many letters for good. A future that is dropped leaves the rest as they are.
    ///
    /// # Errors
    ///
    /// The journal failed. Letters purged before that stay so.
    pub async fn purge_all(&self, selection: Selection) -> Result<SelectionReport, StoreError> {
        let rate = selection.per_second;
        let pause = rate.map_or(Duration::ZERO, |rate| Duration::from_secs(1) / rate);
        self.command_all(selection, EntryCommand::Purge, pause)
            .await
    }

    async fn command_all(
        &self,
        selection: Selection,
        command: EntryCommand,
        pause: Duration,
    ) -> Result<SelectionReport, StoreError> {
        let mut report = SelectionReport::default();
        let mut query = selection.query.clone();
        let mut next = Instant::now();
        loop {
            let page = self.journal.list(query.clone()).await?;
            let Some(last) = page.last() else {
                return Ok(report);
            };
            query.after = last.sequence;
            for letter in page.iter().filter(|letter| selection.selects(letter)) {
                if report.matched == selection.at_most {
                    return Ok(report);
                }
                report.matched += 1;
                if !selection.dry_run {
                    sleep_until(next).await;
                    next += pause;
                    let result = self.journal.command(letter.id, command).await?;
                    report.changed += u64::from(result.is_some_and(|result| result.applied));
                }
                if let Some(progress) = &selection.progress {
                    progress.send_replace(report);
                }
            }
        }
    }
}
