//! Queries of the journal in memory.

use std::ops::Bound;

use super::{MemoryQueue, stored_entry::StoredEntry};
use crate::store::RecordKey;
use crate::store::journal::{Counts, Duplicate, Entry, EntryId, Query, Status};

impl MemoryQueue {
    pub(in super::super) fn lanes(
        &self,
        queue: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Vec<String> {
        let now = self.now();
        let from = match after {
            Some(after) => Bound::Excluded((queue.to_owned(), after.to_owned())),
            None => Bound::Included((queue.to_owned(), String::new())),
        };
        self.lanes
            .range((from, Bound::Unbounded))
            .take_while(|((of, _), _)| of == queue)
            .filter(|(_, lane)| lane.has_work(now))
            .map(|((_, name), _)| name.clone())
            .take(limit as usize)
            .collect()
    }

    pub(in super::super) fn find(&self, id: EntryId) -> Option<Entry> {
        let now = self.now();
        let stored = self.entries.get(self.ids.get(&id)?)?;
        (!stored.is_gone(now)).then(|| Entry {
            status: stored.status(now),
            ..self.whole(stored)
        })
    }

    pub(in super::super) fn find_duplicate(
        &self,
        queue: &str,
        key: RecordKey,
    ) -> Option<Duplicate> {
        let now = self.now();
        let stored = self
            .entries
            .get(self.dedup.get(&(queue.to_owned(), key))?)?;
        let free = matches!(stored.status(now), Status::Cancelled | Status::Expired);
        let (_, fingerprint) = stored.dedup?;
        (!free && !stored.is_gone(now)).then(|| Duplicate {
            entry: stored.summary(now),
            fingerprint,
        })
    }

    pub(in super::super) fn list(&self, query: &Query) -> Vec<Entry> {
        let now = self.now();
        let wanted = |stored: &&StoredEntry| {
            let entry = &stored.entry;
            entry.queue == query.queue
                && (query.owner.is_none() || query.owner.as_ref() == Some(&entry.owner))
                && (query.label.is_none() || query.label.as_ref() == Some(&entry.label))
                && query
                    .status
                    .is_none_or(|status| status == stored.status(now))
                && !stored.is_gone(now)
        };
        self.entries
            .range((Bound::Excluded(query.after), Bound::Unbounded))
            .map(|(_, stored)| stored)
            .filter(wanted)
            .take(query.limit as usize)
            .map(|stored| stored.summary(now))
            .collect()
    }

    pub(in super::super) fn counts(&self, queue: &str) -> Counts {
        let now = self.now();
        let mut counts = Counts {
            by_status: self.counts.get(queue).copied().unwrap_or_default(),
            oldest: None,
        };
        // Those that were kept long enough and wait for a sweep.
        let gone = self.over.range(..=(now, u64::MAX));
        let gone = gone.filter_map(|(_, sequence)| self.entries.get(sequence));
        for stored in gone.filter(|stored| stored.entry.queue == queue) {
            counts.by_status[usize::from(stored.entry.status.number())] -= 1;
        }
        if let Some(waiting) = self.waiting.get(queue) {
            let past = waiting.past(now);
            counts.by_status[usize::from(Status::Queued.number())] -= past;
            counts.by_status[usize::from(Status::Expired.number())] += past;
            let mut entries = waiting
                .by_arrival()
                .filter_map(|sequence| self.entries.get(&sequence));
            let oldest = entries.find(|stored| stored.status(now) == Status::Queued);
            counts.oldest = oldest.map(|stored| now.since(stored.entry.queued_at));
        }
        counts
    }

    pub(in super::super) fn position(&self, id: EntryId, limit: u32) -> Option<u32> {
        let now = self.now();
        let stored = self.entries.get(self.ids.get(&id)?)?;
        let entry = &stored.entry;
        if stored.status(now) != Status::Queued {
            return None;
        }
        let lane = self.lanes.get(&(entry.queue.clone(), entry.lane.clone()))?;
        let before = lane
            .queued
            .range(..(entry.priority, entry.due_at, entry.sequence));
        u32::try_from(before.take(limit as usize).count()).ok()
    }
}
