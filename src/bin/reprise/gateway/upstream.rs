//! An upstream: its endpoints, its client, and what is changed of a request for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::body::Body;
use http::{
    HeaderValue, Request, Uri, Version,
    header::{AUTHORIZATION, HOST, InvalidHeaderValue},
    uri::{Authority, Parts, PathAndQuery, Scheme},
};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{
    client::legacy::{Client, ResponseFuture, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use tokio::net::TcpStream;
use tower_reprise::{Dependencies, delivery::replay::Replayed, error::BoxError};

use super::{
    cores,
    dial::{Dial, short_authority},
    routes::{Misses, leaves},
    traffic::Tally,
};

/// The longest path with its query that there is.
const LONGEST: usize = u16::MAX as usize - 1;
/// The most endpoints of an upstream: those that a call has tried are bits of a word.
pub(crate) const MOST_ENDPOINTS: usize = 64;

/// The time after which a connection without a word is asked whether the upstream is still there: all
/// calls of an HTTP/2 connection wait for a dead one.
const ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// The time that the answer may take.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) type Calls = Client<Dial, Body>;

/// The settings of one upstream. Upstreams with equal ones are the same after a reload.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct UpstreamSettings {
    pub(crate) name: Box<str>,
    /// It was named in a file, rather than made of `--upstream`.
    pub(crate) is_named: bool,
    pub(crate) endpoints: Vec<Uri>,
    pub(crate) http2: bool,
    pub(crate) roots: Option<Roots>,
    pub(crate) connect_timeout: Duration,
    pub(crate) preserve_host: bool,
    pub(crate) replay_authorization: Option<HeaderValue>,
}

impl UpstreamSettings {
    /// Returns the names of its endpoints in the registry: its own if there is one.
    pub(crate) fn endpoint_names(&self) -> Vec<Arc<str>> {
        let single = self.endpoints.len() == 1;
        let name = |uri: &Uri| -> Arc<str> {
            let authority = uri.authority().map_or("", Authority::as_str);
            match single {
                true => (*self.name).into(),
                false => format!("{}/{authority}", self.name)
                    .to_ascii_lowercase()
                    .into(),
            }
        };
        self.endpoints.iter().map(name).collect()
    }
}

/// Authorities that are trusted instead of Mozilla's.
#[derive(Debug, Clone)]
pub(crate) struct Roots(pub(crate) Arc<RootCertStore>);

impl PartialEq for Roots {
    fn eq(&self, other: &Self) -> bool {
        self.0.roots == other.0.roots
    }
}

#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) settings: UpstreamSettings,
    /// The authority of requests on their way to it: its name.
    authority: Authority,
    pub(crate) endpoints: Box<[Endpoint]>,
    /// One for each thread that serves connections, and one for the others: connections are made and
    /// used by the same thread.
    clients: Box<[Calls]>,
    /// For upgrades, which HTTP/1.1 alone has. It keeps no connections.
    upgrades: Calls,
    /// The number of attempts that took turns at the endpoints.
    turns: AtomicUsize,
    /// Callers' requests.
    pub(crate) calls: Tally,
}

/// A server of an upstream.
#[derive(Debug)]
pub(crate) struct Endpoint {
    scheme: Scheme,
    authority: Authority,
    /// Its authority in the pool of connections.
    pooled: Authority,
    /// The `Host` of HTTP/1: the authority without the scheme's own port, as the client would format it
    /// for each request.
    host: HeaderValue,
    /// Its base path, without a slash at its end.
    prefix: Box<str>,
    /// The name of its breaker and gate.
    pub(crate) dependency: Arc<str>,
    /// Attempts, retries and replays included.
    pub(crate) attempts: Tally,
}

/// On a request: the endpoints that its call has tried.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tried(Arc<AtomicU64>);

impl Upstream {
    pub(crate) fn new(settings: UpstreamSettings) -> Result<Self, BoxError> {
        let endpoint =
            |(number, (uri, dependency)): (usize, (&Uri, Arc<str>))| -> Result<Endpoint, BoxError> {
                let parts = uri.clone().into_parts();
                let path = parts.path_and_query.as_ref().map_or("", PathAndQuery::path);
                let scheme = parts.scheme.ok_or("the upstream has no scheme")?;
                let authority = parts.authority.ok_or("the upstream has no host")?;
                let is_http1 = scheme == Scheme::HTTP && !settings.http2;
                Ok(Endpoint {
                    pooled: match is_http1 {
                        true => short_authority(number)?,
                        false => authority.clone(),
                    },
                    host: host_of(&scheme, &authority)?,
                    scheme,
                    prefix: path.trim_end_matches('/').into(),
                    authority,
                    dependency,
                    attempts: Tally::default(),
                })
            };
        let names = settings.endpoint_names();
        let endpoints = settings
            .endpoints
            .iter()
            .zip(names)
            .enumerate()
            .map(endpoint);
        let endpoints: Result<Box<[_]>, _> = endpoints.collect();
        Ok(Self {
            authority: settings.name.parse()?,
            endpoints: endpoints?,
            clients: clients(&settings)?,
            upgrades: upgrades(&settings)?,
            turns: AtomicUsize::new(0),
            calls: Tally::default(),
            settings,
        })
    }

    /// Returns its name in the registry.
    pub(crate) fn name(&self) -> &str {
        &self.settings.name
    }

    /// Returns the names that its endpoints have besides its own.
    pub(crate) fn names_of_endpoints(&self) -> impl Iterator<Item = &str> {
        let names = self.endpoints.iter().map(|endpoint| &*endpoint.dependency);
        names.filter(|name| *name != self.name())
    }

    /// Whether something listens at one of its endpoints.
    pub(crate) async fn is_there(&self) -> bool {
        for endpoint in &self.endpoints {
            let port = match endpoint.scheme == Scheme::HTTPS {
                true => 443,
                false => 80,
            };
            let port = endpoint.authority.port_u16().unwrap_or(port);
            let host = endpoint.authority.host().trim_matches(['[', ']']);
            if TcpStream::connect((host, port)).await.is_ok() {
                return true;
            }
        }
        false
    }

    /// Whether a request can be sent to where all paths are.
    pub(crate) fn takes(&self, uri: &Uri) -> Result<(), Misses> {
        let path = uri.path_and_query().map_or("", PathAndQuery::as_str);
        let longest = self.endpoints.iter().map(|endpoint| endpoint.prefix.len());
        match longest.max().unwrap_or_default() {
            0 => Ok(()),
            prefix if prefix + path.len() > LONGEST => Err(Misses::TooLong),
            _ if leaves(uri.path()) => Err(Misses::Outside),
            _ => Ok(()),
        }
    }

    /// Makes a request one for this upstream, which is known by its authority from here on.
    pub(crate) fn claim(&self, request: &mut Request<Body>) -> Result<(), BoxError> {
        let path = request.uri().path_and_query().cloned();
        let path = path.unwrap_or(PathAndQuery::from_static("/"));
        *request.uri_mut() = uri(Scheme::HTTP, self.authority.clone(), path)?;
        *request.version_mut() = Version::HTTP_11;
        if !self.settings.preserve_host {
            request.headers_mut().remove(HOST);
        }
        let replayed = request.extensions().get::<Replayed>().is_some();
        let authorization = self.settings.replay_authorization.as_ref();
        if let Some(value) = authorization.filter(|_| replayed) {
            request.headers_mut().insert(AUTHORIZATION, value.clone());
        }
        if self.endpoints.len() > 1 {
            request.extensions_mut().insert(Tried::default());
        }
        Ok(())
    }

    /// Chooses an endpoint for an attempt: by turns, one that its call has not tried, and whose
    /// breaker is not open, if there is one.
    pub(crate) fn choose(&self, deps: &Dependencies, tried: Option<&Tried>) -> usize {
        let count = self.endpoints.len();
        if count == 1 {
            return 0;
        }
        let before = tried.map_or(0, |tried| tried.0.load(Ordering::Relaxed));
        let first = self.turns.fetch_add(1, Ordering::Relaxed);
        let all = (0..count).map(|step| (first.wrapping_add(step)) % count);
        let rank = |index: &usize| {
            let refuses = deps.get(&self.endpoints[*index].dependency).is_open();
            (refuses, before & (1 << index) != 0)
        };
        let chosen = all.min_by_key(rank).unwrap_or_default();
        if let Some(tried) = tried {
            tried.0.fetch_or(1 << chosen, Ordering::Relaxed);
        }
        chosen
    }

    /// Sends a request to one of its endpoints.
    pub(crate) fn send(
        &self,
        request: Request<Body>,
        endpoint: usize,
    ) -> Result<ResponseFuture, BoxError> {
        let is_http1 = !self.settings.http2 && self.endpoints[endpoint].scheme == Scheme::HTTP;
        let request = self.for_endpoint(request, endpoint, is_http1)?;
        Ok(self.clients[cores::number()].request(request))
    }

    /// Sends a request to change the protocol.
    pub(crate) fn ask_to_upgrade(
        &self,
        request: Request<Body>,
        endpoint: usize,
    ) -> Result<ResponseFuture, BoxError> {
        let request = self.for_endpoint(request, endpoint, true)?;
        Ok(self.upgrades.request(request))
    }

    fn for_endpoint(
        &self,
        mut request: Request<Body>,
        endpoint: usize,
        is_http1: bool,
    ) -> Result<Request<Body>, BoxError> {
        let endpoint = &self.endpoints[endpoint];
        let path = request.uri().path_and_query().cloned();
        let path = path.unwrap_or(PathAndQuery::from_static("/"));
        let path = match (&*endpoint.prefix, path.as_str()) {
            ("", _) => path,
            // The whole of what is there.
            (prefix, "*") => prefix.parse()?,
            (prefix, path) => format!("{prefix}{path}").parse()?,
        };
        let (scheme, authority) = (endpoint.scheme.clone(), endpoint.pooled.clone());
        // With TLS it may become HTTP/2, which has an authority instead.
        if is_http1 {
            let headers = request.headers_mut();
            if !self.settings.preserve_host || !headers.contains_key(HOST) {
                headers.insert(HOST, endpoint.host.clone());
            }
        }
        *request.uri_mut() = uri(scheme, authority, path)?;
        Ok(request)
    }
}

fn host_of(scheme: &Scheme, authority: &Authority) -> Result<HeaderValue, InvalidHeaderValue> {
    let own = if *scheme == Scheme::HTTPS { 443 } else { 80 };
    HeaderValue::from_str(match authority.port_u16() {
        Some(port) if port != own => authority.as_str(),
        _ => authority.host(),
    })
}

fn uri(scheme: Scheme, authority: Authority, path: PathAndQuery) -> Result<Uri, BoxError> {
    let mut parts = Parts::default();
    (parts.scheme, parts.authority) = (Some(scheme), Some(authority));
    parts.path_and_query = Some(path);
    Ok(Uri::from_parts(parts)?)
}

/// Clients for http and https, as HTTP/1.1 or HTTP/2.
fn clients(settings: &UpstreamSettings) -> Result<Box<[Calls]>, BoxError> {
    // An HTTP/2 request has an authority, which is the connection's, and no host to preserve.
    let connector = connector(settings, !settings.preserve_host)?;
    let client = |_| {
        Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .http2_only(settings.http2)
            .timer(TokioTimer::new())
            .http2_keep_alive_interval(ALIVE_INTERVAL)
            .http2_keep_alive_timeout(ALIVE_TIMEOUT)
            .build(connector.clone())
    };
    Ok((0..=cores::count()).map(client).collect())
}

/// A client that speaks HTTP/1.1 whatever a server offers.
fn upgrades(settings: &UpstreamSettings) -> Result<Calls, BoxError> {
    let connector = connector(settings, false)?;
    let mut client = Client::builder(TokioExecutor::new());
    Ok(client.pool_max_idle_per_host(0).build(connector))
}

fn connector(settings: &UpstreamSettings, offers_http2: bool) -> Result<Dial, BoxError> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(settings.connect_timeout));
    tcp.set_keepalive(Some(ALIVE_INTERVAL));
    tcp.set_keepalive_interval(Some(ALIVE_TIMEOUT));
    tcp.set_keepalive_retries(Some(3));
    let roots = match &settings.roots {
        Some(Roots(roots)) => Arc::clone(roots),
        None => Arc::new(RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
        }),
    };
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http();
    let connector = match offers_http2 {
        true => connector.enable_all_versions().wrap_connector(tcp),
        false => connector.enable_http1().wrap_connector(tcp),
    };
    // With HTTP/2 requests hold the authority.
    let numbered = if settings.http2 {
        &[][..]
    } else {
        &settings.endpoints
    };
    Ok(Dial::new(connector, numbered))
}
