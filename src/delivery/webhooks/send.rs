use std::{
    error::Error,
    ops::RangeInclusive,
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response,
    header::{CONTENT_TYPE, USER_AGENT},
};
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use tokio::time::{Instant, timeout, timeout_at};

use super::{DeliveryFailure, DeliveryOutcome, MessageId, Signer, UserHeaders};
use crate::{
    classify::{Classify, Rules, Standard, network},
    delivery::guard::{Forbidden, Guard, GuardedConnector, Resolve, Target},
    error::{ConfigError, find},
    http::read::read_whole,
};

const TIMEOUT: Duration = Duration::from_secs(15);
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

/// The part of a reply's body that is read, so that its connection can be reused.
const BODY_LIMIT: usize = 16 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(1);
const HEAD_LIMIT: usize = 32 * 1024;

const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_IDLE: usize = 2;

/// A message and its target.
#[derive(Clone)]
#[must_use]
pub struct Delivery {
    target: Target,
    id: MessageId,
    body: Bytes,
    content_type: HeaderValue,
    headers: UserHeaders,
}

impl Delivery {
    /// Creates a message in JSON.
    pub fn new(target: Target, id: MessageId, body: impl Into<Bytes>) -> Self {
        Self {
            target,
            id,
            body: body.into(),
            content_type: HeaderValue::from_static("application/json"),
            headers: UserHeaders::default(),
        }
    }

    /// Sets the type of the body, `application/json` by default.
    ///
    /// # Errors
    ///
    /// The text is not 1 to 255 visible ASCII characters and spaces.
    pub fn content_type(mut self, content_type: &str) -> Result<Self, ConfigError> {
        self.content_type = self::content_type(content_type)?;
        Ok(self)
    }

    /// Adds headers.
    pub fn headers(mut self, headers: UserHeaders) -> Self {
        self.headers = headers;
        self
    }

    /// Returns the target.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Returns the id that the receiver sees.
    #[must_use]
    pub fn id(&self) -> &MessageId {
        &self.id
    }

    /// Builds the request, signed at the current time.
    fn request(&self, signer: &Signer) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.target.uri().clone();
        let headers = request.headers_mut();
        self.headers.apply(headers);
        headers.insert(CONTENT_TYPE, self.content_type.clone());
        headers.entry(USER_AGENT).or_insert(AGENT);
        let signed = signer.sign(&self.id, SystemTime::now(), &self.body);
        signed.apply(headers);
        request
    }
}

/// Checks the type of a body.
pub(super) fn content_type(text: &str) -> Result<HeaderValue, ConfigError> {
    let visible = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    match HeaderValue::from_str(text) {
        Ok(value) if visible && (1..=255).contains(&text.len()) => Ok(value),
        _ => {
            let shown: String = text.chars().take(64).collect();
            Err(ConfigError::new(
                None,
                "webhook.content_type",
                format_args!("{shown:?}"),
                "1 to 255 visible ASCII characters and spaces",
            ))
        }
    }
}

const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("tower-reprise/", env!("CARGO_PKG_VERSION")));

opaque_debug! {
    Delivery, self, target = self.target, id = self.id.as_str(), bytes = self.body.len()
}

type Connector = HttpsConnector<GuardedConnector>;

/// Sends a message once per call.
///
/// It uses HTTP/1.1, follows no redirect, uses no proxy, and keeps of a reply only its status and its
/// `Retry-After`.
///
/// # Clone
///
/// Clones share their connections.
#[derive(Clone)]
pub struct Sender {
    client: Client<Connector, Full<Bytes>>,
    timeout: Duration,
    rules: Arc<Rules>,
    #[cfg(test)]
    pub(super) script: Option<Script>,
}

/// Takes the place of the network.
#[cfg(test)]
pub(super) type Script = Arc<
    dyn Fn(Delivery) -> std::pin::Pin<Box<dyn Future<Output = DeliveryOutcome> + Send>>
        + Send
        + Sync,
>;

impl Sender {
    /// Returns a builder for a sender to targets that this guard allows.
    pub fn builder(guard: Guard) -> SenderBuilder {
        SenderBuilder {
            connector: GuardedConnector::new(guard),
            connect_timeout: None,
            tls: None,
            timeout: TIMEOUT,
        }
    }

    /// Returns the timeout of a delivery.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends a message once.
    pub async fn send(&self, delivery: &Delivery, signer: &Signer) -> DeliveryOutcome {
        #[cfg(test)]
        if let Some(script) = &self.script {
            return script(delivery.clone()).await;
        }
        let until = Instant::now() + self.timeout;
        let sending = self.client.request(delivery.request(signer));
        let response = match timeout_at(until, sending).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) if find::<Forbidden>(&error).is_some() => {
                return DeliveryOutcome::Failed(DeliveryFailure::forbidden());
            }
            Ok(Err(error)) => return self.failed(&error),
            Err(elapsed) => return self.failed(&elapsed),
        };
        let (parts, body) = response.into_parts();
        let outcome = self.classify(&Response::from_parts(parts, ()));
        // Read for the connection's sake and dropped: the user who named the target must not learn
        // what answers there.
        let body = pin!(body);
        let left = until.saturating_duration_since(Instant::now());
        let reading = read_whole(body, BODY_LIMIT);
        let _ = timeout(left.min(BODY_TIMEOUT), reading).await;
        outcome
    }

    fn failed(&self, error: &(dyn Error + 'static)) -> DeliveryOutcome {
        DeliveryOutcome::Failed(DeliveryFailure::of(network::classify(&self.rules, error)))
    }

    fn classify(&self, head: &Response<()>) -> DeliveryOutcome {
        let status = head.status();
        if status.is_success() {
            return DeliveryOutcome::Delivered(status);
        }
        DeliveryOutcome::Failed(match status.is_client_error() || status.is_server_error() {
            true => {
                let verdict =
                    Classify::<Request<()>, _>::classify(&Standard, &self.rules, Ok(head));
                DeliveryFailure::of(verdict)
            }
            false => DeliveryFailure::unfollowed(status),
        })
    }
}

opaque_debug! { Sender, self, timeout = self.timeout }

/// Builds a [`Sender`].
#[must_use]
pub struct SenderBuilder {
    connector: GuardedConnector,
    connect_timeout: Option<Duration>,
    tls: Option<ClientConfig>,
    timeout: Duration,
}

impl SenderBuilder {
    /// Sets the resolver of names, the operating system's by default.
    pub fn resolver(mut self, resolver: impl Resolve) -> Self {
        self.connector = self.connector.resolver(resolver);
        self
    }

    /// Sets the timeout of resolving and connecting: 5 s by default, at most a minute.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Sets the timeout of a delivery, from resolving the name to the head of the reply: 15 s by
    /// default, 100 ms to a minute.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the TLS configuration. By default receivers need a certificate by one of Mozilla's
    /// authorities, which are compiled in. ALPN protocols are ignored: the sender uses HTTP/1.1.
    pub fn tls(mut self, config: ClientConfig) -> Self {
        self.tls = Some(config);
        self
    }

    /// Builds the sender.
    ///
    /// # Errors
    ///
    /// A setting is not allowed.
    pub fn build(self) -> Result<Sender, ConfigError> {
        let allowed = "100 ms to 60 s";
        ConfigError::within("sender.timeout", self.timeout, TIMEOUTS, allowed)?;
        let connector = match self.connect_timeout {
            Some(timeout) => self.connector.timeout(timeout)?,
            None => self.connector,
        };
        let mut tls = match self.tls {
            Some(config) => config,
            None => mozilla()?,
        };
        tls.alpn_protocols.clear();
        // The guard decides about `http`.
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(MAX_IDLE)
            .http1_max_buf_size(HEAD_LIMIT)
            .build(connector);
        Ok(Sender {
            client,
            timeout: self.timeout,
            rules: Arc::new(Rules::standard()),
            #[cfg(test)]
            script: None,
        })
    }
}

opaque_debug! { SenderBuilder, self, connector = self.connector, timeout = self.timeout }

fn mozilla() -> Result<ClientConfig, ConfigError> {
    let roots = RootCertStore {
        roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
    };
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| ConfigError::new(None, "sender.tls", "", error.to_string()))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
