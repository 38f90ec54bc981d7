use std::sync::Arc;

use tower::Layer;

use super::{CircuitBreaker, service::Endpoint};
use crate::{
    classify::Standard,
    dependency::{ByAuthority, Dependencies, DependencyCache, Named},
};

/// Stops calls to a dependency that fails. See the [module docs](super).
#[derive(Debug, Clone)]
#[must_use]
pub struct CircuitBreakerLayer<C = Standard, L = ByAuthority> {
    deps: Dependencies<C, L>,
    endpoint: Option<Arc<str>>,
}

impl<C, L> CircuitBreakerLayer<C, L> {
    /// Guards calls by the breakers of this registry.
    pub fn new(deps: Dependencies<C, L>) -> Self {
        Self {
            deps,
            endpoint: None,
        }
    }
}

impl<C> CircuitBreakerLayer<C, Named> {
    /// Reports that the service is not ready while its breaker is open, so that a balancer such as
    /// `tower::balance` calls another endpoint. When a probe is due it is ready again, and all calls
    /// but the probe are refused.
    pub fn in_poll_ready(mut self) -> Self {
        self.endpoint = Some(self.deps.name());
        self
    }
}

impl<S, C: Clone, L: Clone> Layer<S> for CircuitBreakerLayer<C, L> {
    type Service = CircuitBreaker<S, C, L>;

    fn layer(&self, inner: S) -> Self::Service {
        CircuitBreaker {
            inner,
            cache: DependencyCache::new(self.deps.clone()),
            endpoint: self.endpoint.clone().map(Endpoint::new),
        }
    }
}
