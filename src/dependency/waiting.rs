//! The length of waits, and the number of calls that wait.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Dependency, Hold, Place,
    breaker::{CALLS_A_PROBE, nanos},
    longest_attempt,
};
use crate::{backoff::spread, error::Refusal, policy::RetryAfterMode};

impl Dependency {
    /// Takes a place among the calls that wait for a gate.
    pub(crate) fn place(self: &Arc<Self>) -> Option<Place> {
        Place::take(self, usize::MAX)
    }

    /// Takes a place among the calls that a guard refused and that look again. Those that wait for a
    /// breaker are no more than are refused between three probes, and those that the throttle shed no
    /// more than are served in a moment, or they would come back as a herd.
    pub(crate) fn place_after(
        self: &Arc<Self>,
        refusal: Refusal,
        pause: Duration,
    ) -> Option<Place> {
        match refusal {
            Refusal::Breaker => {
                let place = Place::take(self, 2 * CALLS_A_PROBE as usize);
                place.map(|place| place.behind_breaker(pause))
            }
            Refusal::Throttle => Place::take(self, self.breaker.most_waiting(self.now())),
            _ => self.place(),
        }
    }

    /// Returns whether the breaker is sure to refuse a call made at that time.
    pub(crate) fn refuses_at(&self, instant: Instant) -> bool {
        self.breaker.refuses_at(self.at(instant))
    }

    /// Records that a response asked all callers to wait.
    pub(crate) fn stay_away(&self, asked: Duration) {
        self.gate
            .learn(self.now(), asked.min(self.policy.retry_after().longest));
    }

    /// Returns the wait that it asked for, if that is not over.
    #[inline]
    pub(crate) fn hold(&self) -> Option<Hold> {
        self.gate.hold(|| self.now())
    }

    /// Returns the longest that one attempt may take.
    pub(crate) fn longest_attempt(&self) -> Duration {
        longest_attempt(&self.policy)
    }

    /// Returns the longest that a call is held back now, zero if none is.
    pub(crate) fn longest_hold(&self) -> Duration {
        if self.policy.retry_after().mode == RetryAfterMode::Refuse {
            return Duration::ZERO;
        }
        let spread = self.policy.retry_after().spread;
        let held = self.gate.last_release().saturating_sub(self.now());
        let held = Duration::from_nanos(held);
        match self.hold() {
            Some(hold) => hold.left.max(held) + spread.min(hold.asked / 10),
            None if held.is_zero() => held,
            None => held + spread,
        }
    }

    /// Returns when a call that is held back goes out, unless that is not before its deadline.
    pub(crate) fn release_at(&self, hold: Hold, deadline: Instant) -> Option<Instant> {
        let now = Instant::now();
        let spread = self.spread(Duration::ZERO, hold.asked);
        let latest = self.at(deadline).saturating_sub(nanos(spread));
        let at = self.gate.place(self.at(now), hold.left, latest)?;
        Some(self.origin + Duration::from_nanos(at) + spread)
    }

    /// Draws a wait of at least `least`, spread so that callers that were asked to wait for `asked`
    /// do not wake together.
    pub(crate) fn spread(&self, least: Duration, asked: Duration) -> Duration {
        let limit = self.policy.retry_after().spread;
        least.saturating_add(spread(asked, limit, self.draw()))
    }
}
