use std::future::{Future, Ready};

use http::Request;

use crate::call::IdempotencyKey;
use crate::error::BoxError;

/// Stores a key before the request that carries it is sent for the first time. If it fails, the
/// request is not sent and the call fails with its error.
///
/// Closures `Fn(IdempotencyKey, &Request<B>) -> Future<Output = Result<(), BoxError>>` implement it.
/// The request tells which order the key is for: by its path, a header or an extension.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't store the idempotency key of a request with a body of type `{B}`",
    note = "a closure can that returns a future: `|key: IdempotencyKey, request: &Request<_>| store(key)`"
)]
pub trait PersistKey<B> {
    /// Whether keys are stored at all.
    const STORES: bool = true;

    /// The future that ends when the key is stored.
    type Future: Future<Output = Result<(), BoxError>>;

    /// Stores the key of a request; `None` if there is nothing to store.
    fn persist(&self, key: &IdempotencyKey, request: &Request<B>) -> Option<Self::Future>;
}

impl<B> PersistKey<B> for () {
    const STORES: bool = false;

    type Future = Ready<Result<(), BoxError>>;

    fn persist(&self, _: &IdempotencyKey, _: &Request<B>) -> Option<Self::Future> {
        None
    }
}

impl<F, Fut, B> PersistKey<B> for F
where
    F: Fn(IdempotencyKey, &Request<B>) -> Fut,
    Fut: Future<Output = Result<(), BoxError>>,
{
    type Future = Fut;

    fn persist(&self, key: &IdempotencyKey, request: &Request<B>) -> Option<Fut> {
        Some(self(key.clone(), request))
    }
}
