//! Counts of the entries that are leased and not handled yet: in all, of each lane, of each target.

use std::{
    borrow::Borrow,
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

/// The slots of a worker. It knows those taken only: the limit changes with the handler's
/// admission.
#[derive(Default)]
pub(super) struct Slots {
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Default)]
struct Taken {
    all: usize,
    of_lane: HashMap<String, usize>,
    of_target: HashMap<Arc<str>, usize>,
}

impl Slots {
    pub(super) fn take(self: &Arc<Self>, lane: String, target: Option<Arc<str>>) -> Slot {
        let mut taken = self.lock();
        taken.all += 1;
        *taken.of_lane.entry(lane.clone()).or_default() += 1;
        if let Some(target) = &target {
            *taken.of_target.entry(Arc::clone(target)).or_default() += 1;
        }
        Slot {
            slots: Arc::clone(self),
            lane,
            target,
        }
    }

    pub(super) fn taken(&self) -> usize {
        self.lock().all
    }

    pub(super) fn taken_by(&self, lane: &str) -> usize {
        self.lock().of_lane.get(lane).copied().unwrap_or_default()
    }

    pub(super) fn taken_for(&self, target: &str) -> usize {
        self.lock()
            .of_target
            .get(target)
            .copied()
            .unwrap_or_default()
    }

    /// Waits until a slot is freed, or returns at once if one was since the last wait.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot, freed when this is dropped.
pub(super) struct Slot {
    slots: Arc<Slots>,
    lane: String,
    target: Option<Arc<str>>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.slots.lock();
        taken.all -= 1;
        free(&mut taken.of_lane, &self.lane);
        if let Some(target) = &self.target {
            free(&mut taken.of_target, target);
        }
        drop(taken);
        self.slots.freed.notify_one();
    }
}

fn free<K, Q>(taken: &mut HashMap<K, usize>, name: &Q)
where
    K: Borrow<Q> + Eq + Hash,
    Q: Eq + Hash + ?Sized,
{
    if let Some(count) = taken.get_mut(name) {
        *count -= 1;
        if *count == 0 {
            taken.remove(name);
        }
    }
}
