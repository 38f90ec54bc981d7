use std::{borrow::Cow, time::Duration};

use bytes::Bytes;

use super::{Entry, NewEntry, Priority, Status, entry::cut};

/// The wish to work on something.
#[derive(Debug, Clone)]
#[must_use]
pub struct LeaseRequest {
    /// Of which queue.
    pub queue: Cow<'static, str>,
    /// Of which lane.
    pub lane: String,
    /// At most so many.
    pub limit: u32,
    /// Only what is at least this urgent.
    pub through: Priority,
    /// How long the lease holds unless it is extended.
    pub lease: Duration,
}

impl LeaseRequest {
    /// Entries of every priority.
    pub fn new(
        queue: impl Into<Cow<'static, str>>,
        lane: impl Into<String>,
        limit: u32,
        lease: Duration,
    ) -> Self {
        Self {
            queue: queue.into(),
            lane: lane.into(),
            limit,
            through: Priority::Low,
            lease,
        }
    }
}

/// How a turn ended.
#[derive(Debug, Clone)]
#[must_use]
pub struct Settlement {
    /// How.
    pub outcome: Outcome,
    /// What to add to the history; nothing if empty. At most 512 bytes are kept.
    pub note: String,
    /// A name for why the attempt failed, which may be logged and sent on: no text of a peer's or
    /// of a payload's, no NUL. At most 128 bytes are kept.
    pub cause: Option<Cow<'static, str>>,
    /// What came of it, if that is known.
    pub result: Option<Bytes>,
    /// What follows from it: queued together with the outcome, or not at all.
    pub outbox: Vec<NewEntry>,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// [`Status::Completed`], kept for that long.
    Completed(Duration),
    /// [`Status::Failed`], kept for that long.
    Failed(Duration),
    /// [`Status::Expired`], kept for that long.
    Expired(Duration),
    /// [`Status::Queued`] again, due after that long, at most until it is past its time.
    Retry(Duration),
    /// The same, without having been started: the attempt does not count.
    Release(Duration),
}

impl Outcome {
    /// A stable name, for logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed(_) => "completed",
            Self::Failed(_) => "failed",
            Self::Expired(_) => "expired",
            Self::Retry(_) => "retry",
            Self::Release(_) => "released",
        }
    }

    /// Returns the status that follows, and for how long the entry is kept in it or waits.
    pub(crate) fn transition(self) -> (Status, Duration) {
        match self {
            Self::Completed(keep) => (Status::Completed, keep),
            Self::Failed(keep) => (Status::Failed, keep),
            Self::Expired(keep) => (Status::Expired, keep),
            Self::Retry(delay) | Self::Release(delay) => (Status::Queued, delay),
        }
    }

    /// Whether the lease ended without an attempt.
    pub(crate) fn is_release(self) -> bool {
        matches!(self, Self::Release(_))
    }

    /// Whether the entry failed for good.
    #[must_use]
    pub fn is_failed(self) -> bool {
        matches!(self, Self::Failed(_))
    }
}

impl Settlement {
    fn with(outcome: Outcome, note: impl Into<String>) -> Self {
        Self {
            outcome,
            note: note.into(),
            cause: None,
            result: None,
            outbox: Vec::new(),
        }
    }

    /// It was done, and what came of it is kept for a while.
    pub fn completed(result: impl Into<Bytes>, keep: Duration) -> Self {
        Self {
            result: Some(result.into()),
            ..Self::with(Outcome::Completed(keep), "completed")
        }
    }

    /// It can't be done: it is a dead letter, to be kept for a while.
    pub fn failed(reason: impl Into<String>, keep: Duration) -> Self {
        Self::with(Outcome::Failed(keep), reason)
    }

    /// It was not done in time.
    pub fn expired(keep: Duration) -> Self {
        Self::with(Outcome::Expired(keep), "expired")
    }

    /// It failed, and is to be attempted again after a while.
    pub fn retry(reason: impl Into<String>, delay: Duration) -> Self {
        Self::with(Outcome::Retry(delay), reason)
    }

    /// It was not started, and somebody else may.
    pub fn release(delay: Duration) -> Self {
        Self::with(Outcome::Release(delay), "")
    }

    /// Names why the attempt failed.
    pub fn cause(mut self, cause: impl Into<Cow<'static, str>>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// The cause as stores keep it.
    pub(crate) fn stored_cause(&self) -> Option<&str> {
        const LONGEST: usize = 128;
        let cause = self.cause.as_deref().map(|cause| cut(cause, LONGEST));
        cause.filter(|cause| !cause.is_empty())
    }

    /// With what is to be done next, committed together with the outcome.
    pub fn followed_by(mut self, outbox: impl IntoIterator<Item = NewEntry>) -> Self {
        self.outbox.extend(outbox);
        self
    }
}

/// What people do to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryCommand {
    /// Calls off what is [`Status::Queued`], to be kept for that long.
    Cancel(Duration),
    /// Makes what is [`Status::Queued`] due now, and [`Priority::Urgent`].
    Trigger,
    /// Queues what is [`Status::Failed`] anew, with no attempts made and that long to live.
    Redrive(Duration),
}

/// What became of a [`EntryCommand`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandResult {
    /// Whether it changed anything: the entry was in a state for that.
    pub applied: bool,
    /// The entry as it stands now, without payload, result and history.
    pub entry: Entry,
}

/// Which entries to list.
#[derive(Debug, Clone)]
#[must_use]
pub struct Query {
    /// Of which queue.
    pub queue: Cow<'static, str>,
    /// Only of this owner.
    pub owner: Option<String>,
    /// Only in this state.
    pub status: Option<Status>,
    /// Only of this label.
    pub label: Option<String>,
    /// Only those that came after the one of this sequence.
    pub after: u64,
    /// At most so many.
    pub limit: u32,
}

impl Query {
    /// The first entries of a queue.
    pub fn new(queue: impl Into<Cow<'static, str>>, limit: u32) -> Self {
        Self {
            queue: queue.into(),
            owner: None,
            status: None,
            label: None,
            after: 0,
            limit,
        }
    }
}

/// How many entries of a queue there are in each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// By [`Status::ALL`].
    pub by_status: [u64; 6],
    /// How long the oldest that is queued has been there.
    pub oldest: Option<Duration>,
}

impl Counts {
    /// How many there are in that state.
    #[must_use]
    pub fn of(&self, status: Status) -> u64 {
        self.by_status[usize::from(status.number())]
    }
}
