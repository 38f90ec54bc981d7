//! The error types of hyper, hyper-util, h2 and rustls.

use std::error::Error;

use h2::Reason;
use rustls::AlertDescription;

use super::Facts;
use crate::classify::Cause;

pub(super) fn inspect(error: &(dyn Error + 'static), facts: &mut Facts) {
    if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>() {
        facts.connecting |= error.is_connect();
    } else if let Some(error) = error.downcast_ref::<hyper::Error>() {
        hyper(error, facts);
    } else if let Some(error) = error.downcast_ref::<h2::Error>() {
        h2(error, facts);
    } else if let Some(error) = error.downcast_ref::<rustls::Error>() {
        tls(error, facts);
    } else if facts.connecting && is_dns(error) {
        facts.note(Cause::Dns);
    }
}

fn hyper(error: &hyper::Error, facts: &mut Facts) {
    if error.is_timeout() {
        facts.note(Cause::Timeout);
    } else if error.is_incomplete_message() {
        facts.note(Cause::Incomplete);
    } else if error.is_parse() {
        facts.note(Cause::Serialization);
    } else if error.is_user() {
        facts.note(Cause::Configuration);
    } else if error.is_closed() || error.is_canceled() {
        // The connection's end, not the caller's: a caller that goes away gets no error.
        facts.note(Cause::Reset);
    }
}

fn h2(error: &h2::Error, facts: &mut Facts) {
    let cause = match error.reason() {
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
        ) => Cause::Serialization,
        Some(Reason::HTTP_1_1_REQUIRED | Reason::INADEQUATE_SECURITY) => Cause::Configuration,
        Some(_) => Cause::Protocol,
        None => return,
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

/// hyper-util keeps its connector's error type to itself; this is the one text that tells a
/// failed look-up from a failed connection.
fn is_dns(error: &(dyn Error + 'static)) -> bool {
    error.to_string() == "dns error"
}
