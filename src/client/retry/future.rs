//! The retry loop: one call from its first attempt to its result. Whether there is another attempt
//! is decided in [`decide`](super::decide).

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tower::Service;

use super::{PrepareAttempt, ReplayRequests, call::Call};
use crate::{
    call::{Attempt, StopReason, Verdict},
    classify::Classify,
    client::timer::Timer,
    error::{BoxError, Refused},
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
        pub(super) timer: Timer,
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
        // The caller's deadline has passed: nothing goes out.
        Late,
        // A repeat of a loop above that the budget has nothing for. Boxed, as most are not refused.
        Refused { refused: Box<Refused> },
    }
}

/// The return of an attempt, with its verdict if it was classified.
type Polled<Res> = (Poll<Result<Res, BoxError>>, Option<Verdict>);

impl<S, C, P, H, Req> Future for RetryFuture<S, C, P, H, Req>
where
    S: Service<Req> + Clone,
    S::Error: Into<BoxError>,
    C: Classify<Req, S::Response>,
    P: ReplayRequests<Req, S::Response>,
    H: PrepareAttempt<Req>,
{
    type Output = Result<S::Response, BoxError>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.as_mut().project();
        let StateProj::Calling { future } = this.state.project() else {
            return self.resume(None, cx);
        };
        let mut polled = future.poll(cx);
        let mut verdict = None;
        match &mut polled {
            // A success at once is classified where it is, and moved once.
            Poll::Ready(Ok(response)) => {
                let classified = this.call.classify(Ok(response));
                if classified.is_success() && this.call.retried.is_none() {
                    this.call.succeeded_at_once();
                    return polled.map_err(Into::into);
                }
                verdict = Some(classified);
            }
            // Nothing is moved while the attempt has time.
            Poll::Pending => ready!(this.timer.poll_until(this.call.attempt_limit(), cx)),
            Poll::Ready(Err(_)) => {}
        }
        self.resume(Some((polled.map_err(Into::into), verdict)), cx)
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
    /// returned, with its verdict.
    #[inline(never)]
    fn resume(
        mut self: Pin<&mut Self>,
        polled: Option<Polled<S::Response>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<S::Response, BoxError>> {
        let mut result = ready!(self.as_mut().run(polled, cx));
        self.project().call.settle_repeat(&mut result);
        Poll::Ready(result)
    }

    /// Runs the call on from the state it is in.
    fn run(
        self: Pin<&mut Self>,
        mut polled: Option<Polled<S::Response>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<S::Response, BoxError>> {
        let mut this = self.project();
        let call = this.call;
        loop {
            // The states lead to each other. An attempt that failed leads out of the match.
            let (mut result, verdict) = match this.state.as_mut().project() {
                StateProj::Calling { future } => {
                    let (attempt, verdict) = match polled.take() {
                        Some(polled) => polled,
                        None => (future.poll(cx).map_err(Into::into), None),
                    };
                    let mut result = match attempt {
                        Poll::Ready(result) => result,
                        Poll::Pending => {
                            let limit = call.attempt_limit();
                            ready!(this.timer.poll_until(limit, cx));
                            if limit < call.deadline() && call.is_held() {
                                this.timer.unset();
                                polled = Some((Poll::Pending, None));
                                continue;
                            }
                            this.state.set(State::Waiting);
                            if limit >= call.deadline() {
                                return Poll::Ready(call.end_by_deadline());
                            }
                            Err(call.attempt_elapsed())
                        }
                    };
                    let verdict = verdict.unwrap_or_else(|| call.classify(result.as_mut()));
                    if verdict.is_success() {
                        return Poll::Ready(call.end_with_success(result));
                    }
                    (result, verdict)
                }
                StateProj::Waiting => {
                    ready!(this.timer.poll(cx));
                    if let Some(at) = call.wait_on() {
                        this.timer.set(at);
                        continue;
                    }
                    this.timer.unset();
                    let Some((request, attempt)) = call.next_request() else {
                        return Poll::Ready(call.end_with_last(StopReason::NotReplayable));
                    };
                    let future = Box::pin(call.prepare.prepare(request, attempt));
                    this.state.set(State::Preparing { future, attempt });
                    continue;
                }
                StateProj::Preparing { future, attempt } => {
                    let Poll::Ready(prepared) = future.as_mut().poll(cx) else {
                        ready!(this.timer.poll_until(call.deadline(), cx));
                        return Poll::Ready(call.end_with_last(StopReason::Deadline));
                    };
                    let Some(request) = call.admit_prepared(prepared, *attempt) else {
                        return Poll::Ready(call.end_with_last(StopReason::Prepare));
                    };
                    let request = Some(Box::new(request));
                    call.let_go();
                    this.state.set(State::Readying { request });
                    continue;
                }
                StateProj::Readying { request } => {
                    let Poll::Ready(ready) = call.service().poll_ready(cx) else {
                        ready!(this.timer.poll_until(call.deadline(), cx));
                        return Poll::Ready(call.end_with_last(StopReason::Deadline));
                    };
                    ready
                        .map_err(Into::into)
                        .inspect_err(|_: &BoxError| call.not_ready())?;
                    let Some(mut request) = request.take() else {
                        unreachable!("the future was polled after it was ready");
                    };
                    match call.send_charge() {
                        Ok(()) => {
                            call.refresh(&mut request);
                            let future = call.service().call(*request);
                            this.timer.unset();
                            this.state.set(State::Calling { future });
                            continue;
                        }
                        Err(StopReason::Breaker) => {
                            let mut result = Err(call.refused_by_breaker());
                            let verdict = call.classify(result.as_mut());
                            (result, verdict)
                        }
                        Err(reason) => return Poll::Ready(call.end_with_last(reason)),
                    }
                }
                StateProj::Late => return Poll::Ready(call.end_late()),
                StateProj::Refused { refused } => {
                    return Poll::Ready(Err(Refused::clone(refused).into()));
                }
            };
            call.count_hedge(&mut result);
            match call.decide(&verdict) {
                Ok(at) => {
                    call.keep(result, &verdict);
                    this.state.set(State::Waiting);
                    this.timer.set(at);
                }
                Err(reason) => return Poll::Ready(call.end(result, &verdict, reason)),
            }
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
