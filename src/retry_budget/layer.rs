use http::StatusCode;
use tower::Layer;

use super::{InboundRetryBudgetLayer, RetryBudget};
use crate::{
    classify::Standard,
    dependency::{ByAuthority, Dependencies, Lookup},
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

    /// For a server: refuses inbound retries over the budget with a response.
    pub fn inbound(self) -> InboundRetryBudgetLayer<C, L> {
        InboundRetryBudgetLayer {
            deps: self.deps,
            status: StatusCode::TOO_MANY_REQUESTS,
        }
    }
}

impl<S, C: Clone, L: Clone> Layer<S> for RetryBudgetLayer<C, L> {
    type Service = RetryBudget<S, C, L>;

    fn layer(&self, inner: S) -> Self::Service {
        self.deps.counts_originals();
        RetryBudget {
            inner,
            lookup: Lookup::new(self.deps.clone()),
        }
    }
}
