use std::time::Duration;

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{DeadLetters, cause_of};
use crate::store::{
    StoreError,
    journal::{Entry, EntryCommand, EntryId, Journal, Query, Status},
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

/// A redrive of many letters.
#[derive(Debug, Clone)]
#[must_use]
pub struct Redrive {
    query: Query,
    cause: Option<String>,
    dry_run: bool,
    per_second: u32,
    at_most: u64,
    progress: Option<watch::Sender<RedriveReport>>,
}

impl Redrive {
    /// Redrives all letters of a queue, ten a second.
    pub fn queue(queue: impl Into<String>) -> Self {
        Self {
            query: Query {
                status: Some(Status::Failed),
                ..Query::new(queue.into(), PAGE)
            },
            cause: None,
            dry_run: false,
            per_second: 10,
            at_most: u64::MAX,
            progress: None,
        }
    }

    /// Redrives letters of this owner only.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.query.owner = Some(owner.into());
        self
    }

    /// Redrives letters of this label only.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.query.label = Some(label.into());
        self
    }

    /// Redrives letters of this [cause](super::DeadLetter::cause) only.
    pub fn cause(mut self, cause: impl Into<String>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Counts the letters without redriving them.
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    /// Sets the rate: at least one a second.
    pub fn per_second(mut self, per_second: u32) -> Self {
        self.per_second = per_second.max(1);
        self
    }

    /// Sets the most letters.
    pub fn at_most(mut self, letters: u64) -> Self {
        self.at_most = letters;
        self
    }

    /// Sends the report after each letter, for a display of progress.
    pub fn progress(mut self, report: watch::Sender<RedriveReport>) -> Self {
        self.progress = Some(report);
        self
    }
}

/// The result of a [`Redrive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RedriveReport {
    /// The letters that matched.
    pub matched: u64,
    /// The letters that are queued again. Another operator may have redriven the others.
    pub redriven: u64,
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
    pub async fn redrive_all(&self, redrive: Redrive) -> Result<RedriveReport, StoreError> {
        let mut report = RedriveReport::default();
        let mut query = redrive.query;
        let mut next = Instant::now();
        loop {
            let page = self.journal.list(query.clone()).await?;
            let Some(last) = page.last() else {
                return Ok(report);
            };
            query.after = last.sequence;
            let wanted = |letter: &Entry| {
                redrive
                    .cause
                    .as_deref()
                    .is_none_or(|cause| cause == cause_of(letter))
            };
            for letter in page.into_iter().filter(wanted) {
                if report.matched == redrive.at_most {
                    return Ok(report);
                }
                report.matched += 1;
                if !redrive.dry_run {
                    sleep_until(next).await;
                    next += Duration::from_secs(1) / redrive.per_second;
                    let redriven = self.redrive(letter.id).await?;
                    report.redriven += u64::from(redriven == Redriven::Queued);
                }
                if let Some(progress) = &redrive.progress {
                    progress.send_replace(report);
                }
            }
        }
    }
}
