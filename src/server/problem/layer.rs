use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use super::ProblemBody;
use crate::{
    call::{
        Cause, Effect, RetryOutcome,
        caller::{GaveUp, is_final},
    },
    classify::{Rules, network},
    error::{BoxError, Refused},
    http::{grpc::is_grpc, problem},
};

/// Turns errors into problem responses. See the [module docs](super).
#[derive(Debug, Clone, Copy, Default)]
#[must_use]
pub struct ProblemLayer(());

impl ProblemLayer {
    /// Makes the layer.
    pub fn new() -> Self {
        Self(())
    }
}

impl<S> Layer<S> for ProblemLayer {
    type Service = Problem<S>;

    fn layer(&self, inner: S) -> Problem<S> {
        Problem {
            inner,
            failed: None,
        }
    }
}

/// The service of a [`ProblemLayer`].
///
/// # Clone
///
/// A clone is not ready, and has not failed to become so.
#[derive(Debug)]
pub struct Problem<S> {
    inner: S,
    /// The answer to the next call, after the service failed to become ready for it.
    failed: Option<problem::Problem>,
}

/// Leaves the failure behind: callers that take the readied service and go on with its clone would
/// get the answer for ever.
impl<S: Clone> Clone for Problem<S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            failed: None,
        }
    }
}

impl<S, B, R> Service<Request<B>> for Problem<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    R: Body,
{
    type Response = Response<ProblemBody<R>>;
    type Error = Infallible;
    type Future = ProblemFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if self.failed.is_none() {
            let ready = ready!(self.inner.poll_ready(cx));
            self.failed = ready.err().map(|error| problem_of(&error.into()).0);
        }
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        let grpc = is_grpc(request.headers());
        let state = match self.failed.take() {
            None => State::Called {
                future: self.inner.call(request),
            },
            Some(problem) => State::Failed { problem },
        };
        ProblemFuture { state, grpc }
    }
}

pin_project! {
    /// The future of a [`Problem`] service.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct ProblemFuture<F> {
        #[pin]
        state: State<F>,
        grpc: bool,
    }
}

pin_project! {
    #[project = StateProj]
    #[derive(Debug)]
    enum State<F> {
        Called { #[pin] future: F },
        // The service failed to become ready.
        Failed { problem: problem::Problem },
    }
}

impl<F, R, E> Future for ProblemFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Response<ProblemBody<R>>, Infallible>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (problem, effect, gave_up) = match this.state.project() {
            StateProj::Called { future } => match ready!(future.poll(cx)) {
                Ok(response) => return Poll::Ready(Ok(response.map(ProblemBody::reply))),
                Err(error) => {
                    let error = error.into();
                    let (problem, effect) = problem_of(&error);
                    (problem, effect, gave_up(&error))
                }
            },
            StateProj::Failed { problem } => (problem.clone(), Some(Effect::None), false),
        };
        let mut response = problem.response(*this.grpc);
        if let Some(effect) = effect {
            response.extensions_mut().insert(effect);
        }
        if gave_up {
            response.extensions_mut().insert(GaveUp);
        }
        Poll::Ready(Ok(response.map(Into::into)))
    }
}

/// Returns whether an error says that a retry is of no use.
fn gave_up(error: &BoxError) -> bool {
    let by_loop = RetryOutcome::of_error(&**error).and_then(|outcome| {
        let reason = outcome.stop_reason()?;
        Some(is_final(reason, outcome.attempts()))
    });
    by_loop.unwrap_or_else(|| Refused::find(&**error).is_some())
}

/// Returns the answer to a failed call, and the effect that the call may have had where its status
/// does not tell.
fn problem_of(error: &BoxError) -> (problem::Problem, Option<Effect>) {
    let verdict = network::classify(&Rules::standard(), &**error);
    let effect = verdict.never_sent.then_some(verdict.effect);
    match (Refused::find(&**error), verdict.cause) {
        (Some(refused), _) => {
            let problem = problem::Problem::REFUSED
                .detail(refused.to_string())
                .retry_after(refused.retry_after());
            // Refused, after an attempt that was not.
            (problem, effect.or(Some(Effect::Unproven)))
        }
        (None, Cause::Timeout) => (problem::Problem::LATE, effect),
        (None, _) => (problem::Problem::FAILED, effect),
    }
}
