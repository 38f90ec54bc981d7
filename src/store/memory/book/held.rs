use bytes::Bytes;

use crate::store::{
    Fingerprint, RecordKey,
    journal::{Attempted, Entry, EntryCommand, Outcome, Priority, Status, Timestamp},
};

pub(super) struct Held {
    pub(super) entry: Entry,
    pub(super) dedup: Option<(RecordKey, Fingerprint)>,
    /// While it is processed, when the lease runs out; once it is over, when it may go.
    pub(super) until: Timestamp,
}

impl Held {
    pub(super) fn status(&self, now: Timestamp) -> Status {
        match self.entry.status {
            Status::Queued if self.entry.expires_at <= now => Status::Expired,
            status => status,
        }
    }

    pub(super) fn is_gone(&self, now: Timestamp) -> bool {
        self.entry.status.is_over() && self.until <= now
    }

    pub(super) fn bytes(&self) -> u64 {
        let result = self.entry.result.as_ref().map_or(0, Bytes::len);
        (self.entry.payload.len() + result) as u64
    }

    pub(super) fn summary(&self, now: Timestamp) -> Entry {
        Entry {
            status: self.status(now),
            payload: Bytes::new(),
            result: None,
            history: Vec::new(),
            ..self.entry.clone()
        }
    }

    pub(super) fn settle(&mut self, outcome: Outcome, now: Timestamp) {
        let (status, time) = match outcome {
            Outcome::Completed(keep) => (Status::Completed, keep),
            Outcome::Failed(keep) => (Status::Failed, keep),
            Outcome::Expired(keep) => (Status::Expired, keep),
            Outcome::Retry(delay) | Outcome::Release(delay) => (Status::Queued, delay),
        };
        let entry = &mut self.entry;
        if matches!(outcome, Outcome::Release(_)) && !entry.is_past() {
            entry.attempts = entry.attempts.saturating_sub(1);
        }
        entry.status = status;
        entry.changed_at = now;
        self.until = now.after(time);
        if status == Status::Queued {
            entry.due_at = self.until.min(entry.expires_at);
        }
    }

    pub(super) fn command(&mut self, command: EntryCommand, now: Timestamp) {
        let entry = &mut self.entry;
        match command {
            EntryCommand::Cancel(keep) => {
                entry.status = Status::Cancelled;
                entry.changed_at = now;
                self.until = now.after(keep);
                self.note("cancelled", now);
            }
            EntryCommand::Trigger => {
                entry.priority = Priority::Urgent;
                entry.due_at = now;
            }
            EntryCommand::Redrive(ttl) => {
                entry.status = Status::Queued;
                entry.changed_at = now;
                entry.attempts = 0;
                entry.due_at = now;
                entry.expires_at = now.after(ttl);
                self.note("redriven", now);
            }
        }
    }

    pub(super) fn note(&mut self, note: &str, at: Timestamp) {
        if !note.is_empty() {
            let note = Attempted::cut(note).to_owned();
            self.entry.history.push(Attempted { at, note });
        }
    }
}
