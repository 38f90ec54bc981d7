//! The mark of a failure for which two attempts went out.

use std::{error::Error, fmt};

use crate::{error::BoxError, http::ResponseHead};

/// On the extensions of a response that failed: a hedge went out, too.
#[derive(Debug, Clone, Copy)]
struct Hedged;

/// The same for an error, which is its source.
#[derive(Debug)]
struct HedgedError(BoxError);

impl fmt::Display for HedgedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for HedgedError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

/// Marks a failure, for a retry loop above that counts hedges.
pub(crate) fn mark_hedged<R: ResponseHead>(mut result: Result<R, BoxError>) -> Result<R, BoxError> {
    if let Ok(response) = &mut result {
        response.extensions_mut().insert(Hedged);
    }
    result.map_err(|error| HedgedError(error).into())
}

/// Returns whether a response has the mark.
pub(crate) fn is_hedged<R: ResponseHead>(response: &R) -> bool {
    response.extensions().get::<Hedged>().is_some()
}

/// Returns an error as it was before it was marked.
pub(crate) fn unmarked<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    match error.downcast_ref::<HedgedError>() {
        Some(marked) => &*marked.0,
        None => error,
    }
}

/// Takes the mark from an error. Returns whether it had one.
pub(crate) fn take_hedged(error: &mut BoxError) -> bool {
    if !error.is::<HedgedError>() {
        return false;
    }
    let marked = std::mem::replace(error, BoxError::from(""));
    match marked.downcast::<HedgedError>() {
        Ok(marked) => *error = marked.0,
        Err(other) => *error = other,
    }
    true
}
