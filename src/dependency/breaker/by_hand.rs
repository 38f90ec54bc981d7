//! States that a person sets and ends.

use super::{
    Breaker, BreakerReason, BreakerState, CLOSED, Change, History, OPEN, Ordering, Pin, lock,
};

impl Breaker {
    /// Opens it until a person closes it.
    pub(crate) fn force_open(&self, now: u64) -> Change {
        self.pin(Some(Pin::Open), now)
    }

    /// Closes it, whatever fails, until a person ends that.
    pub(crate) fn force_closed(&self, now: u64) -> Change {
        self.pin(Some(Pin::Closed), now)
    }

    /// Closes it and forgets all counts.
    pub(crate) fn reset(&self, now: u64) -> Change {
        self.pin(None, now)
    }

    fn pin(&self, pinned: Option<Pin>, now: u64) -> Change {
        let mut inner = lock(&self.shared.inner);
        self.empty(&mut inner);
        inner.history = History::from(self.shared.calls.0.load(Ordering::Relaxed));
        inner.pinned = pinned;
        let reason = BreakerReason::ByHand;
        let (word, state) = match pinned {
            Some(Pin::Open) => (OPEN, BreakerState::Open(self.policy.max_cooldown)),
            Some(Pin::Closed) | None => (CLOSED, BreakerState::Closed),
        };
        inner.probes.until = if word == OPEN { u64::MAX } else { 0 };
        self.enter(&mut inner, word, reason, now);
        Change { state, reason }
    }
}
