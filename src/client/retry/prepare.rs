use std::future::{Future, Ready, ready};

use crate::call::Attempt;
use crate::error::BoxError;

/// A hook that works on a request before it is sent again: refreshes a token, draws a new request id, signs
/// anew. It does not run before the first attempt.
///
/// Closures `Fn(Request, Attempt) -> Future<Output = Result<Request, BoxError>>` implement it. If
/// it fails, or if it returns a request without credentials that the original had, or with
/// credentials of another scheme, nothing is sent and the caller gets the last real result, with the
/// hook's error beside it: [`PrepareError`](crate::call::PrepareError).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot prepare a `{Request}` for another attempt",
    note = "write `|request, attempt| async move {{ Ok::<_, BoxError>(request) }}`"
)]
pub trait PrepareAttempt<Request> {
    /// The request, when it is ready.
    type Future: Future<Output = Result<Request, BoxError>>;

    /// Prepares the request.
    fn prepare(&self, request: Request, attempt: Attempt) -> Self::Future;

    /// Returns whether the hook brings new credentials, so that a 401 is worth one more attempt.
    fn refreshes(&self) -> bool {
        false
    }
}

impl<Request> PrepareAttempt<Request> for () {
    type Future = Ready<Result<Request, BoxError>>;

    fn prepare(&self, request: Request, _attempt: Attempt) -> Self::Future {
        ready(Ok(request))
    }
}

impl<F, Fut, Request> PrepareAttempt<Request> for F
where
    F: Fn(Request, Attempt) -> Fut,
    Fut: Future<Output = Result<Request, BoxError>>,
{
    type Future = Fut;

    fn prepare(&self, request: Request, attempt: Attempt) -> Fut {
        self(request, attempt)
    }
}

/// A hook that brings new credentials.
#[derive(Debug, Clone, Copy)]
pub struct Refresh<H>(pub(super) H);

impl<H: PrepareAttempt<Request>, Request> PrepareAttempt<Request> for Refresh<H> {
    type Future = H::Future;

    fn prepare(&self, request: Request, attempt: Attempt) -> Self::Future {
        self.0.prepare(request, attempt)
    }

    fn refreshes(&self) -> bool {
        true
    }
}
