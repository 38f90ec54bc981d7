use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;

use crate::http::BufferedBody;

pub(super) type Answer<R, E> = Result<Response<BufferedBody<R>>, E>;

pin_project! {
    /// The future of an [`Idempotency`](super::Idempotency) service.
    #[must_use = "futures do nothing unless polled"]
    pub struct IdempotencyFuture<F, R: Body, E> {
        #[pin]
        state: State<F, R, E>,
    }
}

pin_project! {
    #[project = StateProj]
    pub(super) enum State<F, R: Body, E> {
        // None of the layer's business.
        Passed { #[pin] future: F },
        // Refused before its body was read.
        Refused { response: Option<Response<Bytes>> },
        // It has a key.
        Keyed { future: Pin<Box<dyn Future<Output = Answer<R, E>> + Send>> },
    }
}

impl<F, R: Body, E> IdempotencyFuture<F, R, E> {
    pub(super) fn new(state: State<F, R, E>) -> Self {
        Self { state }
    }
}

impl<F, R: Body, E> fmt::Debug for IdempotencyFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Passed { .. } => "passed",
            State::Refused { .. } => "refused",
            State::Keyed { .. } => "keyed",
        };
        f.debug_tuple("IdempotencyFuture").field(&state).finish()
    }
}

impl<F, R, E> Future for IdempotencyFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Body,
{
    type Output = Answer<R, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Passed { future } => future
                .poll(cx)
                .map_ok(|response| response.map(BufferedBody::untouched)),
            StateProj::Refused { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(refusal(response))),
                None => Poll::Pending,
            },
            StateProj::Keyed { future } => future.as_mut().poll(cx),
        }
    }
}

/// A refusal as a reply.
pub(super) fn refusal<R: Body>(response: Response<Bytes>) -> Response<BufferedBody<R>> {
    response.map(BufferedBody::from)
}
