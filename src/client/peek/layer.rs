use tower::Layer;

use super::Peek;
use crate::{
    classify::Standard,
    dependency::{ByAuthority, Dependencies, DependencyCache},
};

/// Reads error codes and statuses that the heads of replies do not have. See the
/// [module docs](super).
#[derive(Debug, Clone)]
#[must_use]
pub struct PeekLayer<C = Standard, L = ByAuthority> {
    deps: Dependencies<C, L>,
}

impl<C, L> PeekLayer<C, L> {
    /// Looks for what the policies of this registry want to know.
    pub fn new(deps: Dependencies<C, L>) -> Self {
        Self { deps }
    }
}

impl<S, C: Clone, L: Clone> Layer<S> for PeekLayer<C, L> {
    type Service = Peek<S, C, L>;

    fn layer(&self, inner: S) -> Self::Service {
        Peek {
            inner,
            cache: DependencyCache::new(self.deps.clone()),
        }
    }
}
