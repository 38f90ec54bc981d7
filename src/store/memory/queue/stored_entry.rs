use bytes::Bytes;

use crate::store::{
    Fingerprint, RecordKey,
    journal::{
        Entry, EntryCommand, EventKind, HistoryEvent, Priority, Settlement, Status, Timestamp,
    },
};

/// An entry, and what only the store knows of it.
pub(super) struct StoredEntry {
    /// Its payload is without the shared end.
    pub(super) entry: Entry,
    /// The id of the shared end of its payload.
    pub(super) shared: Option<[u8; 16]>,
    pub(super) dedup: Option<(RecordKey, Fingerprint)>,
    /// Whether it was enqueued with bounds.
    pub(super) bounded: bool,
    /// End of the lease while it is processed; while it is queued, the end of its wait; once it is
    /// over, when it may be removed.
    pub(super) until: Timestamp,
}

impl StoredEntry {
    /// Returns the state that readers see.
    pub(super) fn status(&self, now: Timestamp) -> Status {
        match self.entry.status {
            Status::Queued if self.entry.expires_at <= now => Status::Expired,
            status => status,
        }
    }

    pub(super) fn is_gone(&self, now: Timestamp) -> bool {
        self.entry.status.is_over() && self.until <= now
    }

    /// Returns whether it counts against the bounds of its queue.
    pub(super) fn is_counted(&self) -> bool {
        self.bounded && !self.entry.status.is_over()
    }

    /// Returns the bytes of its own.
    pub(super) fn bytes(&self) -> u64 {
        let result = self.entry.result.as_ref().map_or(0, Bytes::len);
        (self.entry.payload.len() + result) as u64
    }

    /// Returns the entry without payload, result and history.
    pub(super) fn summary(&self, now: Timestamp) -> Entry {
        let entry = &self.entry;
        Entry {
            id: entry.id,
            queue: entry.queue.clone(),
            lane: entry.lane.clone(),
            owner: entry.owner.clone(),
            label: entry.label.clone(),
            priority: entry.priority,
            status: self.status(now),
            sequence: entry.sequence,
            lease_token: entry.lease_token,
            attempts: entry.attempts,
            redrives: entry.redrives,
            cause: entry.cause.clone(),
            repeats: entry.repeats,
            reason: entry.reason.clone(),
            queued_at: entry.queued_at,
            due_at: entry.due_at,
            expires_at: entry.expires_at,
            changed_at: entry.changed_at,
            payload: Bytes::new(),
            result: None,
            history: Vec::new(),
        }
    }

    pub(super) fn settle(&mut self, settlement: Settlement, now: Timestamp) {
        let (status, time) = settlement.outcome.transition();
        let entry = &mut self.entry;
        if !settlement.outcome.is_release() {
            let cause = settlement.stored_cause();
            entry.repeats = cause.map_or(0, |cause| entry.repeats_of(cause) + 1);
            entry.cause = cause.map(str::to_owned);
        } else if !entry.is_past() {
            entry.attempts = entry.attempts.saturating_sub(1);
        }
        entry.status = status;
        entry.changed_at = now;
        self.until = now.after(time);
        if status == Status::Queued && !settlement.keeps_place {
            entry.due_at = self.until.min(entry.expires_at);
        }
        if let Some(remainder) = settlement.stored_remainder() {
            entry.payload = remainder.clone();
            self.shared = None;
        }
        if settlement.result.is_some() {
            entry.result = settlement.result;
        }
        self.note(EventKind::Settlement, &settlement.note, now);
    }

    pub(super) fn command(&mut self, command: EntryCommand, now: Timestamp) {
        let (time, note) = command.time_and_note();
        let entry = &mut self.entry;
        match command {
            EntryCommand::Cancel(_) => {
                entry.status = Status::Cancelled;
                entry.changed_at = now;
                entry.payload = Bytes::new();
                self.shared = None;
                self.until = now.after(time);
            }
            EntryCommand::Trigger => {
                entry.priority = Priority::Urgent;
                entry.due_at = now;
                self.until = now;
            }
            EntryCommand::Redrive(_) => {
                entry.status = Status::Queued;
                entry.changed_at = now;
                entry.attempts = 0;
                entry.redrives += 1;
                entry.repeats = 0;
                entry.due_at = now;
                entry.expires_at = now.after(time);
                self.until = now;
            }
            EntryCommand::Purge => unreachable!("the queue removes a purged entry"),
        }
        self.note(EventKind::Command, note, now);
    }

    fn note(&mut self, kind: EventKind, note: &str, at: Timestamp) {
        if !note.is_empty() {
            let note = HistoryEvent::cut(note).to_owned();
            self.entry.history.push(HistoryEvent { at, kind, note });
        }
    }
}
