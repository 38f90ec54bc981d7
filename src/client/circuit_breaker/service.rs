use std::task::{Context, Poll};

use tower::Service;

use super::CircuitBreakerFuture;
use crate::{
    call::{Attempt, release},
    classify::{Classify, Standard},
    dependency::{ByAuthority, DependencyCache, Locate},
    error::BoxError,
    telemetry,
};

/// The service of a [`CircuitBreakerLayer`](super::CircuitBreakerLayer).
///
/// # Clone
///
/// All state is in the registry, so clones share the breaker.
#[derive(Debug, Clone)]
pub struct CircuitBreaker<S, C = Standard, L = ByAuthority> {
    pub(super) inner: S,
    pub(super) cache: DependencyCache<C, L>,
}

impl<S, C, L, Req> Service<Req> for CircuitBreaker<S, C, L>
where
    S: Service<Req> + Clone,
    S::Error: Into<BoxError>,
    C: Classify<Req, S::Response> + Clone,
    L: Locate<Req>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = CircuitBreakerFuture<S::Future, C, Req>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let (deps, dependency) = self.cache.find(&request);
        let is_retry = || {
            let extensions = deps.classifier.request_extensions(&request);
            extensions.is_some_and(|extensions| extensions.get::<Attempt>().is_some())
        };
        let permit = match dependency.admit(is_retry) {
            Ok(permit) => permit,
            Err(refused) => {
                telemetry::refused(dependency.target(), refused.kind().as_str());
                release(&mut self.inner);
                return CircuitBreakerFuture::refused(refused);
            }
        };
        let classifier = deps.classifier.clone();
        CircuitBreakerFuture::called(self.inner.call(request), permit, classifier)
    }
}
