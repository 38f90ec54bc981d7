use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use http_body::Body;
use tower::Service;

use super::{
    IdempotencyFuture, future::AnswerFuture, keyed_request::KeyedRequest, settings::LayerState,
};
use crate::{
    http::{BufferedBody, RequestBody},
    server::dialect::{Admission, Dialect, HttpDialect},
    store::IdempotencyStore,
    telemetry::{self, Answered},
};

/// The service of an [`IdempotencyLayer`](super::IdempotencyLayer).
///
/// # Clone
///
/// Clones share the store.
#[derive(Debug)]
pub struct Idempotency<S, St, D = HttpDialect> {
    pub(super) inner: S,
    pub(super) state: Arc<LayerState<St, D>>,
}

impl<S: Clone, St, D> Clone for Idempotency<S, St, D> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            state: Arc::clone(&self.state),
        }
    }
}

impl<S, St, D, B, R> Service<Request<B>> for Idempotency<S, St, D>
where
    S: Service<Request<B::Rebuilt>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    St: IdempotencyStore,
    D: Dialect,
    B: RequestBody + Send + 'static,
    B::Data: Send,
    B::Error: Send,
    B::Rebuilt: Send,
    R: Body + Send + 'static,
    R::Error: Send,
{
    type Response = Response<BufferedBody<R>>;
    type Error = S::Error;
    type Future = IdempotencyFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let head = Request::from_parts(parts, ());
        IdempotencyFuture::new(
            match self.state.dialect.admit(self.state.context(), &head) {
                Admission::Passed => AnswerFuture::Passed {
                    future: self.inner.call(head.map(|()| body.untouched())),
                },
                Admission::Rejected(response) => {
                    crate::call::release(&mut self.inner);
                    telemetry::idempotency(Answered::Refused, || self.state.labels(&head, None));
                    AnswerFuture::Rejected {
                        response: Some(response),
                    }
                }
                Admission::Admitted(asked) => {
                    let keyed = KeyedRequest {
                        service: crate::call::take_ready(&mut self.inner),
                        state: Arc::clone(&self.state),
                        asked,
                        head: Box::new(head),
                    };
                    AnswerFuture::Stored {
                        future: Box::pin(keyed.answer(body)),
                    }
                }
            },
        )
    }
}
