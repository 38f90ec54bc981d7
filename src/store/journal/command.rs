use std::time::Duration;

use super::{Entry, Status};

/// An operator's act on an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryCommand {
    /// Cancels an entry that is [`Queued`](Status::Queued), and keeps it for that long.
    Cancel(Duration),
    /// Makes an entry that is [`Queued`](Status::Queued) due now, and
    /// [`Urgent`](super::Priority::Urgent).
    Trigger,
    /// Queues an entry that is [`Failed`](Status::Failed) anew, with no attempts made and
    /// that long to live.
    Redrive(Duration),
    /// Removes an entry that is [`Failed`](Status::Failed), with its payload, history and
    /// [key](super::Dedup::key).
    Purge,
}

impl EntryCommand {
    /// Returns the state of the entries to which the command applies.
    pub(crate) fn applies_to(self) -> Status {
        match self {
            Self::Cancel(_) | Self::Trigger => Status::Queued,
            Self::Redrive(_) | Self::Purge => Status::Failed,
        }
    }

    /// Returns the time to keep the entry or to live, and the note for its history.
    pub(crate) fn time_and_note(self) -> (Duration, &'static str) {
        match self {
            Self::Cancel(keep) => (keep, "cancelled"),
            Self::Trigger | Self::Purge => (Duration::ZERO, ""),
            Self::Redrive(ttl) => (ttl, "redriven"),
        }
    }
}

/// The answer to an [`EntryCommand`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandResult {
    /// Whether the entry was in a state for the command, and changed.
    pub applied: bool,
    /// The entry as it stands now, or as it stood when it was purged, without payload, result and
    /// history.
    pub entry: Entry,
}
