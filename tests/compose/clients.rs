//! On hyper-util's and reqwest's clients.

use std::net::SocketAddr;

use axum::{Router, routing::post};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tower::{
    Layer, Service, ServiceExt, limit::ConcurrencyLimitLayer, load_shed::LoadShedLayer,
    util::MapResponse,
};
use tower_http::{
    catch_panic::CatchPanicLayer, decompression::DecompressionLayer,
    follow_redirect::FollowRedirectLayer, map_request_body::MapRequestBodyLayer,
    map_response_body::MapResponseBodyLayer, sensitive_headers::SetSensitiveHeadersLayer,
    timeout::ResponseBodyTimeoutLayer, trace::TraceLayer,
};
use tower_reprise::{
    CircuitBreakerLayer, HedgeLayer, IdempotencyKeyLayer, PeekLayer, RetryAfterLayer,
    RetryBudgetLayer, RetryLayer,
    error::BoxError,
    stacks::{self, reqwest::HttpClient},
};

use crate::{
    layers::*,
    table::{Call, Table, pairs},
};

/// A server that echoes, for as long as the test runs.
async fn echo() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/", post(async |body: Bytes| body));
    tokio::spawn(async { axum::serve(listener, app).await });
    address
}

/// Calls `client`, which sends requests of body `B`.
fn call<S, B, R>(client: S, body: fn(Bytes) -> B) -> Call
where
    S: Service<Request<B>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: 'static,
    R: http_body::Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    Box::pin(async move {
        let uri = format!("http://{}/", echo().await);
        let response = client.oneshot(signed(&uri, b"text", body)).await;
        let response = response.map_err(|error| error.into().to_string())?;
        expect_ok(response.status())?;
        let body = response.into_body().collect().await;
        match body.map_err(|error| error.into().to_string())?.to_bytes() == "text" {
            true => Ok(()),
            false => Err("another body".to_owned()),
        }
    })
}

type Hyper = Client<HttpConnector, Full<Bytes>>;

fn hyper<L, R>(layer: L) -> Call
where
    L: Layer<Hyper>,
    L::Service: Service<Request<Full<Bytes>>, Response = Response<R>> + Send + 'static,
    <L::Service as Service<Request<Full<Bytes>>>>::Future: Send,
    <L::Service as Service<Request<Full<Bytes>>>>::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    let client = Client::builder(TokioExecutor::new()).build_http();
    call(layer.layer(client), Full::new)
}

type Reqwest = MapResponse<HttpClient, fn(reqwest::Response) -> Response<reqwest::Body>>;

/// With replies as tower-http knows them.
fn reqwest<L, R>(layer: L) -> Call
where
    L: Layer<Reqwest>,
    L::Service: Service<Request<reqwest::Body>, Response = Response<R>> + Send + 'static,
    <L::Service as Service<Request<reqwest::Body>>>::Future: Send,
    <L::Service as Service<Request<reqwest::Body>>>::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = HttpClient::new(reqwest::Client::new());
    let into_http: fn(reqwest::Response) -> _ = Response::from;
    call(
        layer.layer(client.map_response(into_http)),
        reqwest::Body::from,
    )
}

macro_rules! client_pairs {
    ($call:path, $body:ty) => {
        pairs!($call;
            [
                "our stack": stacks::client(deps()),
                "our idempotency key": IdempotencyKeyLayer::new(),
                "our retry budget": RetryBudgetLayer::new(deps()),
                "our retry": RetryLayer::new(deps()),
                "our retry after": RetryAfterLayer::new(deps()),
                "our circuit breaker": CircuitBreakerLayer::new(deps()),
                "our hedge": HedgeLayer::new(deps()),
                "our peek": PeekLayer::new(deps()),
            ]
            [
                "add authorization": authorization(),
                "catch panic": CatchPanicLayer::new(),
                "decompression": DecompressionLayer::new(),
                "follow redirect": FollowRedirectLayer::new(),
                "map request body": MapRequestBodyLayer::new(<$body>::from),
                "map response body": MapResponseBodyLayer::new(BodyExt::boxed_unsync),
                "in-flight requests": in_flight(),
                "set request id": request_id(),
                "sensitive headers": SetSensitiveHeadersLayer::new([http::header::COOKIE]),
                "set request header": request_header(),
                "set response header": response_header(),
                "response body timeout": ResponseBodyTimeoutLayer::new(MINUTE),
                "trace": TraceLayer::new_for_http(),
                "concurrency limit": ConcurrencyLimitLayer::new(1),
                "load shed": LoadShedLayer::new(),
                "tower's timeout": tower::timeout::TimeoutLayer::new(MINUTE),
            ]
        )
    };
}

#[tokio::test]
async fn every_pair_goes_onto_a_hyper_client() {
    Table::of("hyper client", client_pairs!(hyper, Full<Bytes>))
        .await
        .check();
}

#[tokio::test]
async fn every_pair_goes_onto_a_reqwest_client() {
    Table::of("reqwest client", client_pairs!(reqwest, reqwest::Body))
        .await
        .check();
}
