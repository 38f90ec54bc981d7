use std::time::Duration;

use super::breaker::nanos;
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// The time until which a dependency asked to be left alone. One atomic load while it did not.
///
/// # Invariant
///
/// `until` alone decides, and each change of it is one atomic step: up by `fetch_max`, or to zero
/// by a compare-and-exchange of the very time that was found to be over, or by a person's reset. So the latest time asked
/// for holds, and resetting a gate forgets none that came in between. Relaxed is enough, since the
/// order of changes of a single word is the same for all threads and nothing else is published
/// with it.
#[derive(Debug)]
pub(crate) struct Gate {
    /// In nanoseconds; zero when there is nothing to wait for.
    until: AtomicU64,
    /// The duration asked for, of which the spread is a share. It may lag behind `until`: then one
    /// wait is spread by an earlier answer's duration.
    asked: AtomicU64,
    last: Mutex<Release>,
}

/// The last call that was held back.
#[derive(Debug, Default, Clone, Copy)]
struct Release {
    arrived: u64,
    /// The time at which it goes out.
    at: u64,
}

/// The wait at a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) left: Duration,
    pub(crate) asked: Duration,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            until: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            last: Mutex::new(Release::default()),
        }
    }

    /// Returns when a call that arrives now goes out, and takes that place, unless it is not before
    /// `deadline`. Calls are released in the order and at the distances in which they came, so that
    /// together they are no more than the usual traffic.
    pub(crate) fn place(&self, now: u64, left: Duration, deadline: u64) -> Option<u64> {
        let until = now.saturating_add(nanos(left));
        let mut last = lock(&self.last);
        let distance = now.saturating_sub(last.arrived);
        let at = match last.at > now {
            true => until.max(last.at.saturating_add(distance)),
            false => until,
        };
        if at >= deadline {
            return None;
        }
        *last = Release { arrived: now, at };
        Some(at)
    }

    /// Returns when the last of the calls that are held back goes out.
    pub(crate) fn last_release(&self) -> u64 {
        lock(&self.last).at
    }

    /// Lets calls pass at once, whatever was asked for.
    pub(crate) fn reset(&self) {
        self.until.store(0, Ordering::Relaxed);
        *lock(&self.last) = Release::default();
    }

    /// Records the wait that a response asked for; the latest time wins.
    pub(crate) fn learn(&self, now: u64, asked: Duration) {
        if asked.is_zero() {
            return;
        }
        let until = now.saturating_add(nanos(asked));
        if self.until.fetch_max(until, Ordering::Relaxed) < until {
            self.asked.store(nanos(asked), Ordering::Relaxed);
        }
    }

    /// Reads the word that a call reads first.
    pub(super) fn word(&self) -> u64 {
        self.until.load(Ordering::Relaxed)
    }

    /// Returns the wait that is left.
    #[inline]
    pub(crate) fn hold(&self, now: impl FnOnce() -> u64) -> Option<Hold> {
        let until = self.until.load(Ordering::Relaxed);
        if until == 0 {
            return None;
        }
        let left = until.saturating_sub(now());
        if left == 0 {
            // Later calls need not read the clock, unless a response has just asked for more.
            let relaxed = Ordering::Relaxed;
            let _ = self.until.compare_exchange(until, 0, relaxed, relaxed);
            return None;
        }
        Some(Hold {
            left: Duration::from_nanos(left),
            asked: Duration::from_nanos(self.asked.load(Ordering::Relaxed)),
        })
    }
}

#[cfg(reprise_loom)]
pub(crate) mod model;
#[cfg(all(test, not(reprise_loom)))]
mod tests {
    use super::*;

    #[test]
    fn ra_9_the_latest_time_asked_for_holds() {
        let gate = Gate::new();
        assert_eq!(gate.hold(|| unreachable!()), None);
        gate.learn(0, Duration::from_secs(5));
        gate.learn(0, Duration::from_secs(2));
        let hold = gate.hold(|| nanos(Duration::from_secs(1))).unwrap();
        assert_eq!(
            (hold.left, hold.asked),
            (Duration::from_secs(4), Duration::from_secs(5))
        );
        assert_eq!(gate.hold(|| nanos(Duration::from_secs(5))), None);
        assert_eq!(
            gate.hold(|| unreachable!()),
            None,
            "no clock is read once it is open"
        );
    }

    #[test]
    fn ra_9_calls_go_out_at_the_distances_at_which_they_came() {
        const MILLI: u64 = 1_000_000;
        let gate = Gate::new();
        gate.learn(0, Duration::from_millis(100));
        let place = |now: u64, deadline: u64| {
            let hold = gate.hold(|| now * MILLI).unwrap();
            gate.place(now * MILLI, hold.left, deadline * MILLI)
        };
        let at = [10, 15, 15, 90].map(|now| place(now, 1000).unwrap() / MILLI);
        assert_eq!(at, [100, 105, 105, 180]);
        assert_eq!(place(95, 185), None, "it would go out at its deadline");
        assert_eq!(place(95, 186).unwrap() / MILLI, 185, "which took no place");
        gate.reset();
        assert_eq!(gate.hold(|| unreachable!()), None);
        gate.learn(1000 * MILLI, Duration::from_millis(100));
        assert_eq!(
            place(1050, 2000).unwrap() / MILLI,
            1100,
            "nobody is before it"
        );
    }

    #[test]
    fn s_3_an_absurd_wait_saturates() {
        let gate = Gate::new();
        gate.learn(u64::MAX - 1, Duration::MAX);
        assert!(gate.hold(|| 0).is_some());
    }
}
