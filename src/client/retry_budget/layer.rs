use tower::Layer;

use super::RetryBudget;
use crate::{
    classify::Standard,
    dependency::{ByAuthority, Dependencies, DependencyCache, LastSlot},
};

/// Keeps retries to a share of the traffic. See the [module docs](super).
#[derive(Debug, Clone)]
#[must_use]
pub struct RetryBudgetLayer<C = Standard, L = ByAuthority> {
    deps: Dependencies<C, L>,
}

impl<C, L> RetryBudgetLayer<C, L> {
    /// Makes a layer that counts and charges by the budgets of this registry.
    pub fn new(deps: Dependencies<C, L>) -> Self {
        Self { deps }
    }
}

impl<S, C: Clone, L: Clone> Layer<S> for RetryBudgetLayer<C, L> {
    type Service = RetryBudget<S, C, L>;

    fn layer(&self, inner: S) -> Self::Service {
        RetryBudget {
            inner,
            cache: DependencyCache::new(self.deps.clone()),
            slot: LastSlot::default(),
        }
    }
}
