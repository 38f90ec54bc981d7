use std::{
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
pub(crate) type ReplyResult<R, E> = Result<Response<BufferedBody<R>>, E>;

pin_project! {
    /// The future of an [`Idempotency`](super::Idempotency) service.
    #[must_use = "futures do nothing unless polled"]
    pub struct IdempotencyFuture<F, R: Body, E> {
        #[pin]
        state: AnswerFuture<F, R, E>,
    }
}

pin_project! {
    /// The future of a layer that passes requests on, or answers them by what it stores.
    #[project = AnswerProj]
    pub(crate) enum AnswerFuture<F, R: Body, E> {
        // Not the layer's.
        Passed { #[pin] future: F },
        // Rejected before its body was read.
        Rejected { response: Option<Response<Bytes>> },
        // It has a key, or is journaled.
        Stored { future: Pin<Box<dyn Future<Output = ReplyResult<R, E>> + Send>> },
    }
}

impl<F, R: Body, E> IdempotencyFuture<F, R, E> {
    pub(super) fn new(state: AnswerFuture<F, R, E>) -> Self {
        Self { state }
    }
}

opaque_debug! { IdempotencyFuture<F, R: Body, E> }

impl<F, R, E> Future for IdempotencyFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Body,
{
    type Output = ReplyResult<R, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().state.poll(cx)
    }
}

impl<F, R, E> Future for AnswerFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Body,
{
    type Output = ReplyResult<R, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            AnswerProj::Passed { future } => future
                .poll(cx)
                .map_ok(|response| response.map(BufferedBody::new)),
            AnswerProj::Rejected { response } => {
                let Some(response) = response.take() else {
                    unreachable!("polled after it was ready");
                };
                Poll::Ready(Ok(response.map(BufferedBody::from)))
            }
            AnswerProj::Stored { future } => future.as_mut().poll(cx),
        }
    }
}
