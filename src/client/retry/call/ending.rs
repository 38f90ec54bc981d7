//! The ends of a call.

use std::mem;

use tower::Service;

use super::{
    super::{
        PrepareAttempt, ReplayRequests,
        decide::{self, Reported},
        history::FailureHistory,
    },
    Call,
};
use crate::{
    call::{Cause, Effect, FailedAttempts, RetryError, RetryOutcome, StopReason, Verdict},
    classify::Classify,
    dependency::Event,
    error::{BoxError, Elapsed, Refusal},
    telemetry,
};

impl<S, C, P, H, Req> Call<S, C, P, H, Req>
where
    S: Service<Req> + Clone,
    C: Classify<Req, S::Response>,
    P: ReplayRequests<Req, S::Response>,
    H: PrepareAttempt<Req>,
{
    /// Makes the error of an attempt whose time is over. If hedges are counted, one that may have gone
    /// out beside it counts: it was called off with the attempt, and can't say so.
    pub(in super::super) fn attempt_elapsed(&mut self) -> BoxError {
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

    pub(in super::super) fn end_with_success(
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
    pub(in super::super) fn end(
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
    pub(in super::super) fn end_by_deadline(&mut self) -> Result<S::Response, BoxError> {
        if let Some(retried) = &mut self.retried
            && retried.last.is_some()
        {
            retried.history.before_last = Effect::Possible;
        }
        self.end_with_last(StopReason::Deadline)
    }

    /// Ends a call that was not made, since its caller's deadline has passed.
    pub(in super::super) fn end_late(&mut self) -> Result<S::Response, BoxError> {
        let retried = self.retried.get_or_insert_default();
        retried.history.attempts = 0;
        self.dependency().tell_refused(Refusal::Deadline);
        self.end_with_last(StopReason::Deadline)
    }

    /// Ends the call with the last result, or for want of one with a refusal or a timeout.
    pub(in super::super) fn end_with_last(
        &mut self,
        reason: StopReason,
    ) -> Result<S::Response, BoxError> {
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
    pub(in super::super) fn not_ready(&mut self) {
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
