use std::time::Duration;

use super::Entry;

/// An operator's act on an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryCommand {
    /// Cancels an entry that is [`Queued`](super::Status::Queued), and keeps it for that long.
    Cancel(Duration),
    /// Makes an entry that is [`Queued`](super::Status::Queued) due now, and
    /// [`Urgent`](super::Priority::Urgent).
    Trigger,
    /// Queues an entry that is [`Failed`](super::Status::Failed) anew, with no attempts made and
    /// that long to live.
    Redrive(Duration),
}

/// The answer to an [`EntryCommand`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandResult {
    /// Whether the entry was in a state for the command, and changed.
    pub applied: bool,
    /// The entry as it stands now, without payload, result and history.
    pub entry: Entry,
}
