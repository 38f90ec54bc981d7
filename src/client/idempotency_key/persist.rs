use std::future::{Future, Ready};

use crate::call::IdempotencyKey;
use crate::error::BoxError;

/// Stores a key before the request that carries it is sent for the first time. If it fails, the
/// request is not sent and the call fails with its error.
///
/// Closures `Fn(IdempotencyKey) -> Future<Output = Result<(), BoxError>>` implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't store an idempotency key",
    note = "a closure can that returns a future: `|key: IdempotencyKey| store(key)`"
)]
pub trait PersistKey {
    /// Whether keys are stored at all.
    const STORES: bool = true;

    /// The future that ends when the key is stored.
    type Future: Future<Output = Result<(), BoxError>>;

    /// Stores the key; `None` if there is nothing to store.
    fn persist(&self, key: &IdempotencyKey) -> Option<Self::Future>;
}

impl PersistKey for () {
    const STORES: bool = false;

    type Future = Ready<Result<(), BoxError>>;

    fn persist(&self, _key: &IdempotencyKey) -> Option<Self::Future> {
        None
    }
}

impl<F, Fut> PersistKey for F
where
    F: Fn(IdempotencyKey) -> Fut,
    Fut: Future<Output = Result<(), BoxError>>,
{
    type Future = Fut;

    fn persist(&self, key: &IdempotencyKey) -> Option<Fut> {
        Some(self(key.clone()))
    }
}
