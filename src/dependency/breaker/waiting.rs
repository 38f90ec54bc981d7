//! Answers of a breaker to calls that it refused, or that are about to wait.

use std::time::Duration;

use super::{
    Breaker, BreakerReason, OPEN, Ordering, Pin, RAMP, SLOTS, SPREAD, Since, WAITING, below, lock,
    ramp, state,
};

impl Breaker {
    /// Returns whether a call made at `at` is sure to be refused.
    pub(crate) fn refuses_at(&self, at: u64) -> bool {
        if state(self.shared.word.load(Ordering::Acquire)) != OPEN {
            return false;
        }
        let inner = lock(&self.shared.inner);
        let pinned = inner.pinned == Some(Pin::Open);
        state(self.shared.word.load(Ordering::Acquire)) == OPEN
            && (pinned || at < inner.probes.soonest(&self.policy))
    }

    /// Returns whether the next call is refused if it is made now, rather than being a probe.
    pub(crate) fn refuses_next(&self, now: u64) -> bool {
        if state(self.shared.word.load(Ordering::Acquire)) != OPEN {
            return false;
        }
        let inner = lock(&self.shared.inner);
        let pinned = inner.pinned == Some(Pin::Open);
        state(self.shared.word.load(Ordering::Acquire)) == OPEN
            && (pinned || !inner.probes.next_is_one(&self.policy, now))
    }

    /// Returns the time after which a call that was refused now may come again, unless a person
    /// opened it.
    pub(crate) fn pause(&self, now: u64) -> Option<Duration> {
        let inner = lock(&self.shared.inner);
        match state(self.shared.word.load(Ordering::Acquire)) {
            OPEN if inner.pinned.is_some() => None,
            OPEN => Some(inner.probes.pause(&self.policy, now)),
            RAMP => Some(Duration::from_nanos(ramp::STEP)),
            _ => Some(Duration::ZERO),
        }
    }

    /// Returns what has become of it for a call that was refused at that time, and has waited.
    pub(crate) fn since(&self, refused_at: u64, now: u64) -> Since {
        let inner = lock(&self.shared.inner);
        let open = state(self.shared.word.load(Ordering::Acquire)) == OPEN;
        match inner.changed.filter(|(_, at)| *at > refused_at) {
            Some((BreakerReason::Probe, at)) => {
                Since::Closed(Duration::from_nanos(now.saturating_sub(at)))
            }
            None if open && !inner.probes.is_over(refused_at, now) => Since::Nothing,
            _ => Since::Known,
        }
    }

    /// Returns the time after which a call that the throttle kept back comes again: when the counts
    /// are of other calls, and spread, so that those that were kept back do not come together.
    pub(crate) fn pause_of_shed(&self, uniform: f64) -> Duration {
        let width = Duration::from_nanos(self.shared.width.load(Ordering::Relaxed));
        width + below(width * SPREAD, uniform)
    }

    /// Returns how many calls that the throttle kept back may wait for their next look, by what the
    /// dependency served in the window.
    pub(crate) fn most_waiting(&self, now: u64) -> usize {
        let counts = self.counts(&lock(&self.shared.inner), now, SLOTS);
        let served = counts.calls.saturating_sub(counts.failures) * WAITING / SLOTS;
        usize::try_from(served).unwrap_or(usize::MAX).max(1)
    }
}
