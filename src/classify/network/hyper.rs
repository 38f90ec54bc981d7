//! The error types of hyper and hyper-util.

use std::{any::Any, error::Error};

use hyper_util::client::legacy;

use super::Facts;
use crate::call::Cause;

pub(super) fn inspect(error: &(dyn Error + 'static), facts: &mut Facts) {
    if let Some(error) = error.downcast_ref::<legacy::Error>() {
        pool(error, facts);
    } else if let Some(error) = error.downcast_ref::<hyper::Error>() {
        hyper(error, facts);
    } else if facts.unsent {
        connector(&error.to_string(), facts);
    }
}

/// Downcasts a value to one of these error types.
pub(super) fn downcast(error: &dyn Any) -> Option<&(dyn Error + 'static)> {
    let pool = error
        .downcast_ref::<legacy::Error>()
        .map(|error| error as _);
    pool.or_else(|| error.downcast_ref::<hyper::Error>().map(|error| error as _))
}

/// Reads hyper-util's error: a failed connection by its kind, an invalid request only by its text.
fn pool(error: &legacy::Error, facts: &mut Facts) {
    facts.unsent |= error.is_connect();
    if error.to_string().starts_with("client error (User") {
        facts.note(Cause::Configuration);
    }
}

/// Tells a failed look-up, a URI that can't be connected to and an untrusted certificate from a
/// failed connection by text, since the types of connectors are private.
fn connector(text: &str, facts: &mut Facts) {
    const UNUSABLE: [&str; 3] = ["invalid URL", "unsupported scheme", "missing scheme"];
    if text.contains("certificate") {
        // native-tls has only the text of the system's TLS library, which differs between systems.
        facts.note(Cause::Certificate);
    } else if text == "dns error" {
        facts.note(Cause::Dns);
    } else if UNUSABLE.iter().any(|unusable| text.starts_with(unusable)) {
        facts.note(Cause::Configuration);
    }
}

fn hyper(error: &hyper::Error, facts: &mut Facts) {
    if error.is_user() {
        // Of what a client does wrong only a body that fails has a source.
        facts.ours = error.source().is_some() || error.is_body_write_aborted();
        facts.note(Cause::Configuration);
    } else if error.is_timeout() {
        facts.note(Cause::Timeout);
    } else if error.is_incomplete_message() {
        facts.note(Cause::Incomplete);
    } else if error.is_parse() {
        facts.note(Cause::Serialization);
    } else if error.is_canceled() {
        // The connection went away before it took the request, which hyper hands back unsent. A
        // caller that goes away gets no error at all.
        facts.unsent = true;
        facts.note(Cause::Reset);
    } else if error.is_closed() {
        facts.note(Cause::Reset);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::cause, *};

    #[test]
    fn c_3_a_connector_is_known_by_what_it_says() {
        for (text, expected) in [
            ("certificate verify failed", Some(Cause::Certificate)),
            ("the certificate is not trusted", Some(Cause::Certificate)),
            ("dns error", Some(Cause::Dns)),
            ("invalid URL, scheme is missing", Some(Cause::Configuration)),
            ("unsupported scheme ftp", Some(Cause::Configuration)),
            ("missing scheme", Some(Cause::Configuration)),
            ("tcp connect error", None),
            ("a dns error", None),
        ] {
            assert_eq!(cause(|facts| connector(text, facts)), expected, "{text}");
            // Its words count only where there was no connection.
            let words = std::io::Error::other(text);
            let words = words.get_ref().unwrap();
            for unsent in [true, false] {
                let found = cause(|facts| {
                    facts.unsent = unsent;
                    inspect(words, facts);
                });
                assert_eq!(found, expected.filter(|_| unsent), "{text}");
            }
        }
    }
}
