//! Calls that broke off, or took too long: nobody knows whether they took effect.
//!
//! To the idempotency layer an error is no end: the key is left to its lease, as if the gateway had
//! died. This gateway lives, and can settle it at once, by what the operator wants of such orphans.
//! So the error passes that layer as a reply of unknown outcome, and is an error again above.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Either, Empty};
use tower_reprise::{
    classify::{Classify, Rules, Standard},
    error::BoxError,
    server::idempotency::HandlerOutcome,
};

pub(crate) type OrUnknown<R> = Either<R, Empty<Bytes>>;

/// On a reply: the error in whose place it passes the idempotency layer.
#[derive(Clone)]
struct HiddenError(Arc<Mutex<Option<BoxError>>>);

/// Below the idempotency layer. An error that says that nothing was sent stays one: that layer
/// knows it, and releases the key.
pub(crate) fn hide_error<R>(
    result: Result<Response<R>, BoxError>,
) -> Result<Response<OrUnknown<R>>, BoxError> {
    let error = match result {
        Ok(response) => return Ok(response.map(Either::Left)),
        Err(error) => error,
    };
    let verdict = Classify::<Request<()>, Response<()>>::classify(
        &Standard,
        &Rules::standard(),
        Err(&*error),
    );
    if verdict.never_sent {
        return Err(error);
    }
    let mut response = Response::new(Either::Right(Empty::new()));
    response.extensions_mut().insert(HandlerOutcome::Unknown);
    let hidden = HiddenError(Arc::new(Mutex::new(Some(error))));
    response.extensions_mut().insert(hidden);
    Ok(response)
}

/// Above it.
pub(crate) fn restore_error<R>(
    result: Result<Response<R>, BoxError>,
) -> Result<Response<R>, BoxError> {
    let mut response = result?;
    let hidden = response.extensions_mut().remove::<HiddenError>();
    let error = hidden.and_then(|HiddenError(error)| {
        let mut error = error.lock().unwrap_or_else(PoisonError::into_inner);
        error.take()
    });
    match error {
        Some(error) => Err(error),
        None => Ok(response),
    }
}
