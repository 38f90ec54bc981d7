use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower::Service;

use super::{DeadlineFuture, layer::Settings};
use crate::{
    call::{CallerContext, caller::MaybeInScope, release},
    http::grpc::is_grpc,
    server::problem::ProblemBody,
};

/// The service of a [`DeadlineLayer`](super::DeadlineLayer).
///
/// # Clone
///
/// It has no state, so a clone is the same service.
#[derive(Debug, Clone)]
pub struct Deadline<S> {
    pub(super) inner: S,
    pub(super) settings: Settings,
}

impl<S, B, R> Service<Request<B>> for Deadline<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    type Response = Response<ProblemBody<R>>;
    type Error = S::Error;
    type Future = DeadlineFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let Self { inner, settings } = self;
        let grpc = is_grpc(request.headers());
        let caller = settings.trust.read(request.headers_mut(), settings.default);
        let mut caller = caller.and(request.extensions().get());
        if caller.remaining().is_some_and(|left| left.is_zero()) {
            release(inner);
            return DeadlineFuture::late(grpc);
        }
        if !settings.chain_stop {
            caller = caller.retry_repeats();
        }
        let nested = settings.answers_finally().then(Arc::default);
        if let Some(nested) = &nested {
            caller = caller.noting(Arc::clone(nested));
        }
        let caller = (!caller.is_empty()).then_some(caller);
        if let Some(caller) = &caller {
            request.extensions_mut().insert(caller.clone());
        }
        let future = match settings.task_local {
            true => {
                let future = CallerContext::sync_scope(caller.clone(), || inner.call(request));
                let future = CallerContext::carry(caller, future);
                MaybeInScope::Scoped { future }
            }
            false => MaybeInScope::Plain {
                future: inner.call(request),
            },
        };
        DeadlineFuture::called(future, nested, grpc)
    }
}
