use std::sync::Arc;

use tower::Layer;

use super::{Idempotency, IdempotencyBuilder, settings::Shared};

/// Lets an operation be executed once, however often it is asked for. See the
/// [module docs](super).
///
/// # Clone
///
/// Clones, and the services made of them, share the store.
#[derive(Debug)]
#[must_use]
pub struct IdempotencyLayer<St> {
    shared: Arc<Shared<St>>,
}

impl<St> Clone for IdempotencyLayer<St> {
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

    pub(super) fn new(shared: Shared<St>) -> Self {
        Self {
            shared: Arc::new(shared),
        }
    }
}

impl<S, St> Layer<S> for IdempotencyLayer<St> {
    type Service = Idempotency<S, St>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotency {
            inner,
            shared: Arc::clone(&self.shared),
        }
    }
}
