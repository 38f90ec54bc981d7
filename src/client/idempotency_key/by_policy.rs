use std::task::{Context, Poll};

use http::{Method, Request};
use tower::{Layer, Service};

use super::{IdempotencyKeyFuture, IdempotencyKeyLayer, IdempotencyKeyService};
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
pub struct PolicyKeyLayer<C = Standard, L = ByAuthority> {
    deps: Dependencies<C, L>,
}

impl<C, L> PolicyKeyLayer<C, L> {
    /// Stamps keys by the policies of this registry.
    pub fn new(deps: Dependencies<C, L>) -> Self {
        Self { deps }
    }
}

impl<S, C: Clone, L: Clone> Layer<S> for PolicyKeyLayer<C, L> {
    type Service = PolicyKeyService<S, C, L>;

    fn layer(&self, inner: S) -> Self::Service {
        PolicyKeyService {
            stamp: IdempotencyKeyLayer::new().layer(inner),
            cache: DependencyCache::new(self.deps.clone()),
        }
    }
}

/// The service of a [`PolicyKeyLayer`].
///
/// # Clone
///
/// Clones share the registry.
#[derive(Debug, Clone)]
pub struct PolicyKeyService<S, C = Standard, L = ByAuthority> {
    stamp: IdempotencyKeyService<S>,
    cache: DependencyCache<C, L>,
}

impl<S, C, L, B> Service<Request<B>> for PolicyKeyService<S, C, L>
where
    S: Service<Request<B>> + Clone,
    S::Error: Into<BoxError>,
    L: Locate<Request<B>>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = IdempotencyKeyFuture<S, std::future::Ready<Result<(), BoxError>>, Request<B>>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.stamp.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        let writes = matches!(*request.method(), Method::POST | Method::PATCH);
        let chosen = || request.extensions().get::<IdempotencyKey>().is_some();
        if !writes && !chosen() {
            return self.stamp.call_with(request, false);
        }
        let (_, dependency) = self.cache.find(&request);
        let rules = dependency.policy().rules();
        let header = &mut self.stamp.settings.header;
        if *header != rules.key_header {
            header.clone_from(&rules.key_header);
        }
        let needed = writes && needs_key(rules, &request);
        self.stamp.call_with(request, needed)
    }
}

fn needs_key<B>(rules: &Rules, request: &Request<B>) -> bool {
    let may_stream = || is_grpc(request.headers()) && !rules.is_unary(request);
    !is_one_of(&rules.idempotent_methods, request)
        && !may_stream()
        && !RetryOverride::is_idempotent(request.extensions())
}
