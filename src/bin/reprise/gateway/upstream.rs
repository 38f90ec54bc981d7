//! The way to the upstream: a hyper client, and what is changed of a request for it.

use std::{error::Error, fmt, fs, sync::Arc, time::Duration};

use axum::body::Body;
use http::{
    HeaderValue, Request, StatusCode, Uri, Version,
    header::{AUTHORIZATION, HOST},
    uri::{Authority, PathAndQuery, Scheme},
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};
use tokio::net::TcpStream;
use tower_reprise::{delivery::replay::Replayed, error::BoxError};

use super::settings::Settings;
use crate::usage_error::UsageError;

/// The longest path with its query that there is.
const LONGEST: usize = u16::MAX as usize - 1;

pub(crate) type Calls = Client<HttpsConnector<HttpConnector>, Body>;

/// A client for http and https, as HTTP/1.1 or HTTP/2.
pub(crate) fn client(settings: &Settings) -> Result<Calls, BoxError> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(settings.connect_timeout));
    let roots = match &settings.upstream_ca {
        Some(path) => authorities(path)?,
        None => RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
        },
    };
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_all_versions()
        .wrap_connector(tcp);
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(30))
        .http2_only(settings.upstream_http2)
        .build(connector))
}

fn authorities(path: &str) -> Result<RootCertStore, BoxError> {
    let wrong = |why: String| UsageError::new("upstream-ca", path, format!("a PEM file ({why})"));
    let pem = fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| wrong(error.to_string()))?;
    }
    match roots.is_empty() {
        false => Ok(roots),
        true => Err(wrong("it holds no certificate".to_owned()).into()),
    }
}

/// Turns requests for the gateway into requests for the upstream.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    scheme: Scheme,
    authority: Authority,
    /// The upstream's base path, without a slash at its end.
    prefix: Arc<str>,
    preserve_host: bool,
    replay_authorization: Option<HeaderValue>,
}

impl Target {
    pub(crate) fn new(settings: &Settings) -> Result<Self, BoxError> {
        let uri = settings.upstream.clone().into_parts();
        let path = uri.path_and_query.as_ref().map_or("", PathAndQuery::path);
        Ok(Self {
            prefix: path.trim_end_matches('/').into(),
            scheme: uri.scheme.ok_or("the upstream has no scheme")?,
            authority: uri.authority.ok_or("the upstream has no host")?,
            preserve_host: settings.preserve_host,
            replay_authorization: settings.replay_authorization.clone(),
        })
    }

    /// Returns the upstream's name in the registry.
    pub(crate) fn name(&self) -> &str {
        self.authority.as_str()
    }

    /// Whether something listens there.
    pub(crate) async fn is_there(&self) -> bool {
        let port = match self.scheme == Scheme::HTTPS {
            true => 443,
            false => 80,
        };
        let port = self.authority.port_u16().unwrap_or(port);
        let host = self.authority.host().trim_matches(['[', ']']);
        TcpStream::connect((host, port)).await.is_ok()
    }

    /// Whether a request can be sent to where all paths are.
    pub(crate) fn takes(&self, uri: &Uri) -> Result<(), Misses> {
        let path = uri.path_and_query().map_or("", PathAndQuery::as_str);
        match &*self.prefix {
            "" => Ok(()),
            prefix if prefix.len() + path.len() > LONGEST => Err(Misses::TooLong),
            _ if leaves(uri.path()) => Err(Misses::Outside),
            _ => Ok(()),
        }
    }

    /// Makes a request one for the upstream, or refuses it: it goes nowhere else.
    pub(crate) fn aim(&self, mut request: Request<Body>) -> Result<Request<Body>, BoxError> {
        self.takes(request.uri())?;
        let path = request.uri().path_and_query().cloned();
        let path = path.unwrap_or(PathAndQuery::from_static("/"));
        let path = match (&*self.prefix, path.as_str()) {
            ("", _) => path,
            // The whole of what is there.
            (prefix, "*") => prefix.parse()?,
            (prefix, path) => format!("{prefix}{path}").parse()?,
        };
        *request.uri_mut() = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path)
            .build()?;
        *request.version_mut() = Version::HTTP_11;
        if !self.preserve_host {
            request.headers_mut().remove(HOST);
        }
        let replayed = request.extensions().get::<Replayed>().is_some();
        if let Some(value) = self.replay_authorization.clone().filter(|_| replayed) {
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        Ok(request)
    }
}

/// Why a request can't be sent to the upstream.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Misses {
    TooLong,
    Outside,
}

impl Misses {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::TooLong => StatusCode::URI_TOO_LONG,
            Self::Outside => StatusCode::BAD_REQUEST,
        }
    }
}

impl fmt::Display for Misses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "The path is longer than can be sent to the upstream.",
            Self::Outside => "The path leads out of what is served here.",
        })
    }
}

impl Error for Misses {}

/// Whether a path leads above where it starts, as servers read it that are kind to their callers.
fn leaves(path: &str) -> bool {
    if !path.contains("..") && !path.contains('%') {
        return false;
    }
    let path = path.to_ascii_lowercase().replace("%2e", ".");
    let path = path.replace("%2f", "/").replace("%5c", "/");
    let mut depth = 0_usize;
    for part in path.split(['/', '\\']) {
        // Parameters after `;` belong to the segment, and not to its name.
        let name = part.split(';').next().unwrap_or_default();
        depth = match name {
            "" | "." => depth,
            ".." if depth == 0 => return true,
            ".." => depth - 1,
            _ => depth + 1,
        };
    }
    false
}
