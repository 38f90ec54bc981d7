use std::{borrow::Cow, time::Duration};

use bytes::Bytes;

use super::{NewEntry, Status, history::cut};

/// The result of one lease.
#[derive(Debug, Clone)]
#[must_use]
pub struct Settlement {
    /// The state that follows.
    pub outcome: SettlementOutcome,
    /// A line for the history; none if empty. At most 512 bytes are kept.
    pub note: String,
    /// A name for why the attempt failed, which may be logged and sent on: no text of a peer's or
    /// of a payload's, no NUL. At most 128 bytes are kept.
    pub cause: Option<Cow<'static, str>>,
    /// The result of the work, if there is one; an earlier one stays if not.
    pub result: Option<Bytes>,
    /// The bytes that take the place of the payload if the entry is completed or expires: by default
    /// none. An entry that failed keeps its payload, since it can be redriven.
    pub remainder: Bytes,
    /// Entries that follow from it: queued together with the outcome, or not at all.
    pub outbox: Vec<NewEntry>,
    /// Whether an entry that is queued again stays where it was, before those that came after it:
    /// its wait then holds up leases [in order](super::LeaseRequest::in_order), and no others.
    pub keeps_place: bool,
}

/// The state of an entry after a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettlementOutcome {
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

impl SettlementOutcome {
    /// Returns a stable name, for logs and metrics.
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

    /// Returns whether the entry failed for good.
    #[must_use]
    pub fn is_failed(self) -> bool {
        matches!(self, Self::Failed(_))
    }

    /// Returns whether the lease ended without an attempt.
    pub(crate) fn is_release(self) -> bool {
        matches!(self, Self::Release(_))
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
}

impl Settlement {
    fn with(outcome: SettlementOutcome, note: impl Into<String>) -> Self {
        Self {
            outcome,
            note: note.into(),
            cause: None,
            result: None,
            remainder: Bytes::new(),
            outbox: Vec::new(),
            keeps_place: false,
        }
    }

    /// Settles an entry as done, with a result that is kept for a while. An entry that is kept for no
    /// time is gone at once; PostgreSQL then removes the row instead of writing a new one, and a repeat after
    /// an error can't tell that the entry was completed by it: the answer is `Lost`.
    pub fn completed(result: impl Into<Bytes>, keep: Duration) -> Self {
        Self {
            result: Some(result.into()),
            ..Self::with(SettlementOutcome::Completed(keep), "completed")
        }
    }

    /// Settles an entry as failed for good: a dead letter, kept for a while.
    pub fn failed(reason: impl Into<String>, keep: Duration) -> Self {
        Self::with(SettlementOutcome::Failed(keep), reason)
    }

    /// Settles an entry as not done in time.
    pub fn expired(keep: Duration) -> Self {
        Self::with(SettlementOutcome::Expired(keep), "expired")
    }

    /// Settles a failed attempt: the next one is due after a while.
    pub fn retry(reason: impl Into<String>, delay: Duration) -> Self {
        Self::with(SettlementOutcome::Retry(delay), reason)
    }

    /// Gives an entry back that was not started.
    pub fn release(delay: Duration) -> Self {
        Self::with(SettlementOutcome::Release(delay), "")
    }

    /// Names why the attempt failed.
    pub fn cause(mut self, cause: impl Into<Cow<'static, str>>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Leaves these bytes in the place of the payload of an entry that is completed or expires.
    pub fn remainder(mut self, remainder: impl Into<Bytes>) -> Self {
        self.remainder = remainder.into();
        self
    }

    /// Adds entries that are committed together with the outcome.
    pub fn followed_by(mut self, outbox: impl IntoIterator<Item = NewEntry>) -> Self {
        self.outbox.extend(outbox);
        self
    }

    /// Returns the bytes that take the place of the payload; `None` if it stays.
    pub(crate) fn stored_remainder(&self) -> Option<&Bytes> {
        let (status, _) = self.outcome.transition();
        status.drops_payload().then_some(&self.remainder)
    }

    /// Returns the part of the cause that is stored.
    pub(crate) fn stored_cause(&self) -> Option<&str> {
        const LONGEST: usize = 128;
        let cause = self.cause.as_deref().map(|cause| cut(cause, LONGEST));
        cause.filter(|cause| !cause.is_empty())
    }
}
