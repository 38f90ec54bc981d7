//! tonic's error types.

use std::{any::Any, error::Error};

use tonic::{ConnectError, Status, TimeoutExpired};

use super::Facts;
use crate::{call::Cause, http::GrpcCode};

pub(super) fn inspect(error: &(dyn Error + 'static), facts: &mut Facts) {
    if error.is::<ConnectError>() {
        facts.unsent = true;
    } else if error.is::<TimeoutExpired>() {
        facts.note(Cause::Timeout);
    } else if let Some(status) = error.downcast_ref::<Status>() {
        // A source, if any, is more specific.
        let number = i32::from(status.code());
        let code = u64::try_from(number).map_or(GrpcCode::Unknown, GrpcCode::from_number);
        facts.status.get_or_insert(code);
    } else if facts.unsent {
        connector(&error.to_string(), facts);
    }
}

/// Classifies an error of the channel's connector by its text, since its type is private.
fn connector(text: &str, facts: &mut Facts) {
    match text {
        "TLS handshake timeout." => facts.note(Cause::Timeout),
        "HTTP/2 was not negotiated." | "Connecting to HTTPS without TLS enabled" => {
            facts.note(Cause::Configuration);
        }
        _ => {}
    }
}

/// Downcasts a value to one of these error types.
pub(super) fn downcast(error: &dyn Any) -> Option<&(dyn Error + 'static)> {
    let error = error.downcast_ref::<Status>();
    error.map(|error| error as _)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_3_a_channels_connector_is_known_by_what_it_says() {
        for (text, expected) in [
            ("TLS handshake timeout.", Some(Cause::Timeout)),
            ("HTTP/2 was not negotiated.", Some(Cause::Configuration)),
            (
                "Connecting to HTTPS without TLS enabled",
                Some(Cause::Configuration),
            ),
            ("anything else", None),
        ] {
            let mut facts = Facts::default();
            connector(text, &mut facts);
            assert_eq!(facts.cause, expected, "{text}");
        }
    }

    #[test]
    fn c_2_a_status_is_known_by_its_code() {
        let status = Status::unavailable("down");
        let mut facts = Facts::default();
        inspect(&status, &mut facts);
        assert_eq!(facts.status, Some(GrpcCode::Unavailable));
        let known = downcast(&status).map(ToString::to_string);
        assert_eq!(known, Some(status.to_string()));
        assert!(downcast(&"text").is_none());
    }
}
