//! TLS in front, with certificates that can be renewed while it runs.

use std::{fs, sync::Arc};

use arc_swap::ArcSwap;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio_rustls::TlsAcceptor;

use crate::usage_error::UsageError;

#[derive(Clone)]
pub(crate) struct Tls {
    certificate: String,
    key: String,
    config: Arc<ArcSwap<ServerConfig>>,
}

impl Tls {
    pub(crate) fn open(certificate: &str, key: &str) -> Result<Self, UsageError> {
        let config = read(certificate, key)?;
        Ok(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            config: Arc::new(ArcSwap::from_pointee(config)),
        })
    }

    /// Reads the files again. What can't be used is not used; connections keep what they have.
    pub(crate) fn reload(&self) {
        match read(&self.certificate, &self.key) {
            Ok(config) => {
                self.config.store(Arc::new(config));
                tracing::info!("the certificate was read again");
            }
            Err(error) => tracing::error!(%error, "the certificate stays as it was"),
        }
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.config.load_full().into()
    }
}

fn read(certificate: &str, key: &str) -> Result<ServerConfig, UsageError> {
    let wrong = |field: &str, path: &str, why: String| {
        UsageError::new(field, path, format!("a PEM file ({why})"))
    };
    let bytes = |field: &str, path: &str| {
        fs::read(path).map_err(|error| wrong(field, path, error.to_string()))
    };
    let pem = bytes("tls-certificate", certificate)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let chain = chain.map_err(|error| wrong("tls-certificate", certificate, error.to_string()))?;
    let secret = PrivateKeyDer::from_pem_slice(&bytes("tls-key", key)?)
        .map_err(|error| wrong("tls-key", key, error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, secret))
        .map_err(|error| wrong("tls-certificate", certificate, error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
