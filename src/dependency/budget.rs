use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// The rolling window, and the slots it is kept in. Originals of the current slot and the 29
/// before it are surely less than 30 s old; retries of one slot more are surely all that are. So
/// the bound holds to the instant, and is at most one second of traffic stricter than it needs
/// to be.
const SLOTS: u64 = 30;
/// A power of two.
const CELLS: usize = 8;
const NANOS_PER_SLOT: u64 = 1_000_000_000;
const MILLION: u64 = 1_000_000;
const COUNT: u64 = u32::MAX as u64;

/// How many retries a dependency may see: in any 30 s, no more than a share of the originals, or
/// a floor that lets a quiet client retry at all.
///
/// Counting an original is one atomic add, in a cell that few threads share. Retries are rare, and
/// are counted under a lock, which makes the bound exact.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: Option<Limit>,
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
        let limit = limit.map(|(ratio, floor)| Limit {
            parts_per_million: (ratio * MILLION as f64).round() as u64,
            floor: u64::from(floor),
        });
        Self {
            limit,
            cells: std::array::from_fn(|_| Cell(AtomicU64::new(0))),
            originals: std::array::from_fn(|_| AtomicU64::new(0)),
            retries: Mutex::new(Retries {
                pending: 0,
                sent: [(0, 0); SLOTS as usize + 1],
            }),
        }
    }

    /// Counts an original request.
    pub(crate) fn deposit(&self, now: u64) {
        let slot = slot(now);
        let cell = &self.cells[thread_number() % CELLS].0;
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
        let kept = &self.originals[(slot % SLOTS) as usize];
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
        let mut retries = lock(&self.retries);
        let granted = retries.used(now) < self.allowed(limit, now);
        retries.pending += u64::from(granted);
        granted
    }

    /// A granted retry goes out now. Returns what it takes to [take it back](Self::take_back).
    pub(crate) fn commit(&self, now: u64) -> u64 {
        let slot = slot(now);
        if self.limit.is_some() {
            let mut retries = lock(&self.retries);
            retries.pending = retries.pending.saturating_sub(1);
            let sent = &mut retries.sent[(slot % (SLOTS + 1)) as usize];
            if sent.0 < slot {
                *sent = (slot, 0);
            }
            sent.1 += 1;
        }
        slot
    }

    /// A retry was refused on its way out, so that it never was one.
    pub(crate) fn take_back(&self, slot: u64) {
        if self.limit.is_some() {
            let mut retries = lock(&self.retries);
            let sent = &mut retries.sent[(slot % (SLOTS + 1)) as usize];
            if sent.0 == slot {
                sent.1 = sent.1.saturating_sub(1);
            }
        }
    }

    /// A granted retry will not go out.
    pub(crate) fn refund(&self) {
        if self.limit.is_some() {
            let mut retries = lock(&self.retries);
            retries.pending = retries.pending.saturating_sub(1);
        }
    }

    /// Retries used and allowed at this moment; `None` without a limit.
    pub(crate) fn usage(&self, now: u64) -> Option<(u64, u64)> {
        let limit = self.limit?;
        Some((lock(&self.retries).used(now), self.allowed(limit, now)))
    }

    /// Whether nothing of the last window is left in it.
    pub(crate) fn is_idle(&self, now: u64) -> bool {
        self.originals_in_window(now) == 0 && lock(&self.retries).used(now) == 0
    }

    /// Originals in the window.
    pub(crate) fn originals_in_window(&self, now: u64) -> u64 {
        let slot = slot(now);
        // Kept counts are read first: one that moves from its cell in the meantime may be missed,
        // which is safe, but is never seen twice.
        let cells = self.cells.iter().map(|cell| &cell.0);
        let counts = self.originals.iter().chain(cells);
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
        let slot = slot(now);
        let recent = self.sent.iter().filter(|(sent, _)| sent + SLOTS >= slot);
        self.pending + recent.map(|(_, count)| count).sum::<u64>()
    }
}

/// A small number for each thread, which is what spreads threads over cells.
fn thread_number() -> usize {
    use std::sync::atomic::AtomicUsize;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.try_with(|number| *number).unwrap_or_default()
}

/// Slots are numbered from [`SLOTS`] + 1, so that a zeroed one is always long past.
fn slot(now: u64) -> u64 {
    now / NANOS_PER_SLOT + SLOTS + 1
}

#[cfg(all(test, not(reprise_loom)))]
mod tests {
    use super::*;

    const SECOND: u64 = NANOS_PER_SLOT;

    fn grants(budget: &Budget, now: u64) -> u64 {
        let mut grants = 0;
        while grants < 100_000 && budget.charge(now) {
            budget.commit(now);
            grants += 1;
        }
        grants
    }

    #[test]
    fn g_7_every_ratio_means_what_it_says() {
        for (ratio, per_thousand) in [(0.1, 100), (0.2, 200), (0.3, 300), (0.6, 600), (0.75, 750)] {
            let budget = Budget::new(Some((ratio, 10)));
            (0..1000).for_each(|_| budget.deposit(5 * SECOND));
            assert_eq!(grants(&budget, 5 * SECOND), per_thousand, "{ratio}");
        }
    }

    #[test]
    fn g_1_a_quiet_client_has_the_floor_and_no_more() {
        let budget = Budget::new(Some((0.2, 10)));
        budget.deposit(0);
        assert_eq!(grants(&budget, 0), 10);
        assert_eq!(
            grants(&budget, 30 * SECOND),
            0,
            "all ten are 30 s old, none older"
        );
        assert_eq!(grants(&budget, 31 * SECOND), 10);
    }

    #[test]
    fn g_1_originals_leave_the_window_before_retries_do() {
        let budget = Budget::new(Some((0.5, 0)));
        (0..100).for_each(|_| budget.deposit(0));
        assert_eq!(budget.originals_in_window(29 * SECOND), 100);
        assert_eq!(budget.originals_in_window(30 * SECOND), 0);
        assert_eq!(grants(&budget, 29 * SECOND), 50);
        assert_eq!(budget.usage(59 * SECOND), Some((50, 0)));
        assert_eq!(budget.usage(60 * SECOND), Some((0, 0)));
    }

    #[test]
    fn g_7_days_idle_leave_nothing_behind() {
        let budget = Budget::new(Some((0.2, 10)));
        (0..1000).for_each(|_| budget.deposit(0));
        let later = 7 * 24 * 3600 * SECOND;
        assert!(budget.is_idle(later));
        budget.deposit(later);
        assert_eq!(budget.originals_in_window(later), 1);
    }

    #[test]
    fn d_6_a_charge_given_back_can_be_granted_again() {
        let budget = Budget::new(Some((0.2, 1)));
        assert!(budget.charge(0));
        assert!(
            !budget.charge(0),
            "a granted retry counts before it is sent"
        );
        budget.refund();
        assert!(budget.charge(0));
    }

    #[test]
    fn g_3_a_retry_that_was_refused_on_its_way_is_not_charged() {
        let budget = Budget::new(Some((0.2, 1)));
        assert!(budget.charge(0));
        let sent = budget.commit(0);
        assert!(!budget.charge(0));
        budget.take_back(sent);
        assert_eq!(budget.usage(0), Some((0, 1)));
        budget.take_back(sent);
        assert_eq!(budget.usage(0), Some((0, 1)));
    }

    #[test]
    fn g_1_a_retry_counts_from_when_it_is_sent() {
        let budget = Budget::new(Some((0.2, 1)));
        assert!(budget.charge(0));
        assert!(!budget.charge(100 * SECOND), "still pending");
        budget.commit(100 * SECOND);
        assert!(!budget.charge(130 * SECOND));
        assert!(budget.charge(131 * SECOND));
    }

    #[test]
    fn g_1_the_bound_is_exact_under_threads() {
        for threads in [2, 8, 64] {
            let budget = Budget::new(Some((0.2, 10)));
            let granted = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        for _ in 0..500 {
                            budget.deposit(0);
                            if budget.charge(0) {
                                granted.fetch_add(1, Ordering::Relaxed);
                                budget.commit(0);
                            }
                        }
                    });
                }
            });
            let bound = threads * 500 / 5;
            let granted = granted.into_inner();
            assert!(
                granted <= bound,
                "{granted} retries where {bound} are allowed"
            );
            assert_eq!(granted + grants(&budget, 0), bound);
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// Against a log of exact times: at each grant, the retries of the last 30 s, this one
        /// included, are within the bound.
        #[test]
        fn g_1_the_bound_holds_at_every_instant(
            steps in proptest::collection::vec((0_u64..4_000, proptest::bool::ANY), 1..400),
            percent in 0_u64..100,
            floor in 0_u32..5,
        ) {
            let budget = Budget::new(Some((percent as f64 / 100.0, floor)));
            let (mut now, mut originals, mut retries) = (0, Vec::new(), Vec::new());
            for (millis, original) in steps {
                now += millis * 1_000_000;
                if original {
                    budget.deposit(now);
                    originals.push(now);
                } else if budget.charge(now) {
                    budget.commit(now);
                    retries.push(now);
                    let recent = |times: &[u64]| times.iter().filter(|t| now - **t <= 30 * SECOND).count() as u64;
                    let bound = (recent(&originals) * percent / 100).max(u64::from(floor));
                    proptest::prop_assert!(recent(&retries) <= bound);
                }
            }
        }
    }
}

#[cfg(all(test, reprise_loom))]
mod model {
    use loom::{sync::Arc, thread};

    use super::*;

    #[test]
    fn g_1_two_threads_never_share_a_grant() {
        loom::model(|| {
            let budget = Arc::new(Budget::new(Some((0.5, 1))));
            budget.deposit(0);
            let other = Arc::clone(&budget);
            let thread = thread::spawn(move || {
                other.deposit(0);
                u64::from(other.charge(0))
            });
            let mine = u64::from(budget.charge(0));
            let theirs = thread.join().unwrap();
            assert_eq!(mine + theirs, 1);
            assert_eq!(budget.originals_in_window(0), 2);
        });
    }

    /// Threads that share a cell, at the turn of a slot.
    #[test]
    fn g_1_no_original_is_lost_when_a_slot_ends() {
        for later in [1, 5, SLOTS] {
            loom::model(move || {
                let budget = Arc::new(Budget::new(Some((1.0, 0))));
                let later = later * NANOS_PER_SLOT;
                budget.deposit(0);
                let other = Arc::clone(&budget);
                let thread = thread::spawn(move || other.deposit(later));
                budget.deposit(later);
                thread.join().unwrap();
                let old = u64::from(later < SLOTS * NANOS_PER_SLOT);
                assert_eq!(budget.originals_in_window(later), 2 + old);
            });
        }
    }

    #[test]
    fn g_1_no_original_is_seen_twice_when_a_slot_ends() {
        loom::model(|| {
            let budget = Arc::new(Budget::new(Some((1.0, 0))));
            budget.deposit(0);
            let other = Arc::clone(&budget);
            let thread = thread::spawn(move || other.deposit(NANOS_PER_SLOT));
            assert!(budget.originals_in_window(NANOS_PER_SLOT) <= 2);
            thread.join().unwrap();
            assert_eq!(budget.originals_in_window(NANOS_PER_SLOT), 2);
        });
    }

    #[test]
    fn d_6_a_refund_races_a_charge() {
        loom::model(|| {
            let budget = Arc::new(Budget::new(Some((0.0, 1))));
            assert!(budget.charge(0));
            let other = Arc::clone(&budget);
            let thread = thread::spawn(move || other.refund());
            let granted = budget.charge(0);
            thread.join().unwrap();
            assert_eq!(budget.usage(0), Some((u64::from(granted), 1)));
        });
    }
}
