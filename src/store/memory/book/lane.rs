use std::collections::BTreeSet;

use crate::store::journal::{Priority, Timestamp};

/// What can be leased, or could be later.
#[derive(Default)]
pub(super) struct Lane {
    pub(super) queued: BTreeSet<(Priority, Timestamp, u64)>,
    pub(super) expiring: BTreeSet<(Timestamp, u64)>,
    pub(super) leased: BTreeSet<(Timestamp, u64)>,
}

impl Lane {
    pub(super) fn has_work(&self, now: Timestamp) -> bool {
        let due = Priority::ALL
            .iter()
            .any(|&p| self.due(p, now).next().is_some());
        let lapsed = self.leased.first().is_some_and(|&(until, _)| until <= now);
        due || lapsed
    }

    pub(super) fn due(&self, priority: Priority, now: Timestamp) -> impl Iterator<Item = u64> {
        let from = (priority, Timestamp::from_micros(0), 0);
        let range = self.queued.range(from..=(priority, now, u64::MAX));
        range.map(|&(_, _, sequence)| sequence)
    }

    pub(super) fn past(set: &BTreeSet<(Timestamp, u64)>, now: Timestamp) -> Vec<u64> {
        let range = set.range(..=(now, u64::MAX));
        range.map(|&(_, sequence)| sequence).collect()
    }
}
