//! The error types of rustls.

use std::error::Error;

use rustls::{AlertDescription, pki_types::InvalidDnsNameError};

use super::Facts;
use crate::call::Cause;

pub(super) fn inspect(error: &(dyn Error + 'static), facts: &mut Facts) {
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        tls(error, facts);
    } else if error.is::<InvalidDnsNameError>() {
        facts.note(Cause::Configuration);
    }
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
mod tests {
    use rustls::{CertificateError, InvalidMessage};

    use super::{super::cause, *};

    #[test]
    fn c_3_an_untrusted_certificate_is_told_from_other_failures_of_tls() {
        use rustls::Error;
        for error in [
            Error::InvalidCertificate(CertificateError::Expired),
            Error::NoCertificatesPresented,
            Error::UnsupportedNameType,
            Error::AlertReceived(AlertDescription::UnknownCA),
            Error::AlertReceived(AlertDescription::CertificateRequired),
        ] {
            let found = cause(|facts| inspect(&error, facts));
            assert_eq!(found, Some(Cause::Certificate), "{error}");
        }
        for error in [
            Error::AlertReceived(AlertDescription::HandshakeFailure),
            Error::InvalidMessage(InvalidMessage::InvalidContentType),
            Error::DecryptError,
        ] {
            let found = cause(|facts| inspect(&error, facts));
            assert_eq!(found, Some(Cause::Tls), "{error}");
        }
        let name = rustls::pki_types::ServerName::try_from("").unwrap_err();
        let found = cause(|facts| inspect(&name, facts));
        assert_eq!(found, Some(Cause::Configuration));
    }
}
