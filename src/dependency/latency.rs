use std::{sync::Arc, time::Duration};

use super::breaker::nanos;
use crate::{
    policy::HedgePolicy,
    sync::{AtomicU32, AtomicU64, Ordering},
};

/// Half of the window. A quantile is of this half and the one before it.
const HALF: u64 = 15_000_000_000;
/// The quantile is read anew after so many attempts, and is unknown before the first of them.
const BATCH: u64 = 32;
/// The buckets of a power of two, which make each 1/16 of its lower bound wide at most.
const STEPS: u64 = 1 << STEP_BITS;
const STEP_BITS: u32 = 4;
/// Latencies are counted in units of 65 µs, up to 2²¹ of them: some two minutes.
const UNIT_BITS: u32 = 16;
const LARGEST: u64 = (1 << 21) - 1;
const BUCKETS: usize = bucket(LARGEST << UNIT_BITS) + 1;

/// The latencies of attempts, and the delay after which a hedge goes out.
///
/// Recording is one atomic add. One attempt of each batch reads the quantile, and stores the delay
/// for all others.
///
/// Only attempts that were not themselves hedges are recorded. Of one that was dropped, for its hedge or
/// by its caller, or that failed, it is only known that an answer takes longer: the quantile is read
/// from a product-limit estimate, which counts such an attempt as long as it was out and not after
/// that. If it were taken for an answer, or left out, each winning hedge would lower the quantile, and so
/// lead to more hedges.
#[derive(Debug)]
pub(crate) struct Latency {
    policy: HedgePolicy,
    /// In nanoseconds; zero while it is unknown.
    delay: AtomicU64,
    /// The attempts that reached the delay since the last batch ended.
    late: AtomicU32,
    sketch: Arc<Sketch>,
}

/// Counts of latencies in buckets, over a window of two halves.
///
/// All of it is relaxed: a count is whole in itself, and a few attempts that are recorded while a half
/// begins anew may be lost or counted in the other half, which moves a quantile by less than its
/// bucket. Beginning a half is claimed by a compare-and-exchange, so that one thread empties it.
#[derive(Debug)]
struct Sketch {
    /// Stored, not added to: of attempts that are recorded at the same moment one may go uncounted, or
    /// later ones be counted anew. Either makes a batch longer by less than another one, and an add
    /// would be a twentieth of the time that a `HedgeLayer` adds to a call (`peers client`).
    recorded: AtomicU64,
    halves: [Half; 2],
}

#[derive(Debug)]
struct Half {
    /// The number of the time span that it counts; zero before the first.
    number: AtomicU64,
    /// The highest bucket that was counted in: no others are read for a quantile. Without it one call
    /// in 32 takes 1,400 instructions more (callgrind).
    top: AtomicU32,
    answered: [AtomicU32; BUCKETS],
    /// Attempts that were out for so long without an answer.
    cut_off: [AtomicU32; BUCKETS],
}

impl Latency {
    pub(super) fn new(policy: HedgePolicy) -> Self {
        let half = || Half {
            number: AtomicU64::new(0),
            top: AtomicU32::new(0),
            answered: std::array::from_fn(|_| AtomicU32::new(0)),
            cut_off: std::array::from_fn(|_| AtomicU32::new(0)),
        };
        let sketch = Sketch {
            recorded: AtomicU64::new(0),
            halves: [half(), half()],
        };
        Self::of(policy, Arc::new(sketch))
    }

    /// Returns the same latencies, with the delay of another policy.
    pub(super) fn with_policy(&self, policy: HedgePolicy, now: u64) -> Self {
        let latency = Self::of(policy, Arc::clone(&self.sketch));
        latency.read(number(now));
        latency
    }

    fn of(policy: HedgePolicy, sketch: Arc<Sketch>) -> Self {
        Self {
            delay: AtomicU64::new(policy.fixed().map_or(0, nanos)),
            policy,
            late: AtomicU32::new(0),
            sketch,
        }
    }

    /// Returns the delay after which a hedge goes out, once it is known.
    #[inline]
    pub(crate) fn delay(&self) -> Option<Duration> {
        match self.delay.load(Ordering::Relaxed) {
            0 => None,
            delay => Some(Duration::from_nanos(delay)),
        }
    }

    /// Records an attempt that was ready at once, or was out for some time, and whether it was answered.
    /// Most of those that were ready at once read no clock.
    #[inline]
    pub(crate) fn record(&self, took: Option<Duration>, answered: bool, now: impl FnOnce() -> u64) {
        let recorded = self.sketch.recorded.load(Ordering::Relaxed) + 1;
        self.sketch.recorded.store(recorded, Ordering::Relaxed);
        let ends_batch = recorded.is_multiple_of(BATCH);
        let newest = self.sketch.newest();
        let number = match took {
            None if newest != 0 && !ends_batch => newest,
            _ => number(now()),
        };
        let half = &self.sketch.halves[(number % 2) as usize];
        half.begin(number);
        let bucket = bucket(took.map_or(0, nanos));
        let top = bucket as u32;
        if half.top.load(Ordering::Relaxed) < top {
            half.top.fetch_max(top, Ordering::Relaxed);
        }
        let counts = match answered {
            true => &half.answered,
            false => &half.cut_off,
        };
        counts[bucket].fetch_add(1, Ordering::Relaxed);
        if ends_batch {
            self.read(number);
        }
    }

    /// Counts an attempt that reached the delay. Returns whether it is one of many: more than four
    /// times as many as usual, so that it is the dependency that has become slow, and a second
    /// attempt would be as slow. It is known before any of the slow attempts has ended.
    pub(crate) fn is_one_of_many(&self) -> bool {
        let usual = (1.0 - self.policy.quantile) * BATCH as f64;
        let most = (4.0 * usual).max(4.0);
        f64::from(self.late.fetch_add(1, Ordering::Relaxed)) >= most
    }

    /// Reads the quantile of the window that ends with this half.
    #[cold]
    fn read(&self, number: u64) {
        self.late.store(0, Ordering::Relaxed);
        let HedgePolicy {
            quantile,
            min_delay,
            max_delay,
            ..
        } = self.policy;
        let delay = match self.policy.fixed() {
            Some(delay) => Some(delay),
            None => self.sketch.quantile(quantile, number),
        };
        let delay = delay.map_or(0, |delay| nanos(delay.clamp(min_delay, max_delay)));
        self.delay.store(delay, Ordering::Relaxed);
    }
}

impl Sketch {
    fn newest(&self) -> u64 {
        let [even, odd] = &self.halves;
        let number = |half: &Half| half.number.load(Ordering::Relaxed);
        number(even).max(number(odd))
    }

    /// Returns the latency that this share of the window's answers did not exceed, if there were enough
    /// attempts. It is at least the longest known one if so many were cut off.
    fn quantile(&self, quantile: f64, number: u64) -> Option<Duration> {
        let is_recent = |half: &Half| half.number.load(Ordering::Relaxed) + 1 >= number;
        let recent = self.halves.each_ref().map(is_recent);
        let count = |bucket: usize| {
            let (mut answered, mut cut_off) = (0, 0);
            for (half, _) in self.halves.iter().zip(recent).filter(|(_, recent)| *recent) {
                answered += u64::from(half.answered[bucket].load(Ordering::Relaxed));
                cut_off += u64::from(half.cut_off[bucket].load(Ordering::Relaxed));
            }
            (answered, cut_off)
        };
        let all = |(answered, cut_off)| answered + cut_off;
        let top = |half: &Half| half.top.load(Ordering::Relaxed);
        let buckets = self
            .halves
            .iter()
            .map(top)
            .max()
            .map_or(0, |top| top as usize + 1);
        let mut out: u64 = (0..buckets).map(|bucket| all(count(bucket))).sum();
        if out < BATCH {
            return None;
        }
        // The share of attempts that an answer takes longer than this.
        let (mut longer, target, mut longest) = (1.0, 1.0 - quantile, 0);
        for bucket in 0..buckets {
            let counts @ (answered, _) = count(bucket);
            let after = longer * (1.0 - answered as f64 / out.max(1) as f64);
            let (from, to) = (lower_bound(bucket), lower_bound(bucket + 1));
            if after <= target {
                let part = (longer - target) / (longer - after);
                return Some(Duration::from_nanos(
                    from + ((to - from) as f64 * part) as u64,
                ));
            }
            if all(counts) > 0 {
                longest = to;
            }
            longer = after;
            // Others may have been counted meanwhile.
            out = out.saturating_sub(all(counts));
        }
        Some(Duration::from_nanos(longest))
    }
}

impl Half {
    /// Begins a time span, unless it has begun.
    #[inline]
    fn begin(&self, number: u64) {
        let before = self.number.load(Ordering::Relaxed);
        if before < number {
            self.empty(before, number);
        }
    }

    #[cold]
    fn empty(&self, before: u64, number: u64) {
        let relaxed = Ordering::Relaxed;
        let claimed = self
            .number
            .compare_exchange(before, number, relaxed, relaxed);
        if claimed.is_ok() {
            self.top.store(0, relaxed);
            for bucket in self.answered.iter().chain(&self.cut_off) {
                bucket.store(0, relaxed);
            }
        }
    }
}

/// Returns the number of the half at that time, greater than that of none.
fn number(now: u64) -> u64 {
    now / HALF + 2
}

/// Returns the bucket of a latency: linear within a power of two.
const fn bucket(nanos: u64) -> usize {
    let units = nanos >> UNIT_BITS;
    let units = if units > LARGEST { LARGEST } else { units };
    if units < STEPS {
        return units as usize;
    }
    let power = units.ilog2() - STEP_BITS;
    let step = (units >> power) - STEPS;
    ((power as u64 + 1) * STEPS + step) as usize
}

/// Returns the least latency of a bucket, in nanoseconds.
fn lower_bound(bucket: usize) -> u64 {
    let (power, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    let units = match power {
        0 => step,
        _ => (STEPS + step) << (power - 1),
    };
    units << UNIT_BITS
}

#[cfg(all(test, not(reprise_loom)))]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    fn of(quantile: f64) -> Latency {
        Latency::new(HedgePolicy {
            quantile,
            ..HedgePolicy::default()
        })
    }

    /// Records so many attempts that took this long, and as many of each further one.
    fn record(latency: &Latency, now: u64, each: u32, millis: impl Iterator<Item = u32>) {
        for took in millis {
            (0..each).for_each(|_| latency.record(Some(took * MILLI), true, || now));
        }
    }

    #[test]
    fn h_1_every_latency_is_in_the_bucket_between_its_bounds() {
        for exponent in 0..40 {
            for nanos in [1 << exponent, (1 << exponent) + 1, (3 << exponent) / 2] {
                let bucket = bucket(nanos);
                assert!(lower_bound(bucket) <= nanos, "{nanos}");
                let largest = nanos >> UNIT_BITS >= LARGEST;
                assert!(nanos < lower_bound(bucket + 1) || largest, "{nanos}");
                assert!(bucket < BUCKETS);
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn h_1_the_delay_is_the_quantile_of_the_window() {
        for (quantile, expected) in [(0.75, 75.0), (0.9, 90.0), (0.95, 95.0), (0.99, 99.0)] {
            let latency = of(quantile);
            record(&latency, 0, 32, 1..=100);
            let delay = latency.delay().unwrap().as_secs_f64() * 1000.0;
            assert!((delay / expected - 1.0).abs() < 0.02, "{quantile}: {delay}");
        }
    }

    #[test]
    fn h_1_the_delay_is_unknown_before_there_are_enough_attempts() {
        let latency = of(0.95);
        record(&latency, 0, BATCH as u32 - 1, std::iter::once(5));
        assert_eq!(latency.delay(), None);
        record(&latency, 0, 1, std::iter::once(5));
        assert!(latency.delay().is_some());
    }

    #[test]
    fn h_1_the_delay_is_bounded_and_may_be_fixed() {
        let bounded = |from, to, took| {
            let latency = Latency::new(HedgePolicy {
                min_delay: from * MILLI,
                max_delay: to * MILLI,
                ..HedgePolicy::default()
            });
            if took > 0 {
                record(&latency, 0, 64, std::iter::once(took));
            }
            latency.delay()
        };
        assert_eq!(bounded(20, 50, 1), Some(20 * MILLI));
        assert_eq!(bounded(20, 50, 1000), Some(50 * MILLI));
        assert_eq!(bounded(20, 50, 0), None);
        assert_eq!(bounded(30, 30, 0), Some(30 * MILLI), "before any attempt");
        assert_eq!(bounded(30, 30, 1000), Some(30 * MILLI));
    }

    #[test]
    fn h_1_what_left_the_window_is_forgotten() {
        let latency = of(0.95);
        record(&latency, 0, 64, std::iter::once(1000));
        for (half, slow) in [(1, true), (2, false), (9, false)] {
            record(&latency, half * HALF, 64, std::iter::once(2));
            let delay = latency.delay().unwrap();
            assert_eq!(delay > 500 * MILLI, slow, "half {half}: {delay:?}");
        }
        // Attempts that were ready at once belong to the half that began last.
        (0..2000).for_each(|_| latency.record(None, true, || 9 * HALF));
        assert_eq!(latency.delay(), Some(MILLI));
    }

    #[test]
    fn h_4_many_late_attempts_at_a_time_are_the_dependencys() {
        for (quantile, usual) in [(0.95, 7), (0.99, 4), (0.75, 32)] {
            let latency = of(quantile);
            for batch in 0..3 {
                let few = (0..100).take_while(|_| !latency.is_one_of_many()).count();
                assert_eq!(few, usual, "{quantile}, batch {batch}");
                record(&latency, 0, BATCH as u32, std::iter::once(5));
            }
        }
    }

    /// Hedges that cut slow attempts off leave the quantile where it is without them.
    #[test]
    fn h_1_attempts_that_were_cut_off_count_as_long_as_they_were_out() {
        for cut_off_at in [60, 92, 200] {
            let latency = of(0.9);
            for took in 1..=100 {
                for _ in 0..32 {
                    let answered = took <= cut_off_at || took % 2 == 0;
                    let out = if answered { took } else { cut_off_at };
                    latency.record(Some(out * MILLI), answered, || 0);
                }
            }
            let delay = latency.delay().unwrap().as_secs_f64() * 1000.0;
            assert!((88.0..=93.0).contains(&delay), "{cut_off_at}: {delay}");
        }
        // If it is unknown since all were cut off, it is longer than they were out.
        let latency = of(0.9);
        (0..64).for_each(|_| latency.record(Some(50 * MILLI), false, || 0));
        assert!(latency.delay() >= Some(50 * MILLI));
    }

    #[test]
    fn p_4_a_reload_keeps_the_latencies() {
        let latency = of(0.95);
        record(&latency, 0, 32, 1..=100);
        let other = latency.with_policy(
            HedgePolicy {
                quantile: 0.75,
                ..latency.policy
            },
            0,
        );
        let delay = other.delay().unwrap();
        assert!((70 * MILLI..80 * MILLI).contains(&delay), "{delay:?}");
    }

    /// Threads that record while the window turns leave it as it should be.
    #[test]
    fn h_1_threads_share_a_sketch() {
        let latency = of(0.95);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for half in 0..50 {
                        record(&latency, half * HALF, 4, 1..=16);
                    }
                });
            }
        });
        record(&latency, 52 * HALF, 64, std::iter::once(7));
        let delay = latency.delay().unwrap();
        assert!((6 * MILLI..8 * MILLI).contains(&delay), "{delay:?}");
    }
}
