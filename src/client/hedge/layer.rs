use tower::Layer;

use super::Hedge;
use crate::{
    classify::{KeysHonoured, Standard},
    client::retry::HttpRequests,
    dependency::{ByAuthority, Dependencies, DependencyCache, LastSlot},
};

/// Sends a second attempt for a call that takes long. See the [module docs](super).
#[derive(Debug, Clone)]
#[must_use]
pub struct HedgeLayer<C = Standard, L = ByAuthority> {
    deps: Dependencies<C, L>,
    requests: HttpRequests,
    counts: bool,
}

impl<C, L> HedgeLayer<C, L> {
    /// Hedges calls by the policies of this registry that say so.
    pub fn new(deps: Dependencies<C, L>) -> Self {
        deps.register_counting_layer();
        Self {
            deps,
            requests: HttpRequests::default(),
            counts: true,
        }
    }

    /// Makes a layer below a [`RetryLayer`](crate::RetryLayer) that counts the originals. A POST or
    /// PATCH is hedged on the strength of its key only where the policy says that keys are honoured.
    pub(crate) fn in_stack(deps: Dependencies<C, L>) -> Self {
        let keys = KeysHonoured::ByPolicy;
        Self {
            deps,
            requests: HttpRequests { keys },
            counts: false,
        }
    }
}

impl<S, C: Clone, L: Clone> Layer<S> for HedgeLayer<C, L> {
    type Service = Hedge<S, C, L>;

    fn layer(&self, inner: S) -> Self::Service {
        Hedge {
            inner,
            cache: DependencyCache::new(self.deps.clone()),
            slot: LastSlot::default(),
            requests: self.requests,
            counts: self.counts,
        }
    }
}
