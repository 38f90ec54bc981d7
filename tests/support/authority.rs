//! Certificates of an authority that only a test knows.

use std::sync::Arc;

use rcgen::{Certificate, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer},
};
use tokio_rustls::TlsAcceptor;

pub(crate) struct Authority {
    pub(crate) certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        Self {
            certificate,
            issuer,
        }
    }

    pub(crate) fn issue(&self, name: &str, expired: bool) -> Identity {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        if expired {
            params.not_before = rcgen::date_time_ymd(2001, 1, 1);
            params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity { certificate, key }
    }

    /// Trusts nobody else.
    pub(crate) fn trusted(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth()
    }
}

/// A server's certificate and key.
pub(crate) struct Identity {
    pub(crate) certificate: Certificate,
    pub(crate) key: KeyPair,
}

impl Identity {
    /// By no authority.
    pub(crate) fn self_signed(name: &str) -> Self {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        Self {
            certificate: made.cert,
            key: made.signing_key,
        }
    }

    pub(crate) fn der(self) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        (self.certificate.der().clone(), self.key.into())
    }

    /// Returns an acceptor of TLS connections with these protocols.
    pub(crate) fn acceptor(self, protocols: &[&str]) -> TlsAcceptor {
        let (certificate, key) = self.der();
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let protocols = protocols.iter().map(|name| name.as_bytes().to_vec());
        config.alpn_protocols = protocols.collect();
        TlsAcceptor::from(Arc::new(config))
    }
}
