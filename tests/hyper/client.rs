//! Clients made of hyper, and their requests.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{
        self,
        connect::{Connect, HttpConnector},
    },
    rt::TokioExecutor,
};
use tower::{Layer, ServiceExt, util::BoxCloneService};
use tower_reprise::{
    Dependencies, RetryOutcome,
    call::{Cause, Health, Retryable, StopReason},
    error::BoxError,
};

use crate::support::{deps, layers, quick, verdict};

pub(crate) type Body = Full<Bytes>;
pub(crate) type Client<C = HttpConnector> = legacy::Client<C, Body>;
pub(crate) type Stack = BoxCloneService<Request<Body>, Response<Incoming>, BoxError>;

/// Attempts that stall are given up soon; the whole call has time enough.
pub(crate) fn impatient() -> Dependencies {
    deps(quick().attempt_timeout(Duration::from_millis(150)))
}

/// A client that connects anew for each attempt and repeats nothing by itself, so that what the
/// server sees is what the layers did.
pub(crate) fn over<C: Connect + Clone>(connector: C) -> Client<C> {
    legacy::Client::builder(TokioExecutor::new())
        .retry_canceled_requests(false)
        .pool_max_idle_per_host(0)
        .build(connector)
}

pub(crate) fn plain() -> Client {
    over(HttpConnector::new())
}

pub(crate) fn http2() -> Client {
    legacy::Client::builder(TokioExecutor::new())
        .http2_only(true)
        .retry_canceled_requests(false)
        .build(HttpConnector::new())
}

/// All five layers.
pub(crate) fn stack<C>(deps: &Dependencies, client: Client<C>) -> Stack
where
    C: Connect + Clone + Send + Sync + 'static,
{
    BoxCloneService::new(layers::all(deps).layer(client))
}

/// All but the one that stamps keys.
pub(crate) fn keyless<C>(deps: &Dependencies, client: Client<C>) -> Stack
where
    C: Connect + Clone + Send + Sync + 'static,
{
    BoxCloneService::new(layers::keyless(deps).layer(client))
}

/// Sends a request through all five layers, over HTTP/1.
pub(crate) async fn send(request: Request<Body>) -> Result<Response<Incoming>, BoxError> {
    stack(&deps(quick()), plain()).oneshot(request).await
}

/// The same without keys.
pub(crate) async fn send_keyless(request: Request<Body>) -> Result<Response<Incoming>, BoxError> {
    keyless(&deps(quick()), plain()).oneshot(request).await
}

pub(crate) fn get(uri: &str) -> Request<Body> {
    Request::get(uri).body(Body::default()).unwrap()
}

pub(crate) fn post(uri: &str) -> Request<Body> {
    Request::post(uri).body(Body::from("pay")).unwrap()
}

pub(crate) async fn text(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns the attempts of a response, and the reason that there were no more.
pub(crate) fn outcome<B>(response: &Response<B>) -> (u32, Option<StopReason>) {
    RetryOutcome::of(response).map_or((1, None), |o| (o.attempts(), o.stop_reason()))
}

/// The parts of a verdict on a network error.
pub(crate) fn parts(error: &BoxError) -> (Cause, Retryable, Health, bool) {
    let v = verdict(error);
    assert_eq!(v.guidance, None);
    (v.cause, v.retry, v.health, v.never_sent)
}
