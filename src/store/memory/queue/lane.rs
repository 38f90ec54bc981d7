use std::collections::BTreeSet;

use crate::store::journal::{Priority, Timestamp};

/// The entries of a lane that can be leased, now or later, by sequence.
#[derive(Default)]
pub(super) struct Lane {
    /// Queued entries in the order of leases.
    pub(super) queued: BTreeSet<(Priority, Timestamp, u64)>,
    /// The same entries, by when they are past their time.
    pub(super) expiring: BTreeSet<(Timestamp, u64)>,
    /// Leased entries, by when the lease runs out.
    pub(super) leased: BTreeSet<(Timestamp, u64)>,
}

impl Lane {
    /// Returns whether anything can be leased now.
    pub(super) fn has_work(&self, now: Timestamp) -> bool {
        let due = Priority::ALL
            .iter()
            .any(|&p| self.due(p, now).next().is_some());
        let lapsed = self.leased.first().is_some_and(|&(until, _)| until <= now);
        due || lapsed
    }

    /// Returns the entries of a priority that are due, in order.
    pub(super) fn due(&self, priority: Priority, now: Timestamp) -> impl Iterator<Item = u64> {
        let from = (priority, Timestamp::from_micros(0), 0);
        let range = self.queued.range(from..=(priority, now, u64::MAX));
        range.map(|&(_, _, sequence)| sequence)
    }

    /// Returns the entries of a set whose time has come.
    pub(super) fn past(set: &BTreeSet<(Timestamp, u64)>, now: Timestamp) -> Vec<u64> {
        let range = set.range(..=(now, u64::MAX));
        range.map(|&(_, sequence)| sequence).collect()
    }
}
