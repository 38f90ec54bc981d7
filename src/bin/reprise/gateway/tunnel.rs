//! Upgrades, such as WebSocket: once the upstream agrees, bytes pass both ways as they come.
//!
//! A tunnel is one call that can't be repeated, so it passes the layers by. Only a GET opens one, as
//! that of a WebSocket does: with any other method, and with an offer to go on in HTTP/2, a request is a
//! call like others, whose `Upgrade` is ignored.

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::upgrade::{OnUpgrade, on};
use hyper_util::rt::TokioIo;
use tokio::{io::copy_bidirectional, sync::watch};
use tower_reprise::{Dependencies, delivery::replay::Maintenance, error::BoxError};

use super::upstream::Upstream;

/// The most of a reply that refuses an upgrade.
const REFUSAL: usize = 1 << 20;

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

    /// Asks the upstream, and joins both sides if it agrees.
    pub(super) async fn open<R: From<Bytes>>(
        &self,
        upstream: &Upstream,
        caller: OnUpgrade,
        mut request: Request<Body>,
        protocol: HeaderValue,
    ) -> Result<Response<R>, BoxError> {
        upstream.claim(&mut request)?;
        mark(request.headers_mut(), protocol);
        let endpoint = upstream.choose(&self.deps, None);
        let mut response = upstream.send(request, endpoint)?.await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let (head, body) = response.into_parts();
            let body = Limited::new(body, REFUSAL).collect().await?.to_bytes();
            return Ok(Response::from_parts(head, R::from(body)));
        }
        let upstream = on(&mut response);
        let held = self.open.subscribe();
        tokio::spawn(async move {
            let _held = held;
            let (Ok(caller), Ok(upstream)) = tokio::join!(caller, upstream) else {
                return;
            };
            let (mut caller, mut upstream) = (TokioIo::new(caller), TokioIo::new(upstream));
            let _ = copy_bidirectional(&mut caller, &mut upstream).await;
        });
        let (head, _) = response.into_parts();
        Ok(Response::from_parts(head, R::from(Bytes::new())))
    }
}
