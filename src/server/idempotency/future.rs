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

/// The reply to a request, or the error of the inner service.
pub(super) type ReplyResult<R, E> = Result<Response<BufferedBody<R>>, E>;

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
        // Not the layer's.
        Passed { #[pin] future: F },
        // Rejected before its body was read.
        Rejected { response: Option<Response<Bytes>> },
        // It has a key.
        Keyed { future: Pin<Box<dyn Future<Output = ReplyResult<R, E>> + Send>> },
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
            State::Rejected { .. } => "rejected",
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
    type Output = ReplyResult<R, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Passed { future } => future
                .poll(cx)
                .map_ok(|response| response.map(BufferedBody::new)),
            StateProj::Rejected { response } => {
                let Some(response) = response.take() else {
                    unreachable!("polled after it was ready");
                };
                Poll::Ready(Ok(response.map(BufferedBody::from)))
            }
            StateProj::Keyed { future } => future.as_mut().poll(cx),
        }
    }
}
