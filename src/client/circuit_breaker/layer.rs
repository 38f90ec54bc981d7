use tower::Layer;

use super::CircuitBreaker;
use crate::{
    classify::Standard,
    dependency::{ByAuthority, Dependencies, DependencyCache},
};

/// Stops calls to a dependency that fails. See the [module docs](super).
#[derive(Debug, Clone)]
#[must_use]
pub struct CircuitBreakerLayer<C = Standard, L = ByAuthority> {
    deps: Dependencies<C, L>,
}

impl<C, L> CircuitBreakerLayer<C, L> {
    /// Guards calls by the breakers of this registry.
    pub fn new(deps: Dependencies<C, L>) -> Self {
        Self { deps }
    }
}

impl<S, C: Clone, L: Clone> Layer<S> for CircuitBreakerLayer<C, L> {
    type Service = CircuitBreaker<S, C, L>;

    fn layer(&self, inner: S) -> Self::Service {
        CircuitBreaker {
            inner,
            cache: DependencyCache::new(self.deps.clone()),
        }
    }
}
