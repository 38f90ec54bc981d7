use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::threads::{CELLS, cell};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// The rolling window, and the slots it is kept in. Originals of the current slot and the 29
/// before it are surely less than 30 s old; retries of one slot more are surely all that are. So
/// the bound holds to the instant, and is at most one second of traffic stricter than it needs
/// to be.
const SLOTS: u64 = 30;
const NANOS_PER_SLOT: u64 = 1_000_000_000;
const MILLION: u64 = 1_000_000;
const COUNT: u64 = u32::MAX as u64;

/// How many retries a dependency may see: in any 30 s, no more than a share of the originals, or
/// a floor that lets a quiet client retry at all.
///
/// Counting an original is one atomic add, in a cell that few threads share. Retries are rare, and
/// are counted under a lock, which makes the bound exact. Budgets of several policies may share
/// what is counted: each holds its own limit against it.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: Option<Limit>,
    counts: Arc<Counts>,
}

#[derive(Debug)]
struct Counts {
    /// What threads count in the current slot, by thread.
    cells: [Cell; CELLS],
    /// What they counted in earlier slots.
    originals: [AtomicU64; SLOTS as usize],
    retries: Mutex<Retries>,
}

/// A slot's number in the upper half, its count in the lower; in a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Cell(AtomicU64);

#[derive(Debug, Clone, Copy)]
struct Limit {
    parts_per_million: u64,
    floor: u64,
}

#[derive(Debug)]
struct Retries {
    /// Granted, but not sent yet.
    pending: u64,
    sent: [(u64, u64); SLOTS as usize + 1],
}

impl Budget {
    /// A budget of `ratio` and `floor`, or none at all.
    pub(crate) fn new(limit: Option<(f64, u32)>) -> Self {
        let counts = Counts {
            cells: std::array::from_fn(|_| Cell(AtomicU64::new(0))),
            originals: std::array::from_fn(|_| AtomicU64::new(0)),
            retries: Mutex::new(Retries {
                pending: 0,
                sent: [(0, 0); SLOTS as usize + 1],
            }),
        };
        Self::of(Arc::new(counts), limit)
    }

    /// Another limit for what is counted here.
    pub(crate) fn limited(&self, limit: Option<(f64, u32)>) -> Self {
        Self::of(Arc::clone(&self.counts), limit)
    }

    fn of(counts: Arc<Counts>, limit: Option<(f64, u32)>) -> Self {
        let limit = limit.map(|(ratio, floor)| Limit {
            parts_per_million: (ratio * MILLION as f64).round() as u64,
            floor: u64::from(floor),
        });
        Self { limit, counts }
    }

    /// What counting reads first.
    pub(super) fn word(&self) -> u64 {
        self.counts.cells[cell()].0.load(Ordering::Relaxed)
    }

    /// Counts an original request.
    pub(crate) fn deposit(&self, now: u64) {
        self.deposit_in(slot(now));
    }

    /// Counts an original request in its slot.
    pub(crate) fn deposit_in(&self, slot: u64) {
        let cell = &self.counts.cells[cell()].0;
        let mut seen = cell.load(Ordering::Relaxed);
        while seen >> 32 < slot {
            match cell.compare_exchange(seen, slot << 32 | 1, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return self.keep(seen),
                Err(newer) => seen = newer,
            }
        }
        cell.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds what a cell counted in an earlier slot to that slot, unless it is out of the window.
    #[cold]
    fn keep(&self, counted: u64) {
        let (slot, count) = (counted >> 32, counted & COUNT);
        let kept = &self.counts.originals[(slot % SLOTS) as usize];
        let mut seen = kept.load(Ordering::Relaxed);
        while seen >> 32 <= slot {
            let sum = if seen >> 32 == slot {
                seen + count
            } else {
                counted
            };
            match kept.compare_exchange(seen, sum, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(newer) => seen = newer,
            }
        }
    }

    /// Grants one retry, which then must be [sent](Self::commit) or [given back](Self::refund).
    pub(crate) fn charge(&self, now: u64) -> bool {
        let Some(limit) = self.limit else { return true };
        let mut retries = lock(&self.counts.retries);
        let granted = retries.used(now) < self.allowed(limit, now);
        retries.pending += u64::from(granted);
        granted
    }

    /// A granted retry goes out now, unless so many originals have left the window since it was
    /// granted that it is one too many. Returns what it takes to [take it back](Self::take_back).
    pub(crate) fn commit(&self, now: u64) -> Option<u64> {
        let slot = slot(now);
        if let Some(limit) = self.limit {
            let mut retries = lock(&self.counts.retries);
            let fits = retries.sent(now) < self.allowed(limit, now);
            retries.pending = retries.pending.saturating_sub(1);
            if !fits {
                return None;
            }
            let sent = &mut retries.sent[(slot % (SLOTS + 1)) as usize];
            if sent.0 < slot {
                *sent = (slot, 0);
            }
            sent.1 += 1;
        }
        Some(slot)
    }

    /// A retry was refused on its way out, so that it never was one.
    pub(crate) fn take_back(&self, slot: u64) {
        if self.limit.is_some() {
            let mut retries = lock(&self.counts.retries);
            let sent = &mut retries.sent[(slot % (SLOTS + 1)) as usize];
            if sent.0 == slot {
                sent.1 = sent.1.saturating_sub(1);
            }
        }
    }

    /// A granted retry will not go out.
    pub(crate) fn refund(&self) {
        if self.limit.is_some() {
            let mut retries = lock(&self.counts.retries);
            retries.pending = retries.pending.saturating_sub(1);
        }
    }

    /// Retries used and allowed at this moment; `None` without a limit.
    pub(crate) fn usage(&self, now: u64) -> Option<(u64, u64)> {
        let limit = self.limit?;
        Some((
            lock(&self.counts.retries).used(now),
            self.allowed(limit, now),
        ))
    }

    /// Whether nothing of the last window is left in it.
    pub(crate) fn is_idle(&self, now: u64) -> bool {
        self.originals_in_window(now) == 0 && lock(&self.counts.retries).used(now) == 0
    }

    /// Originals in the window.
    pub(crate) fn originals_in_window(&self, now: u64) -> u64 {
        let slot = slot(now);
        // Kept counts are read first: one that moves from its cell in the meantime may be missed,
        // which is safe, but is never seen twice.
        let cells = self.counts.cells.iter().map(|cell| &cell.0);
        let counts = self.counts.originals.iter().chain(cells);
        counts
            .map(|count| count.load(Ordering::Acquire))
            .filter(|cell| (cell >> 32) + SLOTS > slot)
            .map(|cell| cell & COUNT)
            .sum()
    }

    fn allowed(&self, limit: Limit, now: u64) -> u64 {
        let share = u128::from(self.originals_in_window(now)) * u128::from(limit.parts_per_million)
            / u128::from(MILLION);
        u64::try_from(share).unwrap_or(u64::MAX).max(limit.floor)
    }
}

impl Retries {
    fn used(&self, now: u64) -> u64 {
        self.pending + self.sent(now)
    }

    fn sent(&self, now: u64) -> u64 {
        let slot = slot(now);
        let recent = self.sent.iter().filter(|(sent, _)| sent + SLOTS >= slot);
        recent.map(|(_, count)| count).sum()
    }
}

/// The slot that originals were last counted in by a service. Most calls are in the same one as the
/// call before, and whether that is so takes less than to count seconds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LastSlot {
    number: u64,
    ends: Option<Instant>,
}

impl LastSlot {
    /// The slot of this moment, where time counts from that origin.
    #[inline]
    pub(super) fn at(&mut self, now: Instant, origin: Instant) -> u64 {
        if self.ends.is_none_or(|ends| now >= ends) {
            *self = Self::of(now, origin);
        }
        self.number
    }

    #[cold]
    fn of(now: Instant, origin: Instant) -> Self {
        let seconds = now.saturating_duration_since(origin).as_secs();
        Self {
            number: slot(seconds.saturating_mul(NANOS_PER_SLOT)),
            ends: origin.checked_add(Duration::from_secs(seconds.saturating_add(1))),
        }
    }
}

/// The first is the one that all cells begin with, in which nothing is counted yet.
fn slot(now: u64) -> u64 {
    now / NANOS_PER_SLOT
}

#[cfg(reprise_loom)]
pub(crate) mod model;
#[cfg(all(test, not(reprise_loom)))]
mod tests;
