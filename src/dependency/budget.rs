mod quota;

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

pub(crate) use self::quota::{Kind, Tokens};
use super::shard::{CacheLine, SHARDS, shard};
use crate::{
    policy::{BudgetPolicy, RetryQuota},
    sync::{AtomicU32, AtomicU64, Mutex, Ordering, lock},
};

/// The rolling window in slots of a second. Originals are summed over 30 slots, all of them surely
/// within the last 30 s; retries over 31 slots, surely all of the last 30 s. So the bound holds at
/// every instant, and is stricter than it needs to be by at most one second of traffic.
const SLOTS: u64 = 30;
const NANOS_PER_SLOT: u64 = 1_000_000_000;
const MILLION: u64 = 1_000_000;
const COUNT: u64 = u32::MAX as u64;
/// The savings by a success: half a retry.
const EARNED: u64 = MILLION / 2;
/// The time in which a client has just begun, in nanoseconds.
const STARTUP: u64 = NANOS_PER_SLOT;

/// The bound on retries to a dependency: in any 30 s, no more than a share of the originals, or a
/// floor that lets a quiet client retry at all. Retries beyond the share are paid from savings, which
/// successes earn: a client whose calls all fail soon makes none.
///
/// Counting an original is one atomic add in the shard of its thread. Retries are rare and are
/// counted under a lock, which makes the bound exact. Budgets of several policies may share the
/// counts; each holds its own limit against them.
///
/// # Invariants
///
/// - An original is in one place at a time: in its shard while its slot is the shard's newest, then
///   in `originals`. The thread whose compare-and-exchange replaces the shard's word by a newer
///   slot owns the replaced count, and it alone moves it, so none is lost or moved twice.
/// - A reader may miss a count on its way from a shard to `originals`, which makes the bound
///   stricter, but never sees it in both: see [`Budget::originals_in_window`].
/// - Granted and sent retries change only under the lock, in which the bound is checked too, so two
///   threads never share a grant. Originals may grow meanwhile, which only raises the bound. Savings
///   are spent under the lock and earned without it, by one add, so they are never spent twice.
/// - An original that was refused is counted until its refusal is known, and then taken back under
///   the lock, from the slot that it was counted in.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: Option<Limit>,
    counts: Arc<Counts>,
}

#[derive(Debug)]
struct Counts {
    /// Originals of the newest slot of each shard: its number in the upper half, their count in
    /// the lower.
    shards: [CacheLine<AtomicU64>; SHARDS],
    /// Originals of earlier slots, in the same form.
    originals: [AtomicU64; SLOTS as usize],
    /// Retries beyond the share that were earned and not used, in millionths.
    savings: AtomicU64,
    /// Not zero once a call succeeded.
    proven: AtomicU32,
    /// The tokens that retries took of a quota and did not give back.
    spent: AtomicU32,
    retries: Mutex<Retries>,
}

#[derive(Debug, Clone, Copy)]
struct Limit {
    parts_per_million: u64,
    floor: u64,
    /// The part of the floor that is left to a client which had no success in its first seconds.
    unproven: u64,
    quota: Option<RetryQuota>,
}

/// The source that a retry was granted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The share of originals.
    Share,
    /// The savings of a quiet client.
    Savings,
}

#[derive(Debug)]
struct Retries {
    /// Granted, but not sent yet.
    pending: u64,
    sent: Slots,
    /// Originals that were refused before they went out.
    refused: Slots,
}

/// Counts by slot, each with the number of its slot.
type Slots = [(u64, u64); SLOTS as usize + 1];

impl Budget {
    /// Makes a budget; without a policy every retry is granted.
    pub(crate) fn new(policy: Option<BudgetPolicy>) -> Self {
        let floor = policy.map_or(0, |policy| u64::from(policy.floor));
        let counts = Counts {
            shards: std::array::from_fn(|_| CacheLine(AtomicU64::new(0))),
            originals: std::array::from_fn(|_| AtomicU64::new(0)),
            savings: AtomicU64::new(floor * MILLION),
            proven: AtomicU32::new(0),
            spent: AtomicU32::new(0),
            retries: Mutex::new(Retries {
                pending: 0,
                sent: [(0, 0); SLOTS as usize + 1],
                refused: [(0, 0); SLOTS as usize + 1],
            }),
        };
        Self::of(Arc::new(counts), policy)
    }

    /// Returns a budget with another policy and the same counts.
    pub(crate) fn with_policy(&self, policy: Option<BudgetPolicy>) -> Self {
        Self::of(Arc::clone(&self.counts), policy)
    }

    fn of(counts: Arc<Counts>, policy: Option<BudgetPolicy>) -> Self {
        let limit = policy.map(|policy| Limit {
            parts_per_million: (policy.ratio * MILLION as f64).round() as u64,
            floor: u64::from(policy.floor),
            unproven: u64::from(policy.initial),
            quota: policy.quota,
        });
        Self { limit, counts }
    }

    /// Earns half a retry for a success, and a token.
    #[inline]
    pub(crate) fn earn(&self) {
        if let Some(limit) = self.limit {
            if self.counts.savings.load(Ordering::Relaxed) < limit.floor * MILLION
                || self.counts.proven.load(Ordering::Relaxed) == 0
            {
                self.save();
            }
            if self.owes_tokens(limit) {
                self.give_token();
            }
        }
    }

    #[cold]
    fn save(&self) {
        self.counts.proven.store(1, Ordering::Relaxed);
        // A few threads may save beyond the floor, which `grant` does not look at.
        self.counts.savings.fetch_add(EARNED, Ordering::Relaxed);
    }

    /// Takes an original back that was refused before it went out.
    pub(crate) fn uncount(&self, slot: u64) {
        add(&mut lock(&self.counts.retries).refused, slot);
    }

    /// Reads the word that counting reads first.
    pub(super) fn word(&self) -> u64 {
        self.counts.shards[shard()].0.load(Ordering::Relaxed)
    }

    /// Counts an original request.
    pub(crate) fn deposit(&self, now: u64) {
        self.deposit_in(slot(now));
    }

    /// Counts an original request in its slot, or in a newer one that another thread began. Returns
    /// the slot that it is counted in, for [`uncount`](Self::uncount).
    pub(crate) fn deposit_in(&self, slot: u64) -> u64 {
        // Relaxed: each word is whole in itself, and the move that follows is ordered by `keep`.
        let newest = &self.counts.shards[shard()].0;
        let (first, relaxed) = (slot << 32 | 1, Ordering::Relaxed);
        let mut seen = newest.load(relaxed);
        while seen >> 32 < slot {
            match newest.compare_exchange(seen, first, relaxed, relaxed) {
                Ok(_) => {
                    self.keep(seen);
                    return slot;
                }
                Err(newer) => seen = newer,
            }
        }
        newest.fetch_add(1, relaxed) >> 32
    }

    /// Adds the count that a shard had of an earlier slot to that slot, unless a later slot has
    /// taken its place, which means that it is out of the window.
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
            // Release: a reader who sees the count here also sees that it left the shard.
            match kept.compare_exchange(seen, sum, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(newer) => seen = newer,
            }
        }
    }

    /// Grants one retry of a call that began at `began`, which then must be [sent](Self::commit) or
    /// [given back](Self::refund).
    pub(crate) fn charge(&self, now: u64, began: u64) -> Option<Source> {
        let Some(limit) = self.limit else {
            return Some(Source::Share);
        };
        let mut retries = lock(&self.counts.retries);
        let used = retries.pending + retries.sent(now);
        let source = self.grant(&retries, used, limit, (now, began))?;
        retries.pending += 1;
        Some(source)
    }

    /// Counts a granted retry as sent, unless so many originals have left the window since it was
    /// granted that it is one too many. Returns its slot and source, for
    /// [`take_back`](Self::take_back).
    pub(crate) fn commit(&self, now: u64, mut source: Source) -> Option<(u64, Source)> {
        let slot = slot(now);
        if let Some(limit) = self.limit {
            let mut retries = lock(&self.counts.retries);
            retries.pending = retries.pending.saturating_sub(1);
            let sent = retries.sent(now);
            match source {
                Source::Share => source = self.grant(&retries, sent, limit, (now, now))?,
                Source::Savings if sent >= limit.floor.max(self.share(&retries, limit, now)) => {
                    self.give(1);
                    return None;
                }
                Source::Savings => {}
            }
            add(&mut retries.sent, slot);
        }
        Some((slot, source))
    }

    /// Counts a hedge that is sent now, and returns its slot, unless it is one too many. Hedges are
    /// paid from the share, and only while half of it is left: they make calls faster, retries make
    /// them succeed, and so the other half and the floor are for retries. Without a limit there are
    /// no hedges.
    pub(crate) fn charge_hedge(&self, now: u64) -> Option<u64> {
        let limit = self.limit?;
        let slot = slot(now);
        let mut retries = lock(&self.counts.retries);
        let used = retries.pending + retries.sent(now);
        if 2 * used >= self.share(&retries, limit, now) {
            return None;
        }
        add(&mut retries.sent, slot);
        Some(slot)
    }

    /// Grants one retry more than `used`, from the share or from savings, which it takes.
    fn grant(
        &self,
        retries: &Retries,
        used: u64,
        limit: Limit,
        (now, began): (u64, u64),
    ) -> Option<Source> {
        if used < self.share(retries, limit, now) {
            return Some(Source::Share);
        }
        if used >= limit.floor || self.saved(limit, began) == 0 {
            return None;
        }
        // Only under the lock are savings taken, so no more than there are.
        self.counts.savings.fetch_sub(MILLION, Ordering::Relaxed);
        Some(Source::Savings)
    }

    /// Returns the retries that savings are enough for, of a call that began at `began`. A client that
    /// has just begun has all of them, so that its first call can be retried as often as any. One
    /// that did not need them then, and had no success since, is perhaps one of many that find the
    /// same outage.
    fn saved(&self, limit: Limit, began: u64) -> u64 {
        let savings = self.counts.savings.load(Ordering::Relaxed) / MILLION;
        match began > STARTUP && self.counts.proven.load(Ordering::Relaxed) == 0 {
            true => {
                let spent = limit.floor.saturating_sub(savings);
                limit.unproven.saturating_sub(spent)
            }
            false => savings,
        }
    }

    fn give(&self, retries: u64) {
        self.counts
            .savings
            .fetch_add(retries * MILLION, Ordering::Relaxed);
    }

    /// Takes a sent retry back that was refused before it reached the dependency.
    pub(crate) fn take_back(&self, slot: u64, source: Source) {
        if self.limit.is_some() {
            let mut retries = lock(&self.counts.retries);
            let sent = &mut retries.sent[(slot % (SLOTS + 1)) as usize];
            if sent.0 == slot {
                sent.1 = sent.1.saturating_sub(1);
            }
            self.give(u64::from(source == Source::Savings));
        }
    }

    /// Returns a granted retry that is not sent.
    pub(crate) fn refund(&self, source: Source) {
        if self.limit.is_some() {
            let mut retries = lock(&self.counts.retries);
            retries.pending = retries.pending.saturating_sub(1);
            self.give(u64::from(source == Source::Savings));
        }
    }

    /// Returns the retries used and allowed at this moment; `None` without a limit.
    pub(crate) fn usage(&self, now: u64) -> Option<(u64, u64)> {
        let limit = self.limit?;
        let retries = lock(&self.counts.retries);
        let used = retries.pending + retries.sent(now);
        let saved = self.saved(limit, now);
        let floor = limit.floor.min(used + saved);
        Some((used, self.share(&retries, limit, now).max(floor)))
    }

    /// Returns whether the window is empty.
    pub(crate) fn is_idle(&self, now: u64) -> bool {
        let retries = lock(&self.counts.retries);
        retries.pending + retries.sent(now) == 0 && self.counted(now) == 0
    }

    /// Returns the originals of the window that went out.
    pub(crate) fn originals_in_window(&self, now: u64) -> u64 {
        let refused = lock(&self.counts.retries).refused(now);
        self.counted(now).saturating_sub(refused)
    }

    /// Sums the originals in the window, refused ones included.
    fn counted(&self, now: u64) -> u64 {
        let slot = slot(now);
        self.words()
            .filter(|count| (count >> 32) + SLOTS > slot)
            .map(|count| count & COUNT)
            .sum()
    }

    fn words(&self) -> impl Iterator<Item = u64> {
        // Acquire, and `originals` before the shards: a count that was seen in `originals` has left
        // its shard for this reader. In another order, or relaxed, it could be seen in both places,
        // and the budget would grant retries for originals that never were.
        let shards = self.counts.shards.iter().map(|shard| &shard.0);
        let counts = self.counts.originals.iter().chain(shards);
        counts.map(|count| count.load(Ordering::Acquire))
    }

    /// Returns the retries that the originals of the window allow.
    fn share(&self, retries: &Retries, limit: Limit, now: u64) -> u64 {
        let originals = self.counted(now).saturating_sub(retries.refused(now));
        let share = u128::from(originals) * u128::from(limit.parts_per_million);
        u64::try_from(share / u128::from(MILLION)).unwrap_or(u64::MAX)
    }
}

impl Retries {
    fn sent(&self, now: u64) -> u64 {
        sum(&self.sent, slot(now))
    }

    fn refused(&self, now: u64) -> u64 {
        // Of one slot less, as originals: one that left the window is not taken from it.
        sum(&self.refused, slot(now) + 1)
    }
}

fn add(slots: &mut Slots, slot: u64) {
    let counted = &mut slots[(slot % (SLOTS + 1)) as usize];
    if counted.0 < slot {
        *counted = (slot, 0);
    }
    if counted.0 == slot {
        counted.1 += 1;
    }
}

/// Sums the slots that are not older than the window.
fn sum(slots: &Slots, slot: u64) -> u64 {
    let recent = slots.iter().filter(|(counted, _)| counted + SLOTS >= slot);
    recent.map(|(_, count)| count).sum()
}

/// The slot in which a service counted its last original. Most calls are in the same slot as the call
/// before, and to compare instants takes less than to subtract them: without this, a call through a
/// `RetryLayer` adds 1,214 instructions instead of 1,168 (callgrind).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LastSlot {
    number: u64,
    ends: Option<Instant>,
}

impl LastSlot {
    /// Returns the slot of this moment, where time counts from that origin.
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

/// Returns the slot of a time. Shards begin with slot zero and a count of zero.
fn slot(now: u64) -> u64 {
    now / NANOS_PER_SLOT
}

#[cfg(reprise_loom)]
pub(crate) mod model;
#[cfg(all(test, not(reprise_loom)))]
mod tests;
