use std::time::Duration;

use crate::call::{Cause, Effect, Retryable, Verdict, attempt::NextAttempt};

/// The failed attempts of one call, as far as later decisions depend on them.
#[derive(Debug, Clone, Copy)]
pub(super) struct FailureHistory {
    /// Attempts that went out.
    pub(super) attempts: u32,
    /// Retries that were granted.
    pub(super) retries: u32,
    /// The last failure of a sort that is retried a limited number of times in a row, and how
    /// often it was.
    limited: (Cause, u32),
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
    /// Returns how often this sort of failure was retried in a row.
    pub(super) fn repeats_of(&self, cause: Cause) -> u32 {
        let (last, times) = self.limited;
        if last == cause { times } else { 0 }
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
        if matches!(verdict.retry, Retryable::MaxConsecutive(_)) {
            self.limited = (verdict.cause, self.repeats_of(verdict.cause) + 1);
        }
        self.retries += 1;
        self.previous_backoff = backoff;
        if matches!(verdict.cause, Cause::Refused(_)) {
            // It never went out: the attempt before it is still the last one.
            return;
        }
        self.last_cause = verdict.cause;
        self.before_last = self.effect();
        self.last_effect = verdict.effect;
    }
}

impl Default for FailureHistory {
    fn default() -> Self {
        Self {
            attempts: 1,
            retries: 0,
            limited: (Cause::Success, 0),
            refreshed: false,
            next: NextAttempt::default(),
            previous_backoff: Duration::ZERO,
            last_cause: Cause::Timeout,
            last_effect: Effect::None,
            before_last: Effect::None,
        }
    }
}
