//! tonic's error types.

use std::{any::Any, error::Error};

use tonic::{ConnectError, Status, TimeoutExpired};

use super::Facts;
use crate::classify::{Cause, GrpcCode};

pub(super) fn inspect(error: &(dyn Error + 'static), facts: &mut Facts) {
    if error.is::<ConnectError>() {
        facts.unsent = true;
    } else if error.is::<TimeoutExpired>() {
        facts.note(Cause::Timeout);
    } else if let Some(status) = error.downcast_ref::<Status>() {
        // What it was made from, if anything, says more.
        let number = i32::from(status.code());
        let code = u64::try_from(number).map_or(GrpcCode::Unknown, GrpcCode::from_number);
        facts.status.get_or_insert(code);
    } else if facts.unsent {
        connector(&error.to_string(), facts);
    }
}

/// The channel's connector keeps its errors to itself, but for what they say.
fn connector(text: &str, facts: &mut Facts) {
    match text {
        "TLS handshake timeout." => facts.note(Cause::Timeout),
        "HTTP/2 was not negotiated." | "Connecting to HTTPS without TLS enabled" => {
            facts.note(Cause::Configuration);
        }
        _ => {}
    }
}

/// An error value as an error, if it is one of these types.
pub(super) fn downcast(error: &dyn Any) -> Option<&(dyn Error + 'static)> {
    let error = error.downcast_ref::<Status>();
    error.map(|error| error as _)
}
