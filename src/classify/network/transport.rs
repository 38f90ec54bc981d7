//! The error types of hyper, hyper-util, h2, rustls and tower's buffer.

use std::{any::Any, error::Error};

use h2::Reason;
use hyper_util::client::legacy;
use rustls::{AlertDescription, pki_types::InvalidDnsNameError};
use tower::buffer::error::Closed;

use super::Facts;
use crate::call::Cause;

pub(super) fn inspect(error: &(dyn Error + 'static), facts: &mut Facts) {
    if let Some(error) = error.downcast_ref::<legacy::Error>() {
        pool(error, facts);
    } else if let Some(error) = error.downcast_ref::<hyper::Error>() {
        hyper(error, facts);
    } else if let Some(error) = error.downcast_ref::<h2::Error>() {
        h2(error, facts);
    } else if let Some(error) = error.downcast_ref::<rustls::Error>() {
        tls(error, facts);
    } else if error.is::<InvalidDnsNameError>() {
        facts.note(Cause::Configuration);
    } else if error.is::<Closed>() {
        // If its worker failed, that failure comes as an error of its own.
        facts.ours = true;
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

fn h2(error: &h2::Error, facts: &mut Facts) {
    let sent = (error.is_reset() || error.is_go_away()) && !error.is_remote();
    let cause = match error.reason() {
        // By the user of h2, or by h2 for a stream that its user dropped. What h2 detects for itself
        // is a fault of the peer's.
        Some(reason) if sent && (!error.is_library() || reason == Reason::CANCEL) => {
            facts.ours = true;
            return;
        }
        Some(Reason::REFUSED_STREAM) if error.is_reset() && error.is_remote() => {
            Cause::StreamRefused
        }
        // A graceful shutdown fails only the streams above the last one it will process.
        Some(Reason::NO_ERROR) if error.is_go_away() && error.is_remote() => Cause::GoAway,
        Some(
            Reason::PROTOCOL_ERROR
            | Reason::COMPRESSION_ERROR
            | Reason::FRAME_SIZE_ERROR
            | Reason::FLOW_CONTROL_ERROR,
        ) => match error.is_remote() {
            // The peer could not read what we sent.
            true => Cause::Configuration,
            false => Cause::Serialization,
        },
        Some(Reason::HTTP_1_1_REQUIRED | Reason::INADEQUATE_SECURITY) => Cause::Configuration,
        Some(_) => Cause::Protocol,
        None => {
            // Neither the peer's word nor the socket's: h2 was used wrongly.
            facts.ours = !error.is_io();
            return;
        }
    };
    facts.note(cause);
}

fn tls(error: &rustls::Error, facts: &mut Facts) {
    let untrusted = match error {
        rustls::Error::InvalidCertificate(_)
        | rustls::Error::InvalidCertRevocationList(_)
        | rustls::Error::NoCertificatesPresented
        | rustls::Error::UnsupportedNameType => true,
        rustls::Error::AlertReceived(alert) => matches!(
            alert,
            AlertDescription::NoCertificate
                | AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::CertificateRequired
        ),
        _ => false,
    };
    facts.note(if untrusted {
        Cause::Certificate
    } else {
        Cause::Tls
    });
}

#[cfg(test)]
mod tests;
