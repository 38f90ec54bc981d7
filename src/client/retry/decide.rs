//! The decisions about a call whose attempt failed. They depend on their arguments alone.

use std::time::Duration;

use tokio::time::Instant;

use super::history::FailureHistory;
use crate::{
    call::{Cause, Effect, Guidance, Retryable, StopReason, Verdict},
    dependency::Hold,
};

/// The limits of a call that do not change with its attempts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) max_retries: u32,
    /// The request that the call is made for is a retry, whose caller calls again.
    pub(super) chain_stop: bool,
    /// Sending the request twice has the effect of sending it once.
    pub(super) repeatable: bool,
    /// The hook brings new credentials.
    pub(super) refreshes: bool,
}

/// Facts from outside of the call. Each is asked for only when nothing before it forbids the retry,
/// in the order of the methods: reading the rest of a body costs, and a charge has to be the last.
pub(super) trait Environment {
    type Charge;

    /// Draws a delay from the backoff, after so many others.
    fn backoff(&self, backoffs: u32, previous: Duration) -> Duration;
    /// Prolongs `least` at random, by a part of the time that the dependency `asked` for.
    fn spread(&self, least: Duration, asked: Duration) -> Duration;
    /// Returns the time for which the dependency wants no calls at all.
    fn hold(&self) -> Option<Hold>;
    /// Returns the present time and the end of the call's.
    fn times(&mut self) -> (Instant, Instant);
    /// Returns whether the breaker is sure to refuse a call at that time.
    fn breaker_refuses(&self, at: Instant) -> bool;
    /// Returns whether the request can be sent once more.
    fn is_replayable(&self) -> bool;
    /// Takes a retry out of the budget that would go out after that wait.
    fn charge(&mut self, wait: Duration) -> Result<Self::Charge, StopReason>;
}

/// A retry that nothing forbids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Granted<Charge> {
    pub(super) at: Instant,
    pub(super) wait: Duration,
    pub(super) backoff: Duration,
    pub(super) charge: Charge,
}

/// Decides whether and when a failed attempt is followed by another one.
pub(super) fn decide<E: Environment>(
    history: &FailureHistory,
    verdict: &Verdict,
    limits: Limits,
    environment: &mut E,
) -> Result<Granted<E::Charge>, StopReason> {
    may_retry(history, verdict, limits)?;
    // New credentials are worth trying at once: nothing is overloaded.
    let backoff = match verdict.retry {
        Retryable::AfterRefresh => Duration::ZERO,
        _ => environment.backoff(history.backoffs, history.previous_backoff),
    };
    let wait = wait(history.retries, verdict.guidance, backoff, environment);
    let (now, deadline) = environment.times();
    let at = starts_at(now, wait, deadline)?;
    if environment.breaker_refuses(at) {
        return Err(StopReason::Breaker);
    }
    if !environment.is_replayable() {
        return Err(StopReason::NotReplayable);
    }
    let charge = environment.charge(wait)?;
    Ok(Granted {
        at,
        wait,
        backoff,
        charge,
    })
}

/// Decides by the verdict and by the number of attempts whether there may be another one.
fn may_retry(
    history: &FailureHistory,
    verdict: &Verdict,
    limits: Limits,
) -> Result<(), StopReason> {
    let exhausted = match verdict.retry {
        Retryable::Never => {
            return Err(match (verdict.cause, verdict.guidance) {
                (Cause::Refused(refusal), _) => refusal.into(),
                (_, Some(Guidance::Stop)) => StopReason::Pushback,
                _ => StopReason::NotRetryable,
            });
        }
        Retryable::AfterRefresh if !limits.refreshes => return Err(StopReason::NotRetryable),
        Retryable::AfterRefresh => history.refreshed,
        Retryable::MaxPerCause(limit) => history.repeats_of(verdict.cause) >= limit,
        Retryable::MaxRetries(limit) => history.retries >= limit,
        Retryable::FreshId => history.next.fresh_id,
        Retryable::Yes => false,
    };
    let refusal = match verdict.cause {
        Cause::Refused(refusal) => Some(refusal.into()),
        _ => None,
    };
    if exhausted {
        return Err(refusal.unwrap_or(StopReason::Exhausted));
    }
    // A request that was refused for its credentials was not executed.
    let unexecuted = verdict.never_sent || verdict.retry == Retryable::AfterRefresh;
    if !limits.repeatable && !unexecuted {
        return Err(StopReason::NotIdempotent);
    }
    if history.retries >= limits.max_retries {
        let reason = match limits.chain_stop {
            true => StopReason::ChainStop,
            false => StopReason::Exhausted,
        };
        return Err(refusal.unwrap_or(reason));
    }
    Ok(())
}

/// Returns the wait before the next attempt: the backoff, or more if the dependency asked for it.
fn wait(
    retries: u32,
    guidance: Option<Guidance>,
    backoff: Duration,
    environment: &impl Environment,
) -> Duration {
    let wait = match guidance {
        Some(Guidance::Exactly(asked)) => environment.spread(asked, asked),
        Some(Guidance::AtLeast(asked)) => environment.spread(asked.max(backoff), asked),
        Some(Guidance::InBody {
            floor,
            doubles,
            everybody,
        }) => {
            let doublings = retries * u32::from(doubles);
            let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
            let asked = floor.saturating_mul(factor);
            let asked = asked.max(everybody.unwrap_or_default());
            environment.spread(asked.max(backoff), asked)
        }
        Some(Guidance::Stop) | None => backoff,
    };
    match environment.hold() {
        Some(hold) if hold.left > wait => environment.spread(hold.left, hold.asked),
        _ => wait,
    }
}

/// Returns when an attempt starts, unless that is too late for the call.
fn starts_at(now: Instant, wait: Duration, deadline: Instant) -> Result<Instant, StopReason> {
    let at = now.checked_add(wait).filter(|at| *at < deadline);
    at.ok_or(StopReason::Deadline)
}

/// Decides whether a granted retry still goes out when its wait is over and its service is ready.
/// The charge is committed last, as it stays even if the retry fails.
pub(super) fn may_send(
    now: Instant,
    deadline: Instant,
    breaker_refuses: impl FnOnce(Instant) -> bool,
    commit: impl FnOnce() -> bool,
) -> Result<(), StopReason> {
    if now >= deadline {
        return Err(StopReason::Deadline);
    }
    if breaker_refuses(now) {
        return Err(StopReason::Breaker);
    }
    match commit() {
        true => Ok(()),
        false => Err(StopReason::Budget),
    }
}

/// The result that a caller gets when its call has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reported {
    /// That of the attempt that just ended.
    Last,
    /// That of the attempt before it.
    Earlier,
}

/// Decides which result the caller gets, and returns the effect that other attempts may have had.
/// A refusal by a layer of ours is no answer of the dependency, but an earlier result is.
pub(super) fn report(
    history: &FailureHistory,
    verdict: &Verdict,
    has_earlier: bool,
) -> (Reported, Effect) {
    match verdict.refusal().is_some() && has_earlier {
        true => (Reported::Earlier, history.before_last),
        false => (Reported::Last, history.effect()),
    }
}

#[cfg(test)]
mod tests;
