use tower::Layer;

use super::AttemptSpan;
use crate::{
    classify::Standard,
    dependency::{ByAuthority, Dependencies, DependencyCache},
};

/// Makes a client span for each attempt. See the [module docs](super).
#[derive(Debug, Clone)]
#[must_use]
pub struct AttemptSpanLayer<C = Standard, L = ByAuthority, P = ()> {
    deps: Dependencies<C, L>,
    propagator: P,
}

impl<C, L> AttemptSpanLayer<C, L> {
    /// Names and judges attempts by this registry.
    pub fn new(deps: Dependencies<C, L>) -> Self {
        Self {
            deps,
            propagator: (),
        }
    }

    /// Writes the context of each attempt's span into its headers: see [`Propagate`](super::Propagate).
    pub fn with_propagator<P>(self, propagator: P) -> AttemptSpanLayer<C, L, P> {
        AttemptSpanLayer {
            deps: self.deps,
            propagator,
        }
    }
}

impl<S, C: Clone, L: Clone, P: Clone> Layer<S> for AttemptSpanLayer<C, L, P> {
    type Service = AttemptSpan<S, C, L, P>;

    fn layer(&self, inner: S) -> Self::Service {
        AttemptSpan {
            inner,
            cache: DependencyCache::new(self.deps.clone()),
            propagator: self.propagator.clone(),
        }
    }
}
