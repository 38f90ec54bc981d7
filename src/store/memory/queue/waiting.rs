use std::collections::BTreeSet;

use super::stored_entry::StoredEntry;
use crate::store::journal::Timestamp;

/// The queued entries of a queue, by sequence. Counting reads none but those past their time.
#[derive(Default)]
pub(super) struct Waiting {
    by_arrival: BTreeSet<u64>,
    expiring: BTreeSet<(Timestamp, u64)>,
}

impl Waiting {
    pub(super) fn add(&mut self, stored: &StoredEntry) {
        let sequence = stored.entry.sequence;
        self.by_arrival.insert(sequence);
        self.expiring.insert((stored.entry.expires_at, sequence));
    }

    /// Removes an entry, and returns whether none is left.
    pub(super) fn remove(&mut self, stored: &StoredEntry) -> bool {
        let sequence = stored.entry.sequence;
        self.by_arrival.remove(&sequence);
        self.expiring.remove(&(stored.entry.expires_at, sequence));
        self.by_arrival.is_empty()
    }

    /// Returns the entries in the order of their arrival.
    pub(super) fn by_arrival(&self) -> impl Iterator<Item = u64> {
        self.by_arrival.iter().copied()
    }

    /// Returns the number of entries that are past their time.
    pub(super) fn past(&self, now: Timestamp) -> u64 {
        self.expiring.range(..=(now, u64::MAX)).count() as u64
    }
}
