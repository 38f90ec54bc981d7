//! The retry loop: one call from its first attempt to its result. Whether there is another attempt
//! is decided in [`decide`](super::decide).

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::{Arc, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};
use tower::Service;

use super::{
    PrepareAttempt, ReplayRequests,
    decide::{self, Environment, Granted, Limits, Reported},
    history::FailureHistory,
    service::Route,
};
use crate::{
    call::{Attempt, Effect, RetryError, RetryOutcome, StopReason, Verdict},
    classify::Classify,
    dependency::{Charge, Dependency, Hold},
    error::{BoxError, Elapsed},
    policy::CallLimits,
    telemetry,
};

pin_project! {
    /// The future of a [`Retry`](super::Retry) service.
    #[must_use = "futures do nothing unless polled"]
    pub struct RetryFuture<S, C, P, H, Req>
    where
        S: Service<Req>,
        P: ReplayRequests<Req, S::Response>,
        H: PrepareAttempt<Req>,
    {
        pub(super) call: Call<S, C, P, H, Req>,
        #[pin]
        pub(super) state: State<S::Future, H::Future, Req>,
        // The wait of `Waiting`. In other states the time limit, set by the first poll that is not
        // ready, so that a call that is ready at once needs no timer.
        #[pin]
        pub(super) timer: Option<Sleep>,
    }
}

pin_project! {
    #[project = StateProj]
    pub(super) enum State<F, G, Req> {
        // An attempt is out. When it fails, the next one is decided on.
        Calling { #[pin] future: F },
        // A retry was granted and waits for its time. Then its request is rebuilt.
        Waiting,
        // The hook works on the request. Boxed, as only retries need it.
        Preparing { future: Pin<Box<G>>, attempt: Attempt },
        // The service becomes ready. Then the request goes out, if that is still allowed.
        Readying { request: Option<Box<Req>> },
    }
}

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
    pub(super) limits: CallLimits,
    /// The start of the call's time. It is read by the first poll that is not ready, after the
    /// layers below have read theirs: an attempt that runs out of the call's time has then been
    /// out at least as long by their clock.
    pub(super) began: Option<Instant>,
    /// The end of the attempt's time, once that was asked for.
    pub(super) attempt_limit: Option<Instant>,
    pub(super) retried: Option<Box<Retried<S, S::Response>>>,
}

/// The state of a call that is retried. Boxed, so that other calls are small.
pub(super) struct Retried<S, Res> {
    history: FailureHistory,
    /// The service that retries call.
    service: Option<S>,
    /// The next retry, or the one that is out.
    charge: Option<Charge>,
    /// The result of the last attempt, for when the next one brings none.
    last: Option<Result<Res, BoxError>>,
}

impl<S, C, P, H, Req> Future for RetryFuture<S, C, P, H, Req>
where
    S: Service<Req> + Clone,
    S::Error: Into<BoxError>,
    C: Classify<Req, S::Response>,
    P: ReplayRequests<Req, S::Response>,
    H: PrepareAttempt<Req>,
{
    type Output = Result<S::Response, BoxError>;

    /// Polls the attempt, and returns its response in place if it is a success at once: moving a
    /// response costs more than classifying it. Anything else is up to [`resume`](Self::resume).
    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.as_mut().project();
        let mut polled = match this.state.project() {
            StateProj::Calling { future } => future.poll(cx).map_err(Into::into),
            _ => Poll::Pending,
        };
        let mut verdict = None;
        if let Poll::Ready(result) = &mut polled {
            let classified = this.call.classify(result);
            if classified.is_success() && this.call.retried.is_none() {
                return polled;
            }
            verdict = Some(classified);
        }
        self.resume(&mut polled, verdict, cx);
        polled
    }
}

impl<S, C, P, H, Req> RetryFuture<S, C, P, H, Req>
where
    S: Service<Req> + Clone,
    S::Error: Into<BoxError>,
    C: Classify<Req, S::Response>,
    P: ReplayRequests<Req, S::Response>,
    H: PrepareAttempt<Req>,
{
    /// Resumes a call that did not succeed at once. If an attempt is out, `polled` is what it just
    /// returned, with its verdict. It becomes what the call returns.
    #[inline(never)]
    fn resume(
        self: Pin<&mut Self>,
        polled: &mut Poll<Result<S::Response, BoxError>>,
        verdict: Option<Verdict>,
        cx: &mut Context<'_>,
    ) {
        let is_out = matches!(self.state, State::Calling { .. });
        let attempt = mem::replace(polled, Poll::Pending);
        *polled = self.run(is_out.then_some((attempt, verdict)), cx);
    }

    /// Runs the call on from the state it is in.
    fn run(
        self: Pin<&mut Self>,
        mut polled: Option<(Poll<Result<S::Response, BoxError>>, Option<Verdict>)>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<S::Response, BoxError>> {
        let mut this = self.project();
        let call = this.call;
        loop {
            match this.state.as_mut().project() {
                StateProj::Calling { future } => {
                    let (attempt, verdict) = match polled.take() {
                        Some(polled) => polled,
                        None => (future.poll(cx).map_err(Into::into), None),
                    };
                    let mut result = match attempt {
                        Poll::Ready(result) => result,
                        Poll::Pending => {
                            let limit = call.attempt_limit();
                            ready!(poll_until(this.timer.as_mut(), limit, cx));
                            this.state.set(State::Waiting);
                            if limit >= call.deadline() {
                                return Poll::Ready(call.end_by_deadline());
                            }
                            Err(call.attempt_elapsed())
                        }
                    };
                    let verdict = verdict.unwrap_or_else(|| call.classify(&mut result));
                    if verdict.is_success() {
                        return Poll::Ready(call.end_with_success(result));
                    }
                    match call.decide(&verdict) {
                        Ok(at) => {
                            call.keep(result);
                            this.state.set(State::Waiting);
                            this.timer.set(Some(sleep_until(at)));
                        }
                        Err(reason) => return Poll::Ready(call.end(result, &verdict, reason)),
                    }
                }
                StateProj::Waiting => {
                    if let Some(timer) = this.timer.as_mut().as_pin_mut() {
                        ready!(timer.poll(cx));
                    }
                    this.timer.set(None);
                    let Some((request, attempt)) = call.next_request() else {
                        return Poll::Ready(call.end_with_last(StopReason::NotReplayable));
                    };
                    let future = Box::pin(call.prepare.prepare(request, attempt));
                    this.state.set(State::Preparing { future, attempt });
                }
                StateProj::Preparing { future, attempt } => {
                    let Poll::Ready(prepared) = future.as_mut().poll(cx) else {
                        ready!(poll_until(this.timer.as_mut(), call.deadline(), cx));
                        return Poll::Ready(call.end_with_last(StopReason::Deadline));
                    };
                    let Some(request) = call.admit_prepared(prepared, *attempt) else {
                        return Poll::Ready(call.end_with_last(StopReason::Prepare));
                    };
                    let request = Some(Box::new(request));
                    this.state.set(State::Readying { request });
                }
                StateProj::Readying { request } => {
                    let Poll::Ready(ready) = call.service().poll_ready(cx) else {
                        ready!(poll_until(this.timer.as_mut(), call.deadline(), cx));
                        return Poll::Ready(call.end_with_last(StopReason::Deadline));
                    };
                    ready.map_err(Into::into)?;
                    if let Err(reason) = call.send_charge() {
                        return Poll::Ready(call.end_with_last(reason));
                    }
                    let Some(request) = request.take() else {
                        unreachable!("a request that goes out ends the state that holds it");
                    };
                    let future = call.service().call(*request);
                    this.timer.set(None);
                    this.state.set(State::Calling { future });
                }
            }
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

    #[inline]
    fn classify(&self, result: &mut Result<S::Response, BoxError>) -> Verdict {
        self.dependency().classify(&self.classifier, result)
    }

    /// Decides on the attempt after one that failed. Returns when it starts.
    fn decide(&mut self, verdict: &Verdict) -> Result<Instant, StopReason> {
        let charge = self.retried.as_mut().and_then(|it| it.charge.take());
        if decide::is_refusal(verdict) {
            self.retried.get_or_insert_default().history.attempts -= 1;
            if let Some(charge) = charge {
                charge.take_back();
            }
        }
        let history = self.history();
        let limits = Limits {
            max_retries: self.limits.max_retries,
            repeatable: self.repeatable,
            refreshes: self.prepare.refreshes(),
        };
        let (requests, snapshot) = (&self.requests, self.snapshot.as_ref());
        let mut surroundings = Surroundings {
            dependency: &self.route.dependency,
            began: &mut self.began,
            total: self.limits.total,
            replayable: || snapshot.is_some_and(|snapshot| requests.is_complete(snapshot)),
        };
        let Granted {
            at,
            wait,
            backoff,
            charge,
        } = decide::decide(&history, verdict, limits, &mut surroundings)?;
        let retried = self.retried.get_or_insert_default();
        retried.charge = Some(charge);
        retried.history.record(verdict, backoff);
        let dependency = &self.route.dependency;
        telemetry::retry(
            dependency.target(),
            retried.history.retries,
            limits.max_retries,
            wait,
            verdict.cause,
            || requests.labels(snapshot, dependency.policy().rules()),
        );
        Ok(at)
    }

    /// Keeps the result of a failed attempt, for when the next one brings none.
    fn keep(&mut self, result: Result<S::Response, BoxError>) {
        self.retried.get_or_insert_default().last = Some(result);
    }

    /// Rebuilds the request for the next attempt.
    fn next_request(&mut self) -> Option<(Req, Attempt)> {
        let deadline = self.deadline();
        let FailureHistory { retries, next, .. } = self.history();
        let attempt = Attempt::charged(retries, deadline, next);
        let last = retries >= self.limits.max_retries;
        let rules = self.route.dependency.policy().rules();
        let request = self
            .requests
            .rebuild(&mut self.snapshot, attempt, last, rules)?;
        Some((request, attempt))
    }

    /// Returns the request that the hook prepared, unless it failed or did harm.
    fn admit_prepared(&self, prepared: Result<Req, BoxError>, attempt: Attempt) -> Option<Req> {
        let rules = self.dependency().policy().rules();
        let admit = |request| {
            let snapshot = self.snapshot.as_ref();
            self.requests
                .admit_prepared(snapshot, request, attempt, rules)
        };
        let why = match prepared.map(admit) {
            Ok(Some(request)) => return Some(request),
            Ok(None) => "the hook took away credentials or the idempotency key",
            Err(_) => "the hook failed",
        };
        telemetry::prepare_failed(self.dependency().target(), why);
        None
    }

    /// Returns the service that retries call, which is not the one that the caller readied.
    fn service(&mut self) -> &mut S {
        let spare = &self.route.spare;
        let retried = self.retried.get_or_insert_default();
        retried.service.get_or_insert_with(|| {
            let spare = spare.lock().unwrap_or_else(PoisonError::into_inner);
            spare.clone()
        })
    }

    /// Commits the charge of an attempt that goes out now, if it still may.
    fn send_charge(&mut self) -> Result<(), StopReason> {
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
        retried.history.attempts += 1;
        self.attempt_limit = None;
        Ok(())
    }

    fn history(&self) -> FailureHistory {
        let retried = self.retried.as_ref();
        retried.map_or_else(FailureHistory::default, |retried| retried.history)
    }

    fn deadline(&mut self) -> Instant {
        deadline(&mut self.began, self.limits.total)
    }

    /// Returns the end of the attempt's time, or of the call's if that comes first.
    fn attempt_limit(&mut self) -> Instant {
        if let Some(limit) = self.attempt_limit {
            return limit;
        }
        let deadline = self.deadline();
        let dependency = &self.route.dependency;
        // The time that a layer below holds the call back is not the attempt's.
        let limit = dependency
            .policy()
            .attempt_timeout()
            .map_or(deadline, |timeout| {
                deadline.min(Instant::now() + dependency.longest_hold() + timeout)
            });
        *self.attempt_limit.insert(limit)
    }

    fn attempt_elapsed(&self) -> BoxError {
        let limit = self.dependency().policy().attempt_timeout();
        let elapsed = Elapsed {
            whole_call: false,
            limit: limit.unwrap_or_default(),
        };
        elapsed.into()
    }

    fn end_with_success(
        &mut self,
        result: Result<S::Response, BoxError>,
    ) -> Result<S::Response, BoxError> {
        match self.history() {
            FailureHistory { retries: 0, .. } => result,
            history => self.annotate(result, None, history.effect()),
        }
    }

    /// Ends the call with the result of the attempt that failed last, or of an earlier one.
    fn end(
        &mut self,
        result: Result<S::Response, BoxError>,
        verdict: &Verdict,
        reason: StopReason,
    ) -> Result<S::Response, BoxError> {
        let history = self.history();
        let earlier = self
            .retried
            .as_mut()
            .and_then(|retried| retried.last.take());
        let (reported, effect) = decide::report(&history, verdict, earlier.is_some());
        let result = match (reported, earlier) {
            (Reported::Earlier, Some(earlier)) => earlier,
            _ => result,
        };
        let target = self.dependency().target();
        telemetry::stop_reason(target, history.attempts, reason, verdict.cause);
        self.annotate(result, Some(reason), effect)
    }

    /// Ends the call while an attempt is out, which may still have an effect.
    fn end_by_deadline(&mut self) -> Result<S::Response, BoxError> {
        if let Some(retried) = &mut self.retried
            && retried.last.is_some()
        {
            retried.history.before_last = Effect::Possible;
        }
        self.end_with_last(StopReason::Deadline)
    }

    /// Ends the call with the last result, or for want of one with a timeout.
    fn end_with_last(&mut self, reason: StopReason) -> Result<S::Response, BoxError> {
        let history = self.history();
        let last = self.retried.as_mut().and_then(|retried| {
            retried.service = None;
            retried.charge = None;
            retried.last.take()
        });
        let target = self.dependency().target();
        telemetry::stop_reason(target, history.attempts, reason, history.last_cause);
        let elapsed = Elapsed {
            whole_call: true,
            limit: self.limits.total,
        };
        let last = last.unwrap_or_else(|| Err(elapsed.into()));
        self.annotate(last, Some(reason), history.before_last)
    }

    /// Adds the outcome to the response, or wraps the error in it.
    fn annotate(
        &self,
        result: Result<S::Response, BoxError>,
        reason: Option<StopReason>,
        effect: Effect,
    ) -> Result<S::Response, BoxError> {
        let outcome = RetryOutcome::new(self.history().attempts, reason, effect);
        match result {
            Ok(mut response) => {
                self.requests.annotate(&mut response, outcome);
                Ok(response)
            }
            Err(error) => Err(RetryError::new(outcome, error).into()),
        }
    }
}

/// The dependency, the clock and the recorded body, as decisions see them.
struct Surroundings<'a, F> {
    dependency: &'a Arc<Dependency>,
    began: &'a mut Option<Instant>,
    total: Duration,
    replayable: F,
}

impl<F: Fn() -> bool> Environment for Surroundings<'_, F> {
    type Charge = Charge;

    fn backoff(&self, retries: u32, previous: Duration) -> Duration {
        let backoff = self.dependency.policy().backoff();
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

    fn charge(&self) -> Result<Charge, StopReason> {
        let charge = self.dependency.charge();
        charge.map_err(|refused| refused.kind().into())
    }
}

/// Returns the end of a call's time, which begins now unless it has begun.
fn deadline(began: &mut Option<Instant>, total: Duration) -> Instant {
    *began.get_or_insert_with(Instant::now) + total
}

/// Polls the timer, which is set by the first poll.
fn poll_until(
    mut timer: Pin<&mut Option<Sleep>>,
    limit: Instant,
    cx: &mut Context<'_>,
) -> Poll<()> {
    if timer.is_none() {
        timer.set(Some(sleep_until(limit)));
    }
    match timer.as_pin_mut() {
        Some(timer) => timer.poll(cx),
        None => unreachable!("it was set above"),
    }
}

impl<S, Res> Default for Retried<S, Res> {
    fn default() -> Self {
        Self {
            history: FailureHistory::default(),
            service: None,
            charge: None,
            last: None,
        }
    }
}

impl<S, C, P, H, Req> fmt::Debug for RetryFuture<S, C, P, H, Req>
where
    S: Service<Req>,
    P: ReplayRequests<Req, S::Response>,
    H: PrepareAttempt<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let retried = self.call.retried.as_ref();
        f.debug_struct("RetryFuture")
            .field("dependency", &self.call.route.dependency.name())
            .field(
                "retries",
                &retried.map_or(0, |retried| retried.history.retries),
            )
            .finish_non_exhaustive()
    }
}
