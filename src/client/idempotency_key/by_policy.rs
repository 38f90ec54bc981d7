use std::task::{Context, Poll};

use http::{Method, Request};
use tower::{Layer, Service};

use super::{IdempotencyKeyFuture, IdempotencyKeyLayer, IdempotencyKeyService, PersistKey};
use crate::{
    call::{IdempotencyKey, RetryOverride},
    classify::{Rules, Standard},
    dependency::{ByAuthority, Dependencies, DependencyCache, Locate},
    error::BoxError,
    http::grpc::{is_grpc, is_one_of},
};

/// Stamps idempotency keys by the policies of a registry, in the header that the policy of each
/// dependency names. It is part of [`stacks::client`](crate::stacks::client).
///
/// A key is stamped on each POST and PATCH that is not declared idempotent. Of gRPC calls only those
/// of methods that are declared unary get one: a server that honours keys reads the whole request,
/// which a stream may never end.
#[derive(Debug, Clone)]
#[must_use]
pub struct PolicyKeyLayer<C = Standard, L = ByAuthority, P = ()> {
    deps: Dependencies<C, L>,
    stamp: IdempotencyKeyLayer<P>,
    only_given: bool,
}

impl<C, L> PolicyKeyLayer<C, L> {
    /// Stamps keys by the policies of this registry.
    pub fn new(deps: Dependencies<C, L>) -> Self {
        Self {
            deps,
            stamp: IdempotencyKeyLayer::new(),
            only_given: false,
        }
    }
}

impl<C, L, P> PolicyKeyLayer<C, L, P> {
    /// Stores each key before it is first sent: see [`PersistKey`].
    pub fn with_persist<Q>(self, persist: Q) -> PolicyKeyLayer<C, L, Q> {
        PolicyKeyLayer {
            deps: self.deps,
            stamp: self.stamp.with_persist(persist),
            only_given: self.only_given,
        }
    }

    /// Sends only keys that callers give, and stamps none.
    pub fn only_given(mut self) -> Self {
        self.only_given = true;
        self
    }
}

impl<S, C: Clone, L: Clone, P: Clone> Layer<S> for PolicyKeyLayer<C, L, P> {
    type Service = PolicyKeyService<S, C, L, P>;

    fn layer(&self, inner: S) -> Self::Service {
        PolicyKeyService {
            stamp: self.stamp.layer(inner),
            cache: DependencyCache::new(self.deps.clone()),
            only_given: self.only_given,
        }
    }
}

/// The service of a [`PolicyKeyLayer`].
///
/// # Clone
///
/// Clones share the registry.
#[derive(Debug, Clone)]
pub struct PolicyKeyService<S, C = Standard, L = ByAuthority, P = ()> {
    stamp: IdempotencyKeyService<S, P>,
    cache: DependencyCache<C, L>,
    only_given: bool,
}

impl<S, C, L, P, B> Service<Request<B>> for PolicyKeyService<S, C, L, P>
where
    S: Service<Request<B>> + Clone,
    S::Error: Into<BoxError>,
    L: Locate<Request<B>>,
    P: PersistKey<B>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = IdempotencyKeyFuture<S, P::Future, Request<B>>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.stamp.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline(never)]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        let writes = matches!(*request.method(), Method::POST | Method::PATCH);
        let chosen = || request.extensions().get::<IdempotencyKey>().is_some();
        if !writes && !P::STORES && !chosen() {
            return IdempotencyKeyFuture::called(self.stamp.inner.call(request));
        }
        let (_, dependency) = self.cache.find(&request);
        let rules = dependency.policy().rules();
        let header = &mut self.stamp.settings.header;
        if *header != rules.key_header {
            header.clone_from(&rules.key_header);
        }
        let needed = writes && !self.only_given && needs_key(rules, &request);
        self.stamp.call_with(request, needed)
    }
}

fn needs_key<B>(rules: &Rules, request: &Request<B>) -> bool {
    let may_stream = || is_grpc(request.headers()) && !rules.is_unary(request);
    !is_one_of(&rules.idempotent_methods, request)
        && !may_stream()
        && !RetryOverride::is_idempotent(request.extensions())
}
