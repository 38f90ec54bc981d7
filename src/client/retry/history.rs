use std::time::Duration;

use crate::call::{Cause, Effect, Guidance, Retryable, Verdict, attempt::NextAttempt};

/// The causes that are counted apart. More of them in one call share the last count, which then
/// allows less, never more.
const COUNTED_CAUSES: usize = 4;

/// The failed attempts of one call, as far as later decisions depend on them.
#[derive(Debug, Clone, Copy)]
pub(super) struct FailureHistory {
    /// Attempts that went out.
    pub(super) attempts: u32,
    /// Retries that were granted.
    pub(super) retries: u32,
    /// Backoffs since the call began, or since a pushback, which begins the backoff anew.
    pub(super) backoffs: u32,
    /// Causes that are retried a limited number of times, and how often they were.
    limited: [(Cause, u32); COUNTED_CAUSES],
    /// A retry was granted for new credentials.
    pub(super) refreshed: bool,
    pub(super) next: NextAttempt,
    pub(super) previous_backoff: Duration,
    /// The cause of the last failure.
    pub(super) last_cause: Cause,
    /// The effect that the last failed attempt may have had.
    last_effect: Effect,
    /// The effect that the attempts before it may have had.
    pub(super) before_last: Effect,
}

impl FailureHistory {
    /// Returns how often this cause was retried, whatever came between.
    pub(super) fn repeats_of(&self, cause: Cause) -> u32 {
        self.limited[self.place_of(cause)].1
    }

    /// Returns the place of a cause's count: its own, the first that is free, or the last.
    fn place_of(&self, cause: Cause) -> usize {
        let is_its = |(known, times): &(Cause, u32)| *known == cause || *times == 0;
        self.limited
            .iter()
            .position(is_its)
            .unwrap_or(COUNTED_CAUSES - 1)
    }

    /// Returns the effect that all failed attempts may have had.
    pub(super) fn effect(&self) -> Effect {
        self.before_last.max(self.last_effect)
    }

    /// Records a failure after which a retry was granted.
    pub(super) fn record(&mut self, verdict: &Verdict, backoff: Duration) {
        self.next.credentials = verdict.retry == Retryable::AfterRefresh;
        self.next.fresh_id |= verdict.retry == Retryable::FreshId;
        self.refreshed |= self.next.credentials;
        if matches!(verdict.retry, Retryable::MaxPerCause(_)) {
            let (known, times) = &mut self.limited[self.place_of(verdict.cause)];
            (*known, *times) = (verdict.cause, *times + 1);
        }
        self.retries += 1;
        match (verdict.guidance, verdict.retry) {
            (Some(Guidance::Exactly(_)), _) => {
                self.backoffs = 0;
                self.previous_backoff = Duration::ZERO;
            }
            (_, Retryable::AfterRefresh) => {}
            _ => {
                self.backoffs += 1;
                self.previous_backoff = backoff;
            }
        }
        if verdict.refusal().is_none() || self.attempts == 0 {
            self.last_cause = verdict.cause;
        }
        if verdict.refusal().is_some() {
            // It never went out: the attempt before it is still the last one.
            return;
        }
        self.before_last = self.effect();
        self.last_effect = verdict.effect;
    }
}

impl Default for FailureHistory {
    fn default() -> Self {
        Self {
            attempts: 1,
            retries: 0,
            backoffs: 0,
            limited: [(Cause::Success, 0); COUNTED_CAUSES],
            refreshed: false,
            next: NextAttempt::default(),
            previous_backoff: Duration::ZERO,
            last_cause: Cause::Timeout,
            last_effect: Effect::None,
            before_last: Effect::None,
        }
    }
}
