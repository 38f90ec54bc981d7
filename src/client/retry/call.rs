//! The state of one call, and the steps that the [loop](super::future) takes with it.

use std::{
    mem,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::time::Instant;
use tower::Service;

use super::{
    PrepareAttempt, ReplayRequests,
    decide::{self, Environment, Granted, Limits, Reported},
    history::FailureHistory,
};
use crate::{
    call::{
        Attempt, Cause, Effect, FailedAttempts, Guidance, PrepareError, RetryError, RetryOutcome,
        StopReason, Verdict, caller::NestedFailure, hedged::take_hedged,
    },
    classify::Classify,
    dependency::{BreakerState, Charge, Dependency, Event, Hold, Kind, LastSlot, Place, Route},
    error::{BoxError, Elapsed, Refusal},
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

    /// Makes the error of an attempt whose time is over. If hedges are counted, one that may have gone
    /// out beside it counts: it was called off with the attempt, and can't say so.
    pub(super) fn attempt_elapsed(&mut self) -> BoxError {
        let policy = self.dependency().policy();
        let limit = policy.attempt_timeout();
        let may_hedge = self.repeatable
            && policy
                .hedge()
                .is_some_and(|hedge| hedge.counted && limit > Some(hedge.min_delay));
        let most = self.limits.max_retries;
        if may_hedge && self.history().retries < most {
            self.count_attempt();
        }
        let elapsed = Elapsed {
            whole_call: false,
            limit: limit.unwrap_or_default(),
        };
        elapsed.into()
    }

    pub(super) fn end_with_success(
        &mut self,
        result: Result<S::Response, BoxError>,
    ) -> Result<S::Response, BoxError> {
        let history = self.history();
        if history.attempts > 1 {
            if let Some(charge) = self.retried.as_mut().and_then(|it| it.charge.take()) {
                charge.succeeded();
            }
            self.earn();
            telemetry::call_ended(self.dependency().target(), "success_after_retry");
        } else {
            self.succeeded_at_once();
        }
        match history {
            FailureHistory { retries: 0, .. } => result,
            history => self.annotate(result, None, history.effect()),
        }
    }

    /// Ends the call with the result of the attempt that failed last, or of an earlier one.
    pub(super) fn end(
        &mut self,
        result: Result<S::Response, BoxError>,
        verdict: &Verdict,
        reason: StopReason,
    ) -> Result<S::Response, BoxError> {
        let history = self.history();
        let earlier = self.retried.as_mut().and_then(|retried| {
            retried.failed(verdict);
            retried.last.take()
        });
        let (reported, effect) = decide::report(&history, verdict, earlier.is_some());
        let result = match (reported, earlier) {
            (Reported::Earlier, Some(earlier)) => earlier,
            _ => result,
        };
        self.gave_up(reason, verdict.cause);
        self.annotate(result, Some((reason, verdict.cause)), effect)
    }

    /// Ends the call while an attempt is out, which may still have an effect.
    pub(super) fn end_by_deadline(&mut self) -> Result<S::Response, BoxError> {
        if let Some(retried) = &mut self.retried
            && retried.last.is_some()
        {
            retried.history.before_last = Effect::Possible;
        }
        self.end_with_last(StopReason::Deadline)
    }

    /// Ends a call that was not made, since its caller's deadline has passed.
    pub(super) fn end_late(&mut self) -> Result<S::Response, BoxError> {
        let retried = self.retried.get_or_insert_default();
        retried.history.attempts = 0;
        self.dependency().tell_refused(Refusal::Deadline);
        self.end_with_last(StopReason::Deadline)
    }

    /// Ends the call with the last result, or for want of one with a refusal or a timeout.
    pub(super) fn end_with_last(&mut self, reason: StopReason) -> Result<S::Response, BoxError> {
        let history = self.history();
        let last = self.retried.as_mut().and_then(|retried| {
            retried.service = None;
            retried.charge = None;
            retried.place = None;
            retried.last.take()
        });
        self.gave_up(reason, history.last_cause);
        match last {
            Some(last) => {
                let stopped = Some((reason, history.last_cause));
                self.annotate(last, stopped, history.before_last)
            }
            None => {
                let error = self.without_result(reason);
                let stopped = Some((reason, Cause::Timeout));
                self.annotate(Err(error), stopped, history.effect())
            }
        }
    }

    /// Counts a call that ends since its service did not become ready again.
    pub(super) fn not_ready(&mut self) {
        if let Some(retried) = &mut self.retried {
            (retried.place, retried.charge) = (None, None);
        }
        telemetry::call_ended(self.dependency().target(), "not_ready");
    }

    fn gave_up(&self, reason: StopReason, cause: Cause) {
        let (dependency, attempts) = (self.dependency(), self.history().attempts);
        if let Some(nested) = &self.nested {
            nested.note(reason, attempts);
        }
        telemetry::call_ended(dependency.target(), reason.as_str());
        let is_reply = matches!(
            cause,
            Cause::Status(_) | Cause::Grpc(_) | Cause::Code(_) | Cause::Cancelled
        );
        telemetry::stop_reason(
            dependency.target(),
            attempts,
            reason,
            cause,
            is_reply,
            || {
                let (rules, retried) = (dependency.policy().rules(), self.retried.as_ref());
                let labels = self.requests.labels(self.snapshot.as_ref(), rules);
                let kept = retried.and_then(|retried| retried.correlation_id.as_deref());
                telemetry::Labels {
                    correlation_id: labels.correlation_id.or(kept),
                    ..labels
                }
            },
        );
        dependency.happened(&Event::GaveUp {
            dependency: dependency.name(),
            attempts,
            reason,
            cause,
        });
    }

    /// Makes the error of a call that ends without a result.
    fn without_result(&self, reason: StopReason) -> BoxError {
        let refused = |by| self.dependency().refused(by, None).into();
        match reason {
            StopReason::Breaker => refused(Refusal::Breaker),
            StopReason::Budget => refused(Refusal::Budget),
            StopReason::Throttle => refused(Refusal::Throttle),
            StopReason::Deadline if self.history().attempts == 0 => refused(Refusal::Deadline),
            _ => Elapsed {
                whole_call: true,
                limit: self.limits.total,
            }
            .into(),
        }
    }

    /// Adds the outcome to the response, or wraps the error in it.
    fn annotate(
        &mut self,
        result: Result<S::Response, BoxError>,
        stopped: Option<(StopReason, Cause)>,
        effect: Effect,
    ) -> Result<S::Response, BoxError> {
        let (reason, cause) = stopped.unzip();
        let outcome = RetryOutcome::new(self.history().attempts, reason, effect);
        let suppressed = self.retried.as_ref().and_then(|it| it.suppressed);
        let outcome = outcome.suppressed(suppressed);
        let retried = self.retried.as_mut();
        let taken = retried.map(|it| (it.prepare.take(), mem::take(&mut it.failed)));
        let (prepare, failed) = taken.unwrap_or_default();
        let failed = FailedAttempts::new(failed);
        match result {
            Ok(mut response) => {
                let requests = &self.requests;
                requests.annotate(&mut response, outcome, prepare, failed);
                Ok(response)
            }
            Err(error) => {
                let error = RetryError::new(outcome, error).prepare(prepare);
                let error = error.failed(failed);
                Err(error.dependency(self.dependency().name(), cause).into())
            }
        }
    }
}

/// The dependency, the clock and the recorded body, as decisions see them.
struct Surroundings<'a, F> {
    dependency: &'a Arc<Dependency>,
    began: &'a mut Option<Instant>,
    total: Duration,
    /// No attempt went out yet, so the next one is no retry to the dependency.
    is_original: bool,
    /// The cause of the last failure.
    cause: Cause,
    /// It was a rejection for want of capacity.
    throttled: bool,
    replayable: F,
    /// The wait of a retry that the budget refused.
    suppressed: Option<Duration>,
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

/// Returns the end of a call's time, which begins now unless it has begun.
fn deadline(began: &mut Option<Instant>, total: Duration) -> Instant {
    *began.get_or_insert_with(Instant::now) + total
}
