use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{HeaderValue, Response};
use pin_project_lite::pin_project;

use crate::{
    call::{
        Effect, RetryOutcome,
        caller::{GaveUp, MaybeInScope, NestedFailure, is_final},
    },
    classify::Rules,
    http::{GrpcCode, grpc::PUSHBACK, problem::Problem},
    server::problem::ProblemBody,
};

pin_project! {
    /// The future of a [`Deadline`](super::Deadline) service.
    #[must_use = "futures do nothing unless polled"]
    pub struct DeadlineFuture<F> {
        #[pin]
        state: State<F>,
        grpc: bool,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F> {
        // The handler runs, in the scope of its caller unless that is for the request alone.
        Called { #[pin] future: MaybeInScope<F>, nested: Option<Arc<NestedFailure>> },
        // The caller's deadline had passed.
        Late,
    }
}

impl<F> DeadlineFuture<F> {
    pub(super) fn called(
        future: MaybeInScope<F>,
        nested: Option<Arc<NestedFailure>>,
        grpc: bool,
    ) -> Self {
        let state = State::Called { future, nested };
        Self { state, grpc }
    }

    pub(super) fn late(grpc: bool) -> Self {
        let state = State::Late;
        Self { state, grpc }
    }
}

impl<F, R, E> Future for DeadlineFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<ProblemBody<R>>, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match this.state.project() {
            StateProj::Called { future, nested } => {
                let mut response = ready!(future.poll(cx))?;
                if let Some(nested) = nested
                    && (nested.is_noted() || gave_up(&response))
                {
                    forbid_retry(&mut response);
                }
                Poll::Ready(Ok(response.map(ProblemBody::reply)))
            }
            StateProj::Late => {
                let mut response = Problem::DEADLINE
                    .response(*this.grpc)
                    .map(ProblemBody::from);
                response.extensions_mut().insert(Effect::None);
                Poll::Ready(Ok(response))
            }
        }
    }
}

/// Returns whether a response is what a call ended with that is not worth a retry, as in a proxy.
fn gave_up<R>(response: &Response<R>) -> bool {
    let extensions = response.extensions();
    if extensions.is_empty() {
        return false;
    }
    let outcome = RetryOutcome::of(response);
    let reason = outcome.and_then(|it| Some((it.stop_reason()?, it.attempts())));
    reason.is_some_and(|(reason, attempts)| is_final(reason, attempts))
        || extensions.get::<GaveUp>().is_some()
}

/// Tells the caller not to repeat a request that failed in a way that it would repeat.
#[cold]
fn forbid_retry<R>(response: &mut Response<R>) {
    let status = response.status();
    if Rules::allows_status(status) {
        let stop = HeaderValue::from_static("false");
        response.headers_mut().insert("x-should-retry", stop);
    } else if GrpcCode::from_headers(response.headers()).is_some_and(Rules::allows_grpc) {
        let stop = HeaderValue::from_static("-1");
        response.headers_mut().insert(PUSHBACK, stop);
    }
}

opaque_debug! { DeadlineFuture<F> }
