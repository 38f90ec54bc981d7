use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower::Service;

use super::{
    IdempotencyBody, IdempotencyFuture,
    future::State,
    keyed::Keyed,
    settings::{Shared, speaks_grpc},
};
use crate::{
    store::IdempotencyStore,
    telemetry::{self, Answered},
};

/// The service of an [`IdempotencyLayer`](super::IdempotencyLayer).
///
/// # Clone
///
/// Clones share the store.
#[derive(Debug)]
pub struct Idempotency<S, St> {
    pub(super) inner: S,
    pub(super) shared: Arc<Shared<St>>,
}

impl<S: Clone, St> Clone for Idempotency<S, St> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S, St, B, R> Service<Request<B>> for Idempotency<S, St>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    St: IdempotencyStore,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Send,
    R: Body + Send + 'static,
    R::Error: Send,
{
    type Response = Response<IdempotencyBody<R>>;
    type Error = S::Error;
    type Future = IdempotencyFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let head = Request::from_parts(parts, ());
        IdempotencyFuture::new(match self.shared.admit(&head) {
            Ok(None) => State::Passed {
                future: self.inner.call(head.map(|()| body)),
            },
            Err(problem) => {
                crate::release(&mut self.inner);
                telemetry::idempotency(Answered::Refused, || self.shared.labels(&head));
                State::Refused {
                    response: Some(problem.response(speaks_grpc(&head))),
                }
            }
            Ok(Some(key)) => {
                // The one that was made ready is the one that is called.
                let spare = self.inner.clone();
                let keyed = Keyed {
                    service: mem::replace(&mut self.inner, spare),
                    shared: Arc::clone(&self.shared),
                    key,
                    head: Box::new(head),
                };
                State::Keyed {
                    future: Box::pin(keyed.answer(body)),
                }
            }
        })
    }
}
