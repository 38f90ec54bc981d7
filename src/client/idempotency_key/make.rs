use http::Request;

use crate::call::IdempotencyKey;

/// Makes the key of a request that has none.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't make an idempotency key for a request with a body of type `{B}`",
    note = "a closure can: `|request: &Request<_>| IdempotencyKey::new(…)`"
)]
pub trait MakeKey<B> {
    /// Returns the key of this operation. Different operations must get different keys.
    fn make_key(&self, request: &Request<B>) -> IdempotencyKey;
}

impl<F, B> MakeKey<B> for F
where
    F: Fn(&Request<B>) -> IdempotencyKey,
{
    fn make_key(&self, request: &Request<B>) -> IdempotencyKey {
        self(request)
    }
}

/// Makes a random UUID (version 4) for each operation.
#[derive(Debug, Clone, Copy, Default)]
pub struct UuidV4;

impl<B> MakeKey<B> for UuidV4 {
    fn make_key(&self, _request: &Request<B>) -> IdempotencyKey {
        IdempotencyKey::random()
    }
}
