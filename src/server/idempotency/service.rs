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
    Dialect, Http, IdempotencyFuture, dialect::Met, future::State, keyed::Keyed, settings::Shared,
};
use crate::http::BufferedBody;
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
pub struct Idempotency<S, St, D = Http> {
    pub(super) inner: S,
    pub(super) shared: Arc<Shared<St, D>>,
}

impl<S: Clone, St, D> Clone for Idempotency<S, St, D> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S, St, D, B, R> Service<Request<B>> for Idempotency<S, St, D>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    St: IdempotencyStore,
    D: Dialect,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Send,
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
            match self.shared.dialect.meet(self.shared.common(), &head) {
                Met::Other => State::Passed {
                    future: self.inner.call(head.map(|()| body)),
                },
                Met::Refused(response) => {
                    crate::call::release(&mut self.inner);
                    telemetry::idempotency(Answered::Refused, || self.shared.labels(&head, None));
                    State::Refused {
                        response: Some(response),
                    }
                }
                Met::Asked(asked) => {
                    // The one that was made ready is the one that is called.
                    let spare = self.inner.clone();
                    let keyed = Keyed {
                        service: mem::replace(&mut self.inner, spare),
                        shared: Arc::clone(&self.shared),
                        asked,
                        head: Box::new(head),
                    };
                    State::Keyed {
                        future: Box::pin(keyed.answer(body)),
                    }
                }
            },
        )
    }
}
