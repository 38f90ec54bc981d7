//! Upgrades, such as WebSocket: once the upstream agrees, bytes pass both ways as they come.
//!
//! A tunnel is one call that can't be repeated, so it passes the layers by: none opens while the
//! upstream's breaker is open or it has asked for time, and its reply has the policy's total time. Only
//! a GET opens one, as that of a WebSocket does: with any other method, and with an offer to go on in
//! HTTP/2, a request is a call like others, whose `Upgrade` is ignored.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::{
    body::Incoming,
    upgrade::{OnUpgrade, on},
};
use hyper_util::rt::TokioIo;
use tokio::{io::copy_bidirectional, sync::watch, time::timeout};
use tower_reprise::{Dependencies, delivery::replay::Maintenance, error::BoxError};

use super::{
    server::{Passed, refusal},
    upstream::Upstream,
};

/// The protocol that a request asks to change to.
pub(super) fn asked<B>(request: &Request<B>) -> Option<HeaderValue> {
    if request.method() != Method::GET {
        return None;
    }
    let headers = request.headers();
    let protocol = headers.get(header::UPGRADE)?;
    let options = headers.get_all(header::CONNECTION).iter();
    let options = options.filter_map(|value| value.to_str().ok());
    let mut options = options.flat_map(|value| value.split(','));
    let upgrade = options.any(|option| option.trim().eq_ignore_ascii_case("upgrade"));
    let is_http2 = protocol.as_bytes().eq_ignore_ascii_case(b"h2c");
    (upgrade && !is_http2).then(|| protocol.clone())
}

/// Marks a message as one that changes to a protocol.
pub(super) fn mark(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol);
}

#[derive(Clone)]
pub(crate) struct Tunnels {
    deps: Dependencies,
    maintenance: Option<Maintenance>,
    /// Each tunnel listens to it until it ends.
    open: watch::Sender<()>,
}

impl Tunnels {
    pub(crate) fn new(deps: Dependencies) -> Self {
        Self {
            deps,
            maintenance: None,
            open: watch::channel(()).0,
        }
    }

    /// Opens none while maintenance is on.
    pub(crate) fn pausing_for(self, maintenance: &Maintenance) -> Self {
        Self {
            maintenance: Some(maintenance.clone()),
            ..self
        }
    }

    pub(super) fn may_open(&self) -> bool {
        !self.maintenance.as_ref().is_some_and(Maintenance::is_on)
    }

    /// Waits until all have ended.
    pub(crate) async fn ended(&self) {
        self.open.closed().await;
    }

    /// Asks the upstream, and joins both sides if it agrees. What comes with the caller is held until
    /// the tunnel ends.
    pub(super) async fn open(
        &self,
        upstream: &Upstream,
        (caller, connection): (OnUpgrade, impl Send + 'static),
        mut request: Request<Body>,
        protocol: HeaderValue,
    ) -> Result<Response<Incoming>, Unopened> {
        upstream.claim(&mut request)?;
        mark(request.headers_mut(), protocol);
        let endpoint = upstream.choose(&self.deps, None);
        let dependency = self.deps.get(&upstream.endpoints[endpoint].dependency);
        let hold = dependency.status().hold;
        if hold.is_some() || dependency.is_open() {
            return Err(Unopened::Refused(hold));
        }
        let asked = upstream.ask_to_upgrade(request, endpoint)?;
        let total = dependency.policy().total_timeout();
        let mut response = match timeout(total, asked).await {
            Ok(response) => response.map_err(BoxError::from)?,
            Err(_) => return Err(Unopened::Late),
        };
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        let upstream = on(&mut response);
        let held = (self.open.subscribe(), connection);
        tokio::spawn(async move {
            let _held = held;
            let (Ok(caller), Ok(upstream)) = tokio::join!(caller, upstream) else {
                return;
            };
            let (mut caller, mut upstream) = (TokioIo::new(caller), TokioIo::new(upstream));
            let _ = copy_bidirectional(&mut caller, &mut upstream).await;
        });
        Ok(response)
    }
}

/// The reason that there is no reply of the upstream to a request for a tunnel.
pub(super) enum Unopened {
    /// By its breaker, or for as long as it has asked for.
    Refused(Option<Duration>),
    Late,
    Failed(BoxError),
}

impl From<BoxError> for Unopened {
    fn from(error: BoxError) -> Self {
        Self::Failed(error)
    }
}

impl Unopened {
    pub(super) fn refusal<R: From<Bytes>>(self) -> Response<Passed<R>> {
        match self {
            Self::Refused(hold) => {
                let detail = "The upstream is not asked at the moment.";
                let mut response = refusal(StatusCode::SERVICE_UNAVAILABLE, detail);
                if let Some(hold) = hold {
                    let seconds = hold.as_secs() + u64::from(hold.subsec_nanos() > 0);
                    let headers = response.headers_mut();
                    headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
                }
                response
            }
            Self::Late => {
                let detail = "The upstream did not answer in time.";
                refusal(StatusCode::GATEWAY_TIMEOUT, detail)
            }
            Self::Failed(error) => {
                tracing::debug!(%error, "no tunnel to the upstream");
                refusal(StatusCode::BAD_GATEWAY, "The upstream can't be reached.")
            }
        }
    }
}
