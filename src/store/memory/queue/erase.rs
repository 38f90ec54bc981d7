use super::MemoryQueue;
use crate::store::journal::{Erased, Status};

impl MemoryQueue {
    /// Removes entries of an owner, but for those whose lease did not run out.
    pub(in super::super) fn erase(&mut self, queue: &str, owner: &str, limit: u32) -> Erased {
        let now = self.now();
        let (mut erasable, mut leased) = (Vec::new(), 0);
        let entries = self.entries.values().filter(|stored| {
            let entry = &stored.entry;
            !owner.is_empty() && entry.queue == queue && entry.owner == owner
        });
        for stored in entries {
            match stored.entry.status {
                Status::Processing if stored.until > now => leased += 1,
                _ => erasable.push(stored.entry.sequence),
            }
        }
        let all = erasable.len();
        erasable.truncate(limit as usize);
        for sequence in &erasable {
            self.remove(*sequence);
        }
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Erased {
            removed: number(erasable.len()),
            left: number(all - erasable.len() + leased).min(limit),
        }
    }
}
