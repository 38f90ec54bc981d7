use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::Request;
use tower::Service;

use super::{PeekFuture, PeekResponse};
use crate::{
    call::RetryOverride,
    classify::Standard,
    client::located::CallLocated,
    dependency::{ByAuthority, Dependency, DependencyCache, Locate},
    error::BoxError,
    policy::{CallLimits, Policy, Profile},
};

/// The service of a [`PeekLayer`](super::PeekLayer).
///
/// # Clone
///
/// There is no state.
#[derive(Debug, Clone)]
pub struct Peek<S, C = Standard, L = ByAuthority> {
    pub(super) inner: S,
    pub(super) cache: DependencyCache<C, L>,
}

impl<S, C, L, B> Service<Request<B>> for Peek<S, C, L>
where
    S: Service<Request<B>>,
    S::Response: PeekResponse,
    S::Error: Into<BoxError>,
    L: Locate<Request<B>>,
{
    type Response = <S::Response as PeekResponse>::Peeked;
    type Error = BoxError;
    type Future = PeekFuture<S::Future, S::Response>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline(always)]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        let dependency = Arc::clone(self.cache.find(&request).1);
        self.call_to(dependency, request)
    }
}

impl<S, C, L, B> CallLocated<Request<B>> for Peek<S, C, L>
where
    S: Service<Request<B>>,
    S::Response: PeekResponse,
    S::Error: Into<BoxError>,
    L: Locate<Request<B>>,
{
    #[inline(always)]
    fn call_located(&mut self, request: Request<B>, dependency: &Arc<Dependency>) -> Self::Future {
        let dependency = Arc::clone(dependency);
        // A request that is not looked at is moved once less.
        match knows_unary(dependency.policy()) {
            false => PeekFuture::new(self.inner.call(request), dependency, false),
            true => self.call_to(dependency, request),
        }
    }
}

impl<S, C, L> Peek<S, C, L> {
    /// Inlined, so that a future is made where it stays.
    #[inline(always)]
    fn call_to<B>(
        &mut self,
        dependency: Arc<Dependency>,
        request: Request<B>,
    ) -> PeekFuture<S::Future, S::Response>
    where
        S: Service<Request<B>>,
        S::Response: PeekResponse,
    {
        let unary = is_unary(dependency.policy(), &request);
        PeekFuture::new(self.inner.call(request), dependency, unary)
    }
}

/// Returns whether the policy has calls whose reply is one message.
#[inline]
fn knows_unary(policy: &Policy) -> bool {
    !policy.rules().unary_methods.is_empty() || policy.profile() == Profile::GrpcUnary
}

/// Returns whether the reply is one message, so that waiting for its status delays no stream: of the
/// methods that are declared so, or, under the profile for unary calls, of all. A call that is not
/// retried may stream all the same.
#[inline(always)]
fn is_unary<B>(policy: &Policy, request: &Request<B>) -> bool {
    let rules = policy.rules();
    if !rules.unary_methods.is_empty() {
        return rules.is_unary(request);
    }
    let off = || {
        let overrides = request.extensions().get::<RetryOverride>();
        CallLimits::of(policy, overrides).max_retries == 0
    };
    policy.profile() == Profile::GrpcUnary && !off()
}
