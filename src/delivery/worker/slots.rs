//! Counts of the entries that are leased and not handled yet, in all and of each lane.

use std::{
    collections::HashMap,
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
}

impl Slots {
    pub(super) fn take(self: &Arc<Self>, lane: String) -> Slot {
        let mut taken = self.lock();
        taken.all += 1;
        *taken.of_lane.entry(lane.clone()).or_default() += 1;
        Slot {
            slots: Arc::clone(self),
            lane,
        }
    }

    pub(super) fn taken(&self) -> usize {
        self.lock().all
    }

    pub(super) fn taken_by(&self, lane: &str) -> usize {
        self.lock().of_lane.get(lane).copied().unwrap_or_default()
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
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.slots.lock();
        taken.all -= 1;
        if let Some(of_lane) = taken.of_lane.get_mut(&self.lane) {
            *of_lane -= 1;
            if *of_lane == 0 {
                taken.of_lane.remove(&self.lane);
            }
        }
        drop(taken);
        self.slots.freed.notify_one();
    }
}
