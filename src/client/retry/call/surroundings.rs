//! The facts from outside of a call, as its decisions see them.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{super::decide::Environment, deadline};
use crate::{
    call::{Cause, StopReason},
    dependency::{Charge, Dependency, Hold, Kind},
};

/// The dependency, the clock and the recorded body, as decisions see them.
pub(super) struct Surroundings<'a, F> {
    pub(super) dependency: &'a Arc<Dependency>,
    pub(super) began: &'a mut Option<Instant>,
    pub(super) total: Duration,
    /// No attempt went out yet, so the next one is no retry to the dependency.
    pub(super) is_original: bool,
    /// The cause of the last failure.
    pub(super) cause: Cause,
    /// It was a rejection for want of capacity.
    pub(super) throttled: bool,
    pub(super) replayable: F,
    /// The wait of a retry that the budget refused.
    pub(super) suppressed: Option<Duration>,
}

impl<F: Fn() -> bool> Environment for Surroundings<'_, F> {
    type Charge = Option<Charge>;

    fn backoff(&self, retries: u32, previous: Duration) -> Duration {
        let policy = self.dependency.policy();
        let throttled = policy.throttled_backoff().filter(|_| self.throttled);
        let backoff = throttled.unwrap_or(policy.backoff());
        backoff.delay(retries, previous, self.dependency.draw())
    }

    fn spread(&self, least: Duration, asked: Duration) -> Duration {
        self.dependency.spread(least, asked)
    }

    fn hold(&self) -> Option<Hold> {
        self.dependency.hold()
    }

    fn times(&mut self) -> (Instant, Instant) {
        let deadline = deadline(self.began, self.total);
        (Instant::now(), deadline)
    }

    fn breaker_refuses(&self, at: Instant) -> bool {
        self.dependency.refuses_at(at)
    }

    fn is_replayable(&self) -> bool {
        (self.replayable)()
    }

    fn charge(&mut self, wait: Duration) -> Result<Option<Charge>, StopReason> {
        if self.is_original {
            return Ok(None);
        }
        let began = self.began.unwrap_or_else(Instant::now);
        let kind = match self.cause {
            _ if self.throttled => Kind::Throttled,
            Cause::Timeout => Kind::Timeout,
            _ => Kind::Failure,
        };
        let charge = self.dependency.charge(began, Some(self.cause), kind);
        charge.map(Some).map_err(|refused| {
            self.suppressed = Some(wait);
            refused.kind().into()
        })
    }
}
