use std::time::Duration;

use super::{Arrival, nanos};
use crate::{backoff::below, policy::BreakerPolicy};

/// Refused calls of which one is a probe, unless time brings one sooner.
pub(in crate::dependency) const CALLS_A_PROBE: u64 = 32;

/// The schedule of an open breaker.
#[derive(Debug, Default)]
pub(super) struct Probes {
    /// The time from which on the next call is a probe.
    pub(super) until: u64,
    /// The time of the last probe, or of the opening.
    last: u64,
    /// Probes since the opening.
    sent: u32,
    /// Calls that were refused since the last probe.
    refused: u64,
    /// The time between two calls that were refused before the last probe, if that is known.
    apart: Option<u64>,
    /// The time at which a probe failed last.
    failed: u64,
}

impl Probes {
    /// Begins anew, with the first probe after the policy's cooldown. Returns that.
    pub(super) fn begin(&mut self, policy: &BreakerPolicy, now: u64, uniform: f64) -> Duration {
        self.sent = 0;
        self.schedule(policy, now, uniform)
    }

    /// Admits a call as a probe, if one is due, or returns the time until one is.
    pub(super) fn admit(
        &mut self,
        policy: &BreakerPolicy,
        arrival: Arrival,
    ) -> Result<(), Duration> {
        let now = arrival.now;
        // Retries of refused calls would make a probe of the same traffic several times.
        self.refused += u64::from(!arrival.retry);
        let often = self.refused >= CALLS_A_PROBE && now >= self.soonest(policy);
        if now < self.until && !often {
            return Err(Duration::from_nanos(self.until - now));
        }
        // The next probe does not wait for this one, which may hang.
        self.schedule(policy, now, arrival.uniform);
        Ok(())
    }

    /// Returns whether the next call is a probe if it is made now.
    pub(super) fn next_is_one(&self, policy: &BreakerPolicy, now: u64) -> bool {
        let often = self.refused + 1 >= CALLS_A_PROBE && now >= self.soonest(policy);
        now >= self.until || often
    }

    /// Records that a probe failed.
    pub(super) fn failed(&mut self, now: u64) {
        self.failed = now;
    }

    /// Returns whether a call that was refused at that time has nothing more to wait for: a probe has
    /// failed since, or the call is the next one.
    pub(super) fn is_over(&self, refused_at: u64, now: u64) -> bool {
        self.failed > refused_at || now >= self.until
    }

    /// Makes the next call a probe.
    pub(super) fn is_due(&mut self) {
        self.until = 0;
    }

    /// Sets the time of the next probe: after a cooldown that doubles with each, less up to a fifth
    /// at random, so that the probes of many clients do not arrive together.
    fn schedule(&mut self, policy: &BreakerPolicy, now: u64, uniform: f64) -> Duration {
        let doubled = 1_u32.checked_shl(self.sent).unwrap_or(u32::MAX);
        let longest = policy.cooldown.saturating_mul(doubled);
        let longest = longest.min(policy.max_cooldown);
        let cooldown = longest - below(longest / 5, uniform);
        let apart = self.apart(now);
        *self = Self {
            apart,
            failed: self.failed,
            until: now.saturating_add(nanos(cooldown)),
            last: now,
            sent: self.sent.saturating_add(1),
            refused: 0,
        };
        cooldown
    }

    /// Returns the time after which a call that is refused now comes again: a little more than lies
    /// between two probes. So it comes after the next one, and calls come back in the order and at the
    /// pace in which they were refused.
    pub(super) fn pause(&self, policy: &BreakerPolicy, now: u64) -> Duration {
        let longest = self.until.saturating_sub(self.last);
        let Some(apart) = self.apart(now) else {
            return Duration::from_nanos(longest);
        };
        let often = apart.saturating_mul(CALLS_A_PROBE + CALLS_A_PROBE / 4);
        let soonest = self.soonest(policy).saturating_sub(self.last);
        Duration::from_nanos(often.max(soonest).min(longest))
    }

    /// Returns the time between two calls that are refused, if enough were.
    fn apart(&self, now: u64) -> Option<u64> {
        match self.refused < CALLS_A_PROBE / 4 {
            true => self.apart,
            false => Some(now.saturating_sub(self.last) / self.refused),
        }
    }

    /// Returns the time before which no call is a probe, however many are refused.
    pub(super) fn soonest(&self, policy: &BreakerPolicy) -> u64 {
        let soonest = self.last.saturating_add(nanos(policy.cooldown / 2));
        soonest.min(self.until)
    }
}
