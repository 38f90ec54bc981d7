use std::collections::HashMap;

use crate::store::journal::{Entry, NewEntry, QueueBounds};

/// The numbers of entries that count against the bounds of their queue.
#[derive(Default)]
pub(super) struct OpenEntries {
    by_queue: HashMap<String, u32>,
    by_owner: HashMap<(String, String), u32>,
}

impl OpenEntries {
    /// Returns whether the bounds of a new entry leave no room for it.
    pub(super) fn is_full(&self, new: &NewEntry) -> bool {
        let Some(QueueBounds { in_all, per_owner }) = new.bounds else {
            return false;
        };
        let key = (new.queue.clone().into_owned(), new.owner.clone());
        let of_owner = self.by_owner.get(&key).copied().unwrap_or_default();
        let of_queue = self.by_queue.get(&key.0).copied().unwrap_or_default();
        of_queue >= in_all || of_owner >= per_owner
    }

    pub(super) fn add(&mut self, entry: &Entry) {
        let (queue, owner) = (entry.queue.clone(), entry.owner.clone());
        *self.by_queue.entry(queue.clone()).or_default() += 1;
        *self.by_owner.entry((queue, owner)).or_default() += 1;
    }

    /// Removes an entry, and what is zero then: owners come and go.
    pub(super) fn remove(&mut self, entry: &Entry) {
        if let Some(count) = self.by_queue.get_mut(&entry.queue) {
            *count -= 1;
            if *count == 0 {
                self.by_queue.remove(&entry.queue);
            }
        }
        let key = (entry.queue.clone(), entry.owner.clone());
        if let Some(count) = self.by_owner.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.by_owner.remove(&key);
            }
        }
    }
}
