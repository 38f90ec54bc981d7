use tower::Layer;

use super::RetryAfter;
use crate::{
    classify::Standard,
    dependency::{ByAuthority, Dependencies, DependencyCache},
};

/// Holds or refuses calls to a dependency that asked for time. See the [module docs](super).
#[derive(Debug, Clone)]
#[must_use]
pub struct RetryAfterLayer<C = Standard, L = ByAuthority> {
    deps: Dependencies<C, L>,
}

impl<C, L> RetryAfterLayer<C, L> {
    /// Holds or refuses calls by what the dependencies of this registry asked for.
    pub fn new(deps: Dependencies<C, L>) -> Self {
        Self { deps }
    }
}

impl<S, C: Clone, L: Clone> Layer<S> for RetryAfterLayer<C, L> {
    type Service = RetryAfter<S, C, L>;

    fn layer(&self, inner: S) -> Self::Service {
        RetryAfter {
            inner,
            cache: DependencyCache::new(self.deps.clone()),
        }
    }
}
