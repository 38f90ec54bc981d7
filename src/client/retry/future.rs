use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};
use tower::Service;

use super::{
    PrepareAttempt, Protocol,
    call::{Call, Decision},
};
use crate::call::{Attempt, StopReason};
use crate::{classify::Classify, dependency::time_out, error::BoxError};

pin_project! {
    /// The future of a [`Retry`](super::Retry) service.
    #[must_use = "futures do nothing unless polled"]
    pub struct RetryFuture<S, C, P, H, Req>
    where
        S: Service<Req>,
        P: Protocol<Req, S::Response>,
        H: PrepareAttempt<Req>,
    {
        pub(super) call: Call<S, C, P, H, P::Snapshot, S::Response>,
        #[pin]
        pub(super) state: State<S::Future, H::Future, Req>,
        // The wait of `Waiting`, or else the time limit, which is set only when something is
        // not ready at once.
        #[pin]
        pub(super) timer: Option<Sleep>,
    }
}

pin_project! {
    #[project = StateProj]
    pub(super) enum State<F, G, Req> {
        // An attempt is out.
        Calling { #[pin] future: F },
        // Between two attempts.
        Waiting,
        // The hook works on the request of the next attempt. What only a retry needs is boxed, so
        // that a call without one is small.
        Preparing { future: Pin<Box<G>>, attempt: Attempt },
        // The service is made ready for the next attempt.
        Readying { request: Option<Box<Req>> },
    }
}

impl<S, C, P, H, Req> Future for RetryFuture<S, C, P, H, Req>
where
    S: Service<Req> + Clone,
    S::Error: Into<BoxError>,
    C: Classify<Req, S::Response>,
    P: Protocol<Req, S::Response>,
    H: PrepareAttempt<Req>,
{
    type Output = Result<S::Response, BoxError>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.as_mut().project();
        // Looked at where it lies: to move a response costs more than to judge it.
        let mut polled = match this.state.project() {
            StateProj::Calling { future } => future.poll(cx).map_err(Into::into),
            _ => Poll::Pending,
        };
        if !this.call.is_first_success(&polled) {
            self.go_on(&mut polled, cx);
        }
        polled
    }
}

impl<S, C, P, H, Req> RetryFuture<S, C, P, H, Req>
where
    S: Service<Req> + Clone,
    S::Error: Into<BoxError>,
    C: Classify<Req, S::Response>,
    P: Protocol<Req, S::Response>,
    H: PrepareAttempt<Req>,
{
    /// What there is to do when there is no success yet. `polled` is what became of the attempt
    /// that is out, if one is, and then of the call.
    #[inline(never)]
    fn go_on(
        mut self: Pin<&mut Self>,
        polled: &mut Poll<Result<S::Response, BoxError>>,
        cx: &mut Context<'_>,
    ) {
        let this = self.as_mut().project();
        let attempt = match (this.state.project(), &*polled) {
            (StateProj::Calling { .. }, Poll::Pending) => {
                if poll_limit(this.timer, this.call.attempt_until(), cx).is_pending() {
                    return;
                }
                Some(Poll::Pending)
            }
            (StateProj::Calling { .. }, _) => Some(mem::replace(polled, Poll::Pending)),
            _ => None,
        };
        *polled = self.try_again(attempt, cx);
    }

    /// Goes on from an attempt, or from where it stands between two.
    #[cold]
    fn try_again(
        self: Pin<&mut Self>,
        mut attempt: Option<Poll<Result<S::Response, BoxError>>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<S::Response, BoxError>> {
        let mut this = self.project();
        let call = this.call;
        loop {
            match this.state.as_mut().project() {
                StateProj::Calling { future } => {
                    let polled = attempt.take();
                    let result = match polled.unwrap_or_else(|| future.poll(cx).map_err(Into::into))
                    {
                        Poll::Ready(result) => result,
                        Poll::Pending => {
                            let limit = call.attempt_until();
                            ready!(poll_limit(this.timer.as_mut(), limit, cx));
                            time_out(|| this.state.set(State::Waiting));
                            if limit >= call.deadline() {
                                return Poll::Ready(call.abandon());
                            }
                            Err(call.attempt_elapsed())
                        }
                    };
                    match call.decide(result) {
                        Decision::Return(result) => return Poll::Ready(result),
                        Decision::Wait(until) => {
                            this.state.set(State::Waiting);
                            this.timer.set(Some(sleep_until(until)));
                        }
                    }
                }
                StateProj::Waiting => {
                    if let Some(timer) = this.timer.as_mut().as_pin_mut() {
                        ready!(timer.poll(cx));
                    }
                    this.timer.set(None);
                    let Some((request, attempt)) = call.next_request() else {
                        return Poll::Ready(call.return_last(StopReason::NotReplayable));
                    };
                    let future = Box::pin(call.prepare.prepare(request, attempt));
                    this.state.set(State::Preparing { future, attempt });
                }
                StateProj::Preparing { future, attempt } => {
                    let prepared = match future.as_mut().poll(cx) {
                        Poll::Ready(prepared) => prepared,
                        Poll::Pending => {
                            ready!(poll_limit(this.timer.as_mut(), call.deadline(), cx));
                            return Poll::Ready(call.return_last(StopReason::Deadline));
                        }
                    };
                    match call.check_prepared(prepared, *attempt) {
                        Some(request) => {
                            let request = Some(Box::new(request));
                            this.state.set(State::Readying { request });
                        }
                        None => return Poll::Ready(call.return_last(StopReason::Prepare)),
                    }
                }
                StateProj::Readying { request } => {
                    match call.service().poll_ready(cx) {
                        Poll::Ready(ready) => ready.map_err(Into::into)?,
                        Poll::Pending => {
                            ready!(poll_limit(this.timer.as_mut(), call.deadline(), cx));
                            return Poll::Ready(call.return_last(StopReason::Deadline));
                        }
                    }
                    let Some(request) = request.take() else {
                        return Poll::Ready(call.return_last(StopReason::NotReplayable));
                    };
                    if let Err(reason) = call.begin_attempt() {
                        return Poll::Ready(call.return_last(reason));
                    }
                    let future = call.service().call(*request);
                    this.timer.set(None);
                    this.state.set(State::Calling { future });
                }
            }
        }
    }
}

/// Ready when the limit has passed. The timer is made on the first look, so that a call that is
/// ready at once needs none.
fn poll_limit(
    mut timer: Pin<&mut Option<Sleep>>,
    limit: Instant,
    cx: &mut Context<'_>,
) -> Poll<()> {
    if timer.is_none() {
        timer.set(Some(sleep_until(limit)));
    }
    match timer.as_pin_mut() {
        Some(timer) => timer.poll(cx),
        None => Poll::Pending,
    }
}

impl<S, C, P, H, Req> fmt::Debug for RetryFuture<S, C, P, H, Req>
where
    S: Service<Req>,
    P: Protocol<Req, S::Response>,
    H: PrepareAttempt<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryFuture")
            .field("dependency", &self.call.route.dependency.name())
            .field("retries", &self.call.retries())
            .finish_non_exhaustive()
    }
}
