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
}

impl<C, L> RetryLayer<C, L> {
    /// Retries HTTP and gRPC calls by the policies of this registry.
    pub fn new(deps: Dependencies<C, L>) -> Self {
        deps.register_retry_loop();
        Self {
            deps,
            requests: HttpRequests::default(),
            prepare: (),
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
    /// Retries calls of another sort, whose requests are cloned.
    pub fn cloning(self) -> RetryLayer<C, L, ClonedRequests, H> {
        RetryLayer {
            deps: self.deps,
            requests: ClonedRequests::default(),
            prepare: self.prepare,
        }
    }

    /// Runs this hook before every retry: see [`PrepareAttempt`](super::PrepareAttempt).
    pub fn with_prepare<G>(self, hook: G) -> RetryLayer<C, L, P, G> {
        RetryLayer {
            deps: self.deps,
            requests: self.requests,
            prepare: hook,
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
        }
    }
}
