//! One call over its attempts: what it remembers, and every decision about the next attempt.

use std::{
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
    time::Duration,
};

use tokio::time::Instant;

use super::{PrepareAttempt, Protocol, past::Past};
use crate::{
    call::{Attempt, RetryError, RetryOutcome, StopReason},
    policy::CallLimits,
};
use crate::{
    call::{Cause, Effect, Guidance, Retryable, Verdict},
    classify::Classify,
    dependency::{CacheEntry, Dependency},
    error::{BoxError, Elapsed},
    telemetry,
};

/// What calls of one service to one dependency share.
#[derive(Debug)]
pub(super) struct Route<S> {
    pub(super) dependency: Arc<Dependency>,
    /// What a retry calls is a clone of this, so that a call without one need not clone the
    /// service; and neither does a call to another dependency.
    pub(super) spare: Arc<Mutex<S>>,
}

impl<S> Route<S> {
    /// The route to another dependency, in the place of one that nobody is on any more.
    pub(super) fn to(dependency: Arc<Dependency>, mut route: Arc<Self>) -> Arc<Self> {
        match Arc::get_mut(&mut route) {
            Some(route) => route.dependency = dependency,
            None => {
                let spare = Arc::clone(&route.spare);
                route = Arc::new(Self { dependency, spare });
            }
        }
        route
    }
}

impl<S> CacheEntry for Route<S> {
    fn dependency(&self) -> &Dependency {
        &self.dependency
    }
}

/// What a call remembers over its attempts.
pub(super) struct Call<S, C, P, H, Snapshot, Res> {
    pub(super) route: Arc<Route<S>>,
    pub(super) classifier: C,
    pub(super) protocol: P,
    pub(super) prepare: H,
    pub(super) snapshot: Option<Snapshot>,
    /// Sending it twice is as good as sending it once.
    pub(super) repeatable: bool,
    pub(super) bounds: CallLimits,
    /// When the call began, as far as the clock was read yet, and when the attempt's time is over,
    /// which is never asked by a call that is ready at once.
    pub(super) began: Option<Instant>,
    pub(super) attempt_until: Option<Instant>,
    /// What there is to remember once an attempt failed. It is boxed, so that calls that succeed
    /// are small.
    pub(super) past: Option<Box<Past<S, Res>>>,
}

/// What becomes of an attempt's result.
pub(super) enum Decision<Res> {
    Return(Result<Res, BoxError>),
    Wait(Instant),
}

impl<S, C, P, H, Snapshot, Res> Call<S, C, P, H, Snapshot, Res> {
    fn dependency(&self) -> &Arc<Dependency> {
        &self.route.dependency
    }

    /// What it remembers of attempts that failed, which begins with the first that does.
    fn past(&mut self) -> &mut Past<S, Res> {
        self.past.get_or_insert_default()
    }

    pub(super) fn retries(&self) -> u32 {
        self.past.as_ref().map_or(0, |past| past.retries)
    }

    /// Whether the first attempt brought what was asked for, as most do.
    #[inline]
    pub(super) fn is_first_success<Req>(&self, polled: &Poll<Result<Res, BoxError>>) -> bool
    where
        C: Classify<Req, Res>,
    {
        let Poll::Ready(Ok(response)) = polled else {
            return false;
        };
        let rules = self.dependency().policy().rules();
        let first = self.past.as_ref().is_none_or(|past| past.attempts == 1);
        first && self.classifier.classify(rules, Ok(response)).is_success()
    }

    /// What becomes of an attempt's result.
    pub(super) fn decide<Req>(&mut self, result: Result<Res, BoxError>) -> Decision<Res>
    where
        C: Classify<Req, Res>,
        P: Protocol<Req, Res, Snapshot = Snapshot>,
        H: PrepareAttempt<Req>,
    {
        let verdict = self.dependency().classify(&self.classifier, &result);
        if verdict.is_success() {
            return Decision::Return(match self.retries() {
                0 => result,
                _ => {
                    let before = self.past().effect();
                    self.annotate(result, None, before)
                }
            });
        }
        let refused = matches!(verdict.cause, Cause::Refused(_));
        let past = self.past();
        if refused {
            past.attempts -= 1;
        }
        match past.charge.take() {
            Some(charge) if refused => charge.take_back(),
            _ => {}
        }
        match self.next_wait(&verdict) {
            Ok(wait) => {
                self.count(&verdict, wait);
                let past = self.past();
                past.last_cause = verdict.cause;
                past.before_last = past.effect();
                past.last_effect = verdict.effect;
                past.last = Some(result);
                Decision::Wait(Instant::now() + wait)
            }
            Err(reason) => {
                let past = self.past();
                let (attempts, last) = (past.attempts, past.last.take());
                // A refusal is no answer of the dependency's; an earlier one is.
                let (result, before) = match last {
                    Some(last) if refused => (last, past.before_last),
                    _ => (result, past.effect()),
                };
                telemetry::stop_reason(self.dependency().target(), attempts, reason, verdict.cause);
                Decision::Return(self.annotate(result, Some(reason), before))
            }
        }
    }

    /// The wait before the next attempt, if there is to be one. The budget is asked last, so that
    /// nothing is charged for a retry that something else forbids.
    fn next_wait<Req>(&mut self, verdict: &Verdict) -> Result<Duration, StopReason>
    where
        P: Protocol<Req, Res, Snapshot = Snapshot>,
        H: PrepareAttempt<Req>,
    {
        let refreshes = self.prepare.refreshes();
        let past = self.past();
        match verdict.retry {
            Retryable::Never => return Err(final_reason(verdict)),
            Retryable::AfterRefresh if !refreshes => {
                return Err(StopReason::NotRetryable);
            }
            Retryable::AfterRefresh if past.refreshed => return Err(StopReason::Exhausted),
            Retryable::MaxConsecutive(limit) if past.repeats_of(verdict.cause) >= limit => {
                return Err(StopReason::Exhausted);
            }
            Retryable::MaxRetries(limit) if past.retries >= limit => {
                return Err(StopReason::Exhausted);
            }
            Retryable::FreshId if past.wants.fresh_id => return Err(StopReason::Exhausted),
            _ => {}
        }
        if !self.repeatable && !verdict.never_sent {
            return Err(StopReason::NotIdempotent);
        }
        if self.retries() >= self.bounds.max_retries {
            return Err(StopReason::Exhausted);
        }
        let wait = self.draw_wait(verdict);
        let deadline = self.deadline();
        let at = Instant::now().checked_add(wait).filter(|at| *at < deadline);
        let at = at.ok_or(StopReason::Deadline)?;
        if self.dependency().refuses_at(at) {
            return Err(StopReason::Breaker);
        }
        // This may read what is left of a body, so only a retry that nothing else forbids asks.
        let snapshot = self.snapshot.as_ref();
        if !snapshot.is_some_and(|snapshot| self.protocol.is_whole(snapshot)) {
            return Err(StopReason::NotReplayable);
        }
        let charge = self.dependency().charge();
        let charge = charge.map_err(|refused| StopReason::from(refused.kind()))?;
        self.past().charge = Some(charge);
        Ok(wait)
    }

    fn draw_wait(&mut self, verdict: &Verdict) -> Duration {
        let dependency = &self.route.dependency;
        let past = self.past.get_or_insert_default();
        let backoff = dependency.policy().backoff();
        let backoff = backoff.delay(past.retries, past.previous_wait, dependency.draw());
        past.previous_wait = backoff;
        let wait = match verdict.guidance {
            Some(Guidance::Exactly(asked)) => dependency.spread(asked, asked),
            Some(Guidance::AtLeast(asked)) => dependency.spread(asked.max(backoff), asked),
            Some(Guidance::InBody {
                floor,
                doubles,
                everybody,
            }) => {
                let times = self.retries() * u32::from(doubles);
                let factor = 1_u32.checked_shl(times).unwrap_or(u32::MAX);
                let asked = floor.saturating_mul(factor);
                let asked = asked.max(everybody.unwrap_or_default());
                dependency.spread(asked.max(backoff), asked)
            }
            Some(Guidance::Stop) | None => backoff,
        };
        match dependency.hold() {
            Some(hold) if hold.left > wait => dependency.spread(hold.left, hold.asked),
            _ => wait,
        }
    }

    fn count<Req>(&mut self, verdict: &Verdict, wait: Duration)
    where
        P: Protocol<Req, Res, Snapshot = Snapshot>,
    {
        let past = self.past();
        past.wants.credentials = verdict.retry == Retryable::AfterRefresh;
        past.wants.fresh_id |= verdict.retry == Retryable::FreshId;
        past.refreshed |= past.wants.credentials;
        if matches!(verdict.retry, Retryable::MaxConsecutive(_)) {
            past.limited = (verdict.cause, past.repeats_of(verdict.cause) + 1);
        }
        past.retries += 1;
        let rules = self.dependency().policy().rules();
        let labels = || self.protocol.labels(self.snapshot.as_ref(), rules);
        let max_attempts = self.bounds.max_retries;
        telemetry::retry(
            self.dependency().target(),
            self.retries(),
            max_attempts,
            wait,
            verdict.cause,
            labels,
        );
    }

    pub(super) fn next_request<Req>(&mut self) -> Option<(Req, Attempt)>
    where
        P: Protocol<Req, Res, Snapshot = Snapshot>,
    {
        let deadline = self.deadline();
        let Past { retries, wants, .. } = *self.past();
        let attempt = Attempt::charged(retries, deadline, wants);
        let last = retries >= self.bounds.max_retries;
        let rules = self.route.dependency.policy().rules();
        let request = self
            .protocol
            .rebuild(&mut self.snapshot, attempt, last, rules)?;
        Some((request, attempt))
    }

    pub(super) fn check_prepared<Req>(
        &self,
        prepared: Result<Req, BoxError>,
        attempt: Attempt,
    ) -> Option<Req>
    where
        P: Protocol<Req, Res, Snapshot = Snapshot>,
    {
        let rules = self.dependency().policy().rules();
        let snapshot = self.snapshot.as_ref();
        let admit = |request| {
            self.protocol
                .admit_prepared(snapshot, request, attempt, rules)
        };
        let why = match prepared {
            Ok(request) => match admit(request) {
                Some(request) => return Some(request),
                None => "the hook took away credentials or the idempotency key",
            },
            Err(_) => "the hook failed",
        };
        telemetry::prepare_failed(self.dependency().target(), why);
        None
    }

    /// The next attempt goes out now, unless it became too late or the breaker opened while it
    /// was waited for.
    pub(super) fn begin_attempt(&mut self) -> Result<(), StopReason> {
        let now = Instant::now();
        if now >= self.deadline() {
            return Err(StopReason::Deadline);
        }
        if self.dependency().refuses_at(now) {
            return Err(StopReason::Breaker);
        }
        let past = self.past();
        if past.charge.as_mut().is_some_and(|charge| !charge.send()) {
            return Err(StopReason::Budget);
        }
        past.attempts += 1;
        self.attempt_until = None;
        Ok(())
    }

    pub(super) fn service(&mut self) -> &mut S
    where
        S: Clone,
    {
        let spare = &self.route.spare;
        let past = self.past.get_or_insert_default();
        past.service.get_or_insert_with(|| {
            let spare = spare.lock().unwrap_or_else(PoisonError::into_inner);
            spare.clone()
        })
    }

    pub(super) fn deadline(&mut self) -> Instant {
        *self.began.get_or_insert_with(Instant::now) + self.bounds.total
    }

    pub(super) fn attempt_until(&mut self) -> Instant {
        if let Some(until) = self.attempt_until {
            return until;
        }
        let deadline = self.deadline();
        let timeout = self.dependency().policy().attempt_timeout();
        // The time that a layer below holds the call back is not the attempt's.
        let until = timeout.map_or(deadline, |timeout| {
            let held = self.dependency().longest_hold();
            deadline.min(Instant::now() + held + timeout)
        });
        *self.attempt_until.insert(until)
    }

    pub(super) fn attempt_elapsed(&self) -> BoxError {
        let limit = self
            .route
            .dependency
            .policy()
            .attempt_timeout()
            .unwrap_or_default();
        Elapsed {
            whole_call: false,
            limit,
        }
        .into()
    }

    /// Ends the call while an attempt is out, which may be processed yet.
    pub(super) fn abandon<Req>(&mut self) -> Result<Res, BoxError>
    where
        P: Protocol<Req, Res, Snapshot = Snapshot>,
    {
        let past = self.past();
        if past.last.is_some() {
            past.before_last = Effect::Possible;
        }
        self.return_last(StopReason::Deadline)
    }

    /// Ends the call with the last real result, or for want of one with a timeout.
    pub(super) fn return_last<Req>(&mut self, reason: StopReason) -> Result<Res, BoxError>
    where
        P: Protocol<Req, Res, Snapshot = Snapshot>,
    {
        let past = self.past();
        past.service = None;
        past.charge = None;
        let (attempts, cause, last) = (past.attempts, past.last_cause, past.last.take());
        let before = past.before_last;
        telemetry::stop_reason(self.dependency().target(), attempts, reason, cause);
        let timeout = Elapsed {
            whole_call: true,
            limit: self.bounds.total,
        };
        let last = last.unwrap_or_else(|| Err(timeout.into()));
        self.annotate(last, Some(reason), before)
    }

    /// Says how it went, in the response or around the error.
    fn annotate<Req>(
        &self,
        result: Result<Res, BoxError>,
        stop_reason: Option<StopReason>,
        before: Effect,
    ) -> Result<Res, BoxError>
    where
        P: Protocol<Req, Res, Snapshot = Snapshot>,
    {
        let attempts = self.past.as_ref().map_or(1, |past| past.attempts);
        let outcome = RetryOutcome::new(attempts, stop_reason, before);
        match result {
            Ok(mut response) => {
                self.protocol.annotate(&mut response, outcome);
                Ok(response)
            }
            Err(error) => Err(RetryError::new(outcome, error).into()),
        }
    }
}

fn final_reason(verdict: &Verdict) -> StopReason {
    match (verdict.cause, verdict.guidance) {
        (Cause::Refused(refusal), _) => refusal.into(),
        (_, Some(Guidance::Stop)) => StopReason::Pushback,
        _ => StopReason::NotRetryable,
    }
}
