use std::sync::Arc;

use tower::Layer;

use super::{Drain, Idempotency, IdempotencyBuilder, settings::LayerState};
use crate::server::dialect::HttpDialect;
#[cfg(feature = "delivery")]
use crate::server::dialect::Scope;

/// Executes an operation once, however often a request asks for it in the dialect `D`. See the
/// [module docs](super).
///
/// # Clone
///
/// Clones, and the services made of them, share the store.
#[derive(Debug)]
#[must_use]
pub struct IdempotencyLayer<St, D = HttpDialect> {
    state: Arc<LayerState<St, D>>,
}

impl<St, D> Clone for IdempotencyLayer<St, D> {
    fn clone(&self) -> Self {
        Self {
            state: Arc::clone(&self.state),
        }
    }
}

impl<St> IdempotencyLayer<St> {
    /// Builds a layer on a store.
    pub fn builder(store: St) -> IdempotencyBuilder<St> {
        IdempotencyBuilder::new(store)
    }
}

impl<St, D> IdempotencyLayer<St, D> {
    pub(super) fn new(state: LayerState<St, D>) -> Self {
        Self {
            state: Arc::new(state),
        }
    }

    /// Returns the owners of its keys and the dialect that it speaks.
    #[cfg(feature = "delivery")]
    pub(crate) fn scope_and_dialect(&self) -> (&Scope, &D) {
        (&self.state.scope, &self.state.dialect)
    }
}

impl<St, D> IdempotencyLayer<St, D> {
    /// Returns a handle that waits for this layer's work at shutdown.
    #[must_use]
    pub fn drain(&self) -> Drain {
        Drain {
            pending: Arc::clone(&self.state.engine.pending),
        }
    }
}

impl<S, St, D> Layer<S> for IdempotencyLayer<St, D> {
    type Service = Idempotency<S, St, D>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotency {
            inner,
            state: Arc::clone(&self.state),
        }
    }
}
