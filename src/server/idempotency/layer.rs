use std::sync::Arc;

use tower::Layer;

use super::{Http, Idempotency, IdempotencyBuilder, settings::Shared};

/// Lets an operation be executed once, however often it is asked for, in the dialect `D`. See the
/// [module docs](super).
///
/// # Clone
///
/// Clones, and the services made of them, share the store.
#[derive(Debug)]
#[must_use]
pub struct IdempotencyLayer<St, D = Http> {
    shared: Arc<Shared<St, D>>,
}

impl<St, D> Clone for IdempotencyLayer<St, D> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<St> IdempotencyLayer<St> {
    /// Says what is to be remembered where, and then the rest.
    pub fn builder(store: St) -> IdempotencyBuilder<St> {
        IdempotencyBuilder::new(store)
    }
}

impl<St, D> IdempotencyLayer<St, D> {
    pub(super) fn new(shared: Shared<St, D>) -> Self {
        Self {
            shared: Arc::new(shared),
        }
    }
}

impl<S, St, D> Layer<S> for IdempotencyLayer<St, D> {
    type Service = Idempotency<S, St, D>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotency {
            inner,
            shared: Arc::clone(&self.shared),
        }
    }
}
