use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::DeadLetters;
use crate::store::{
    StoreError,
    journal::{EntryCommand, EntryId, Journal, Query, Status},
};

/// How many letters are listed in one go.
const PAGE: u32 = 100;

/// What became of a letter that was redriven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redriven {
    /// It is queued again.
    Queued,
    /// It is no dead letter, or no more: nothing was changed.
    NotDead(Status),
    /// There is nothing of that id.
    Unknown,
}

/// Which letters to redrive, and how.
#[derive(Debug, Clone)]
#[must_use]
pub struct Redrive {
    query: Query,
    dry_run: bool,
    per_second: u32,
    at_most: u64,
}

impl Redrive {
    /// All letters of a queue, ten a second.
    pub fn queue(queue: impl Into<String>) -> Self {
        Self {
            query: Query {
                status: Some(Status::Failed),
                ..Query::new(queue.into(), PAGE)
            },
            dry_run: false,
            per_second: 10,
            at_most: u64::MAX,
        }
    }

    /// Only those of this owner.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.query.owner = Some(owner.into());
        self
    }

    /// Only those of this label.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.query.label = Some(label.into());
        self
    }

    /// Only counts them.
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    /// How many a second: at least one.
    pub fn per_second(mut self, per_second: u32) -> Self {
        self.per_second = per_second.max(1);
        self
    }

    /// No more than so many.
    pub fn at_most(mut self, letters: u64) -> Self {
        self.at_most = letters;
        self
    }
}

/// What a [`Redrive`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RedriveReport {
    /// How many letters it is about.
    pub matched: u64,
    /// How many are queued again. Somebody else may have been faster with the others.
    pub redriven: u64,
}

impl<J: Journal + Clone> DeadLetters<J> {
    /// Queues a letter again, with no attempts made and its history kept. Redriving it twice is
    /// redriving it once.
    ///
    /// # What happens again
    ///
    /// A webhook is delivered again under the id that it has, an event goes to its consumer again.
    ///
    /// A replay is called again under its idempotency key, so that what succeeded meanwhile is not
    /// done a second time. If the reply that is kept under that key is a failure, as it is when the
    /// replay died of it, the request is **executed again**, at most once for each redrive, under a
    /// key of that redrive: the replay's id without `rpl_`, `-` and a number. That is what the
    /// handler sees, and what it passes on to those that it calls. What comes of it is the replay's
    /// reply, and its callback is told; who repeats the request itself still gets the failure that
    /// is kept under the key he knows. An outcome that is not known, or that was not retained, is
    /// not executed again: the letter dies of it once more.
    ///
    /// # Errors
    ///
    /// The journal failed.
    pub async fn redrive(&self, id: EntryId) -> Result<Redriven, StoreError> {
        let steered = self
            .journal
            .command(id, EntryCommand::Redrive(self.ttl))
            .await?;
        Ok(match steered {
            Some(steered) if steered.applied => Redriven::Queued,
            Some(steered) => Redriven::NotDead(steered.entry.status),
            None => Redriven::Unknown,
        })
    }

    /// Queues many letters again, at a bounded rate. When the future is dropped it ends where it
    /// is, and can be begun again.
    ///
    /// # Errors
    ///
    /// The journal failed. What was redriven before that is.
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
            for letter in page {
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
            }
        }
    }
}
