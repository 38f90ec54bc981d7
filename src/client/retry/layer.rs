use tower::Layer;

use super::{ClonedRequests, HttpRequests, Refresh, Retry, WithIds};
use crate::{
    classify::{KeysHonoured, Standard},
    dependency::{ByAuthority, Dependencies, DependencyCache, LastSlot},
};

/// Calls again when that is worth it, safe, and allowed. See the [module docs](super).
#[derive(Debug, Clone)]
#[must_use]
pub struct RetryLayer<C = Standard, L = ByAuthority, P = HttpRequests, H = ()> {
    deps: Dependencies<C, L>,
    requests: P,
    prepare: H,
    charges_repeats: bool,
}

impl<C, L> RetryLayer<C, L> {
    /// Retries HTTP and gRPC calls by the policies of this registry.
    pub fn new(deps: Dependencies<C, L>) -> Self {
        deps.register_retry_loop();
        Self {
            deps,
            requests: HttpRequests::default(),
            prepare: (),
            charges_repeats: false,
        }
    }

    /// Repeats a POST or PATCH on the strength of its key only where the policy says that keys are
    /// honoured.
    pub(crate) fn keys_by_policy(mut self) -> Self {
        self.requests.keys = KeysHonoured::ByPolicy;
        self
    }
}

impl<C, L, P, H> RetryLayer<C, L, P, H> {
    /// Charges the budget for a call that is itself a repeat by a loop of another make above, and
    /// refuses it when the budget is used up, as a [`RetryBudgetLayer`](crate::RetryBudgetLayer) between
    /// the two would.
    pub fn charge_repeats(mut self) -> Self {
        self.charges_repeats = true;
        self
    }

    /// Retries calls of another sort, whose requests are cloned.
    pub fn cloning(self) -> RetryLayer<C, L, ClonedRequests, H> {
        RetryLayer {
            deps: self.deps,
            requests: ClonedRequests::default(),
            prepare: self.prepare,
            charges_repeats: self.charges_repeats,
        }
    }

    /// Runs this hook before every retry: see [`PrepareAttempt`](super::PrepareAttempt).
    pub fn with_prepare<G>(self, hook: G) -> RetryLayer<C, L, P, G> {
        RetryLayer {
            deps: self.deps,
            requests: self.requests,
            prepare: hook,
            charges_repeats: self.charges_repeats,
        }
    }

    /// Runs this hook before every retry. It brings new credentials, so that a 401 is tried once
    /// more too: at once, and whatever the method is, since nothing was executed.
    pub fn with_refresh<G>(self, hook: G) -> RetryLayer<C, L, P, Refresh<G>> {
        self.with_prepare(Refresh(hook))
    }
}

impl<C, L, H> RetryLayer<C, L, ClonedRequests, H> {
    /// Logs retries with the [ids](super::RequestIds) of their requests.
    pub fn with_request_ids(self) -> RetryLayer<C, L, ClonedRequests<WithIds>, H> {
        RetryLayer {
            deps: self.deps,
            requests: ClonedRequests::default(),
            prepare: self.prepare,
            charges_repeats: self.charges_repeats,
        }
    }
}

impl<S, C: Clone, L: Clone, P: Clone, H: Clone> Layer<S> for RetryLayer<C, L, P, H> {
    type Service = Retry<S, C, L, P, H>;

    fn layer(&self, inner: S) -> Self::Service {
        Retry {
            inner,
            cache: DependencyCache::new(self.deps.clone()),
            slot: LastSlot::default(),
            requests: self.requests.clone(),
            prepare: self.prepare.clone(),
            charges_repeats: self.charges_repeats,
        }
    }
}
