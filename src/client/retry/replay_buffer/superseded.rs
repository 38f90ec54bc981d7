//! The error of a body that a transport still holds when a later attempt reads on.

use std::{any::Any, error::Error, fmt, io};

use crate::error::BoxError;

/// The error of a body that another attempt sends. Its transport must not take it for a shorter body
/// that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Superseded;

impl fmt::Display for Superseded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the attempt is over, and another one sends the rest of the body")
    }
}

impl Error for Superseded {}

/// Returns it as an error of that type, if it is a box or an I/O error. There is no value of another
/// type to be had: a body of such a type stays pending until its transport drops it.
pub(super) fn known_error<E: 'static>(superseded: Superseded) -> Option<E> {
    let mut error = None::<E>;
    let slot: &mut dyn Any = &mut error;
    if let Some(boxed) = slot.downcast_mut::<Option<BoxError>>() {
        *boxed = Some(superseded.into());
    } else if let Some(io) = slot.downcast_mut::<Option<io::Error>>() {
        *io = Some(io::Error::other(superseded));
    }
    error
}
