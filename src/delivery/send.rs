use std::{
    fmt,
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
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

use super::{
    UserHeaders,
    guard::{Forbidden, Guard, GuardedConnector, Resolve, Target},
    outcome::{Failure, Outcome},
    sign::{MessageId, Signer},
};
use crate::{
    classify::{Classify, Rules, Standard, network},
    error::{ConfigError, find},
    http::read::read_whole,
};

const TIMEOUT: Duration = Duration::from_secs(15);
const LEAST_TIMEOUT: Duration = Duration::from_millis(100);
const MOST_TIMEOUT: Duration = Duration::from_secs(60);

/// How much of a reply is read, and for how long, so that its connection can be used again.
const REPLY_LIMIT: usize = 16 * 1024;
const REPLY_PATIENCE: Duration = Duration::from_secs(1);
/// The longest head of a reply.
const HEAD_LIMIT: usize = 32 * 1024;

const IDLE: Duration = Duration::from_secs(30);
const MOST_IDLE: usize = 2;

/// One message, and where it goes.
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
    /// A message of JSON.
    pub fn new(target: Target, id: MessageId, body: impl Into<Bytes>) -> Self {
        Self {
            target,
            id,
            body: body.into(),
            content_type: HeaderValue::from_static("application/json"),
            headers: UserHeaders::default(),
        }
    }

    /// What the body is, if not `application/json`.
    ///
    /// # Errors
    ///
    /// What can't be the value of a header.
    pub fn content_type(mut self, content_type: &str) -> Result<Self, ConfigError> {
        let fits = (1..=255).contains(&content_type.len());
        self.content_type = HeaderValue::from_str(content_type)
            .ok()
            .filter(|_| fits && content_type.bytes().all(|byte| matches!(byte, b' '..=b'~')))
            .ok_or_else(|| {
                let shown: String = content_type.chars().take(64).collect();
                ConfigError::new(
                    None,
                    "webhook.content_type",
                    format_args!("{shown:?}"),
                    "1 to 255 visible ASCII characters and spaces",
                )
            })?;
        Ok(self)
    }

    /// With these headers, too.
    pub fn headers(mut self, headers: UserHeaders) -> Self {
        self.headers = headers;
        self
    }

    /// Where it goes.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// By what its receiver knows it.
    #[must_use]
    pub fn id(&self) -> &MessageId {
        &self.id
    }

    /// Signed anew for each time that it is sent.
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

const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("tower-reprise/", env!("CARGO_PKG_VERSION")));

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("target", &self.target)
            .field("id", &self.id.as_str())
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

type Connector = HttpsConnector<GuardedConnector>;

/// Sends messages, each once per call.
///
/// It speaks HTTP/1.1, follows no redirect, uses no proxy, and keeps nothing of a reply but its
/// status and when to come back.
///
/// # Clone
///
/// Clones share their connections.
#[derive(Clone)]
pub struct Sender {
    client: Client<Connector, Full<Bytes>>,
    timeout: Duration,
    rules: Arc<Rules>,
}

impl Sender {
    /// Says how messages are sent, within what this guard allows.
    pub fn builder(guard: Guard) -> SenderBuilder {
        SenderBuilder {
            connector: GuardedConnector::new(guard),
            connect_timeout: None,
            tls: None,
            timeout: TIMEOUT,
        }
    }

    /// How long one delivery may take.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends a message once, and says how that ended.
    pub async fn send(&self, delivery: &Delivery, signer: &Signer) -> Outcome {
        let until = Instant::now() + self.timeout;
        let sending = self.client.request(delivery.request(signer));
        match timeout_at(until, sending).await {
            Err(elapsed) => {
                Outcome::Failed(Failure::error(network::classify(&self.rules, &elapsed)))
            }
            Ok(Err(error)) => Outcome::Failed(match find::<Forbidden>(&error) {
                Some(_) => Failure::forbidden(),
                None => Failure::error(network::classify(&self.rules, &error)),
            }),
            Ok(Ok(response)) => {
                let (parts, body) = response.into_parts();
                let head = Response::from_parts(parts, ());
                let outcome = self.judge(&head);
                // Nobody looks at it: what a target answers is not for whoever named the target.
                let left = until.saturating_duration_since(Instant::now());
                let body = pin!(body);
                let reading = read_whole(body, REPLY_LIMIT);
                let _ = timeout(left.min(REPLY_PATIENCE), reading).await;
                outcome
            }
        }
    }

    fn judge(&self, head: &Response<()>) -> Outcome {
        let status = head.status();
        if status.is_success() {
            return Outcome::Delivered(status);
        }
        Outcome::Failed(if is_error(status) {
            Failure::error(Classify::<Request<()>, _>::classify(
                &Standard,
                &self.rules,
                Ok(head),
            ))
        } else {
            Failure::unfollowed(status)
        })
    }
}

fn is_error(status: StatusCode) -> bool {
    status.is_client_error() || status.is_server_error()
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Builds a [`Sender`].
#[must_use]
pub struct SenderBuilder {
    connector: GuardedConnector,
    connect_timeout: Option<Duration>,
    tls: Option<ClientConfig>,
    timeout: Duration,
}

impl SenderBuilder {
    /// Resolves names by this resolver, rather than the operating system's.
    pub fn resolver(mut self, resolver: impl Resolve) -> Self {
        self.connector = self.connector.resolver(resolver);
        self
    }

    /// How long resolving and connecting may take: 5 s unless told otherwise, at most a minute.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// How long one delivery may take, from resolving the name to the head of the reply: 15 s
    /// unless told otherwise, 100 ms to a minute.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Whom to trust, and how to speak TLS. Unless told otherwise, receivers need a certificate by
    /// one of Mozilla's authorities, which are compiled in: the same on each machine, and nothing
    /// to load. Its ALPN protocols are left out, since HTTP/1.1 is what is spoken.
    pub fn tls(mut self, config: ClientConfig) -> Self {
        self.tls = Some(config);
        self
    }

    /// The sender.
    ///
    /// # Errors
    ///
    /// A setting that is not allowed.
    pub fn build(self) -> Result<Sender, ConfigError> {
        if !(LEAST_TIMEOUT..=MOST_TIMEOUT).contains(&self.timeout) {
            let value = format!("{:?}", self.timeout);
            let allowed = "100 ms to 60 s";
            return Err(ConfigError::new(None, "sender.timeout", value, allowed));
        }
        let connector = match self.connect_timeout {
            Some(timeout) => self.connector.timeout(timeout)?,
            None => self.connector,
        };
        let mut tls = match self.tls {
            Some(config) => config,
            None => mozilla()?,
        };
        tls.alpn_protocols.clear();
        // Whether http is allowed is the guard's to say.
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(MOST_IDLE)
            .http1_max_buf_size(HEAD_LIMIT)
            .build(connector);
        Ok(Sender {
            client,
            timeout: self.timeout,
            rules: Arc::new(Rules::standard()),
        })
    }
}

impl fmt::Debug for SenderBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SenderBuilder")
            .field("connector", &self.connector)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

fn mozilla() -> Result<ClientConfig, ConfigError> {
    let roots = RootCertStore {
        roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
    };
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| ConfigError::new(None, "sender.tls", "", error.to_string()))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
