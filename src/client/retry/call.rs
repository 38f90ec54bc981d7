//! The state of one call, and the steps that the [loop](super::future) takes with it.

mod ending;
mod surroundings;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::time::Instant;
use tower::Service;

use self::surroundings::Surroundings;
use super::{
    PrepareAttempt, ReplayRequests,
    decide::{self, Granted, Limits},
    history::FailureHistory,
};
use crate::{
    call::{
        Attempt, Cause, Guidance, PrepareError, StopReason, Verdict, caller::NestedFailure,
        hedged::take_hedged,
    },
    classify::Classify,
    dependency::{BreakerState, Charge, Dependency, Event, LastSlot, Place, Route},
    error::{BoxError, Refusal},
    policy::CallLimits,
    telemetry,
};

/// A call over all of its attempts.
pub(super) struct Call<S, C, P, H, Req>
where
    S: Service<Req>,
    P: ReplayRequests<Req, S::Response>,
{
    pub(super) route: Arc<Route<S>>,
    pub(super) classifier: C,
    pub(super) requests: P,
    pub(super) prepare: H,
    pub(super) snapshot: Option<P::Snapshot>,
    /// Sending the request twice has the effect of sending it once.
    pub(super) repeatable: bool,
    pub(super) counted: Counted,
    pub(super) limits: CallLimits,
    /// The start of the call's time. It is read by the first poll that is not ready, after the
    /// layers below have read theirs: an attempt that runs out of the call's time has then been
    /// out at least as long by their clock.
    pub(super) began: Option<Instant>,
    /// Where the server layer of the call's caller wants to know that it failed for good.
    pub(super) nested: Option<Arc<NestedFailure>>,
    /// The end of the attempt's time, once that was asked for.
    pub(super) attempt_limit: Option<Instant>,
    /// A layer below may have held the attempt back when its limit was set.
    pub(super) held: bool,
    pub(super) retried: Option<Box<Retried<S, S::Response>>>,
}

/// The place in which an original was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    /// It is no original, or another layer counted it.
    Elsewhere,
    /// In this slot of the budget.
    In(u64),
    /// Nowhere, since it was refused before it went out.
    Nowhere,
}

/// The state of a call that is retried. Boxed, so that other calls are small.
pub(super) struct Retried<S, Res> {
    pub(super) history: FailureHistory,
    /// The service that retries call.
    service: Option<S>,
    /// The next retry, or the one that is out.
    charge: Option<Charge>,
    /// The place among the calls that wait, of a call that the breaker refused.
    place: Option<Place>,
    /// The wait before the next attempt, and its cause, for the log.
    announced: Option<(Duration, Cause)>,
    /// The result of the last attempt, for when the next one brings none.
    last: Option<Result<Res, BoxError>>,
    /// The failure of the hook, which ends the call.
    prepare: Option<PrepareError>,
    /// The correlation id of a request of which nothing is kept any more, for the log.
    correlation_id: Option<Box<str>>,
    /// The attempts that failed after they went out.
    failed: Vec<(SystemTime, Cause)>,
    /// The charge of a call that is itself a repeat of a loop above.
    repeat: Option<Charge>,
    /// The wait of a retry that the budget refused.
    suppressed: Option<Duration>,
}

impl<S, Res> Retried<S, Res> {
    /// The state of a call that is a repeat of a loop above.
    pub(super) fn charged(repeat: Charge) -> Self {
        Self {
            repeat: Some(repeat),
            ..Self::default()
        }
    }

    /// Remembers an attempt that failed, unless a layer below refused it.
    fn failed(&mut self, verdict: &Verdict) {
        if verdict.refusal().is_none() {
            self.failed.push((SystemTime::now(), verdict.cause));
        }
    }
}

impl<S, Res> Default for Retried<S, Res> {
    fn default() -> Self {
        Self {
            history: FailureHistory::default(),
            service: None,
            charge: None,
            place: None,
            announced: None,
            last: None,
            prepare: None,
            correlation_id: None,
            failed: Vec::new(),
            repeat: None,
            suppressed: None,
        }
    }
}

impl<S, C, P, H, Req> Call<S, C, P, H, Req>
where
    S: Service<Req> + Clone,
    C: Classify<Req, S::Response>,
    P: ReplayRequests<Req, S::Response>,
    H: PrepareAttempt<Req>,
{
    fn dependency(&self) -> &Arc<Dependency> {
        &self.route.dependency
    }

    #[inline(always)]
    pub(super) fn classify(&self, result: Result<&mut S::Response, &mut BoxError>) -> Verdict {
        self.dependency().classify(&self.classifier, result)
    }

    /// Counts a call that succeeded with its first attempt.
    #[inline]
    pub(super) fn succeeded_at_once(&self) {
        self.earn();
        self.dependency().count_success();
    }

    /// Earns a part of a retry for a success, unless another layer does.
    #[inline]
    fn earn(&self) {
        if self.counted != Counted::Elsewhere {
            self.dependency().earn();
        }
    }

    /// Settles the charge of a call that is a repeat of a loop above: it is taken back if nothing went
    /// out, and a success earns a part of a retry.
    pub(super) fn settle_repeat(&mut self, result: &mut Result<S::Response, BoxError>) {
        let retried = self.retried.as_mut();
        let Some(charge) = retried.and_then(|retried| retried.repeat.take()) else {
            return;
        };
        let verdict = self.classify(result.as_mut());
        if verdict.is_success() {
            charge.succeeded();
            self.dependency().earn();
        } else if verdict.refusal().is_some() {
            charge.take_back();
        }
    }

    /// Counts the hedge of an attempt that failed, if it is one of the call's retries.
    pub(super) fn count_hedge(&mut self, result: &mut Result<S::Response, BoxError>) {
        let hedged = match result {
            Ok(response) => self.requests.is_hedged(response),
            Err(error) => take_hedged(error),
        };
        if hedged {
            self.count_attempt();
        }
    }

    /// Counts one more attempt, which is one of the call's retries.
    fn count_attempt(&mut self) {
        let history = &mut self.retried.get_or_insert_default().history;
        history.attempts += 1;
        history.retries += 1;
    }

    /// Decides on the attempt after one that failed. Returns when it starts.
    pub(super) fn decide(&mut self, verdict: &Verdict) -> Result<Instant, StopReason> {
        let charge = self.retried.as_mut().and_then(|it| it.charge.take());
        if verdict.refusal().is_some() {
            let retried = self.retried.get_or_insert_default();
            retried.history.attempts -= 1;
            retried.place = None;
            match (charge, self.counted) {
                (Some(charge), _) => charge.take_back(),
                (None, Counted::In(slot)) => {
                    self.route.dependency.uncount_original(slot);
                    self.counted = Counted::Nowhere;
                }
                _ => {}
            }
        }
        let history = self.history();
        let limits = Limits {
            max_retries: self.limits.max_retries,
            chain_stop: self.limits.is_stopped,
            repeatable: self.repeatable,
            refreshes: self.prepare.refreshes(),
        };
        let (requests, snapshot) = (&self.requests, self.snapshot.as_ref());
        let mut surroundings = Surroundings {
            dependency: &self.route.dependency,
            began: &mut self.began,
            total: self.limits.total,
            is_original: history.attempts == 0,
            cause: verdict.cause,
            throttled: verdict.is_throttling(),
            replayable: || snapshot.is_some_and(|snapshot| requests.is_replayable(snapshot)),
            suppressed: None,
        };
        let Granted {
            at,
            wait,
            backoff,
            charge,
        } = match decide::decide(&history, verdict, limits, &mut surroundings) {
            Ok(granted) => granted,
            Err(reason) => {
                if let Some(wait) = surroundings.suppressed {
                    self.retried.get_or_insert_default().suppressed = Some(wait);
                }
                return Err(reason);
            }
        };
        let place = match verdict.refusal() {
            Some(by) => {
                let pause = match verdict.guidance {
                    Some(Guidance::AtLeast(pause)) => pause,
                    _ => Duration::ZERO,
                };
                let place = self.route.dependency.place_after(by, pause);
                Some(place.ok_or_else(|| StopReason::from(by))?)
            }
            None => None,
        };
        let retried = self.retried.get_or_insert_default();
        retried.charge = charge;
        retried.place = place;
        retried.announced = Some((wait, verdict.cause));
        retried.history.record(verdict, backoff);
        retried.failed(verdict);
        Ok(at)
    }

    /// Keeps the result of a failed attempt, for when the next one brings none. A refusal by a layer
    /// of ours does not take the place of a result.
    pub(super) fn keep(&mut self, result: Result<S::Response, BoxError>, verdict: &Verdict) {
        let last = &mut self.retried.get_or_insert_default().last;
        if last.is_none() || verdict.refusal().is_none() {
            *last = Some(result);
        }
    }

    /// Returns until when the next attempt waits on, now that its time has come.
    pub(super) fn wait_on(&mut self) -> Option<Instant> {
        let (now, deadline) = (Instant::now(), self.deadline());
        let place = self.retried.as_mut()?.place.as_mut()?;
        Some(now + place.wait_on(deadline.saturating_duration_since(now))?)
    }

    /// Rebuilds the request for the next attempt.
    pub(super) fn next_request(&mut self) -> Option<(Req, Attempt)> {
        let deadline = self.deadline();
        let FailureHistory {
            attempts,
            retries,
            next,
            ..
        } = self.history();
        let registry = self.dependency().registry();
        // One that was refused before it went out is none to the dependency.
        let attempt = Attempt::charged(attempts, registry, deadline, self.limits.hop, next);
        let last = retries >= self.limits.max_retries;
        let rules = self.route.dependency.policy().rules();
        if last {
            let labels = self.requests.labels(self.snapshot.as_ref(), rules);
            let retried = self.retried.get_or_insert_default();
            retried.correlation_id = labels.correlation_id.map(Into::into);
        }
        let request = self
            .requests
            .rebuild(&mut self.snapshot, attempt, last, rules)?;
        Some((request, attempt))
    }

    /// Returns the request that the hook prepared, unless it failed or did harm.
    pub(super) fn admit_prepared(
        &mut self,
        prepared: Result<Req, BoxError>,
        attempt: Attempt,
    ) -> Option<Req> {
        let rules = self.dependency().policy().rules();
        let admit = |request| {
            let snapshot = self.snapshot.as_ref();
            self.requests
                .admit_prepared(snapshot, request, attempt, rules)
        };
        let harm = "the hook took away credentials or the idempotency key";
        let (why, error) = match prepared.map(admit) {
            Ok(Some(request)) => return Some(request),
            Ok(None) => (harm, harm.into()),
            Err(error) => ("the hook failed", error),
        };
        telemetry::prepare_failed(self.dependency().target(), why);
        self.retried.get_or_insert_default().prepare = Some(PrepareError::new(error));
        None
    }

    /// Drops a response whose body goes on: the next attempt may wait for its connection, or for its
    /// place in a limit below. One that was read to its end is kept, as is an error.
    pub(super) fn let_go(&mut self) {
        let Some(retried) = &mut self.retried else {
            return;
        };
        let unread = |response| self.requests.is_unread(response);
        if matches!(&retried.last, Some(Ok(response)) if unread(response)) {
            retried.last = None;
        }
    }

    /// Returns the service that retries call, which is not the one that the caller readied.
    pub(super) fn service(&mut self) -> &mut S {
        let route = &self.route;
        let retried = self.retried.get_or_insert_default();
        retried.service.get_or_insert_with(|| route.service())
    }

    /// Commits the charge of an attempt that goes out now, if it still may.
    pub(super) fn send_charge(&mut self) -> Result<(), StopReason> {
        let (now, deadline) = (Instant::now(), self.deadline());
        let dependency = &self.route.dependency;
        let retried = self.retried.get_or_insert_default();
        let charge = retried.charge.as_mut();
        decide::may_send(
            now,
            deadline,
            |now| dependency.refuses_at(now),
            || charge.is_none_or(Charge::send),
        )?;
        retried.place = None;
        if retried.history.attempts == 0 {
            // Only refusals are kept so far, and this attempt may have an effect.
            retried.last = None;
            retried.history.last_cause = Cause::Timeout;
        }
        retried.history.attempts += 1;
        if let Some((wait, cause)) = retried.announced.take() {
            let (requests, snapshot) = (&self.requests, self.snapshot.as_ref());
            let (retries, most) = (retried.history.retries, self.limits.max_retries);
            telemetry::retry(dependency.target(), retries, most, wait, cause, || {
                requests.labels(snapshot, dependency.policy().rules())
            });
            dependency.happened(&Event::Retry {
                dependency: dependency.name(),
                retry: retries,
                wait,
                cause,
            });
        }
        if self.counted == Counted::Nowhere && retried.charge.is_none() {
            let slot = dependency.count_original(now, &mut LastSlot::default());
            self.counted = Counted::In(slot);
        }
        self.attempt_limit = None;
        Ok(())
    }

    /// Tells the next hop how much time is left for a retry that goes out now.
    pub(super) fn refresh(&self, request: &mut Req) {
        let rules = self.dependency().policy().rules();
        self.requests.refresh(request, rules);
    }

    /// Makes the error of an attempt that the breaker is sure to refuse, as a layer below would.
    pub(super) fn refused_by_breaker(&mut self) -> BoxError {
        let retried = self.retried.get_or_insert_default();
        retried.history.attempts += 1;
        // It was readied, and would keep others from their place while it waits.
        retried.service = None;
        let left = match self.dependency().status().breaker {
            BreakerState::Open(left) => left,
            _ => Duration::ZERO,
        };
        self.dependency()
            .refused(Refusal::Breaker, Some(left))
            .into()
    }

    /// Returns whether the attempt's time goes on although its limit is reached, since a layer below
    /// may still hold it back.
    pub(super) fn is_held(&mut self) -> bool {
        let held = self.held && !self.dependency().longest_hold().is_zero();
        if held {
            self.attempt_limit = None;
        }
        held
    }

    fn history(&self) -> FailureHistory {
        let retried = self.retried.as_ref();
        retried.map_or_else(FailureHistory::default, |retried| retried.history)
    }

    pub(super) fn deadline(&mut self) -> Instant {
        deadline(&mut self.began, self.limits.total)
    }

    /// Returns the end of the attempt's time, or of the call's if that comes first.
    pub(super) fn attempt_limit(&mut self) -> Instant {
        if let Some(limit) = self.attempt_limit {
            return limit;
        }
        let deadline = self.deadline();
        let dependency = &self.route.dependency;
        // The time that a layer below holds the call back is not the attempt's.
        let limit = match dependency.policy().attempt_timeout() {
            Some(timeout) => {
                let hold = dependency.longest_hold();
                self.held = !hold.is_zero();
                deadline.min(Instant::now() + hold + timeout)
            }
            None => deadline,
        };
        *self.attempt_limit.insert(limit)
    }
}

/// Returns the end of a call's time, which begins now unless it has begun.
fn deadline(began: &mut Option<Instant>, total: Duration) -> Instant {
    *began.get_or_insert_with(Instant::now) + total
}
