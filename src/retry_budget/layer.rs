use tower::Layer;

use super::{InboundRetryBudgetLayer, RetryBudget};
use crate::{
    classify::Standard,
    dependency::{ByAuthority, Dependencies, LastSlot, Lookup, Named},
};

/// Keeps retries to a share of the traffic, whoever makes them. See the [module docs](super).
#[derive(Debug, Clone)]
#[must_use]
pub struct RetryBudgetLayer<C = Standard, L = ByAuthority> {
    deps: Dependencies<C, L>,
}

impl<C, L> RetryBudgetLayer<C, L> {
    /// Counts and charges by the budgets of this registry.
    pub fn new(deps: Dependencies<C, L>) -> Self {
        Self { deps }
    }

    /// For a server: refuses inbound retries over the budget with a response. All requests share
    /// one budget, by the name of `inbound`, whatever host they ask for: that is the peer's to
    /// choose.
    pub fn inbound(self) -> InboundRetryBudgetLayer<C, Named> {
        InboundRetryBudgetLayer::new(self.deps.relocated(Named("inbound".into())))
    }

    /// As [`inbound`](Self::inbound), with budgets by what the registry locates: a tenant, or
    /// something else that a peer can't make up.
    pub fn inbound_located(self) -> InboundRetryBudgetLayer<C, L> {
        InboundRetryBudgetLayer::new(self.deps)
    }
}

impl<S, C: Clone, L: Clone> Layer<S> for RetryBudgetLayer<C, L> {
    type Service = RetryBudget<S, C, L>;

    fn layer(&self, inner: S) -> Self::Service {
        self.deps.counts_originals();
        RetryBudget {
            inner,
            lookup: Lookup::new(self.deps.clone()),
            slot: LastSlot::default(),
        }
    }
}
