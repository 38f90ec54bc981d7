//! On an axum router.

use axum::{
    Router,
    body::Body,
    response::IntoResponse,
    routing::{Route, post},
};
use http::Request;
use http_body_util::BodyExt;
use std::convert::Infallible;
use tower::{Layer, Service, ServiceExt};
use tower_http::{
    add_extension::AddExtensionLayer,
    catch_panic::CatchPanicLayer,
    compression::CompressionLayer,
    cors::CorsLayer,
    decompression::{DecompressionLayer, RequestDecompressionLayer},
    limit::RequestBodyLimitLayer,
    map_request_body::MapRequestBodyLayer,
    map_response_body::MapResponseBodyLayer,
    normalize_path::NormalizePathLayer,
    request_id::PropagateRequestIdLayer,
    sensitive_headers::SetSensitiveHeadersLayer,
    timeout::{RequestBodyTimeoutLayer, ResponseBodyTimeoutLayer},
    trace::TraceLayer,
    validate_request::ValidateRequestHeaderLayer,
};
use tower_reprise::{ProblemLayer, forrst::guidance::RetryGuidanceLayer, http::BufferedBody};

use crate::{
    layers::*,
    table::{Call, Table, pairs},
};

fn call<L>(layer: L) -> Call
where
    L: Layer<Route> + Clone + Send + Sync + 'static,
    L::Service: Service<Request<Body>> + Clone + Send + Sync + 'static,
    <L::Service as Service<Request<Body>>>::Response: IntoResponse + 'static,
    <L::Service as Service<Request<Body>>>::Error: Into<Infallible> + 'static,
    <L::Service as Service<Request<Body>>>::Future: Send + 'static,
{
    let app = Router::new()
        .route("/", post(async |body: String| body))
        .layer(layer);
    Box::pin(async move {
        let response = app.oneshot(signed("/", b"text", Body::from)).await.unwrap();
        expect_ok(response.status())?;
        let body = response
            .into_body()
            .collect()
            .await
            .map_err(|e| e.to_string())?;
        match body.to_bytes() == "text" {
            true => Ok(()),
            false => Err("another body".to_owned()),
        }
    })
}

#[tokio::test]
async fn every_pair_goes_onto_a_router() {
    let theirs = pairs!(call;
        [
            "our inbound budget": inbound(),
            "our deadline": deadline(),
            "our problem": ProblemLayer::new(),
            "our idempotency": idempotency(),
            "our replay": replay(),
            "our webhook verify": verify(),
            "our retry guidance": RetryGuidanceLayer::new(),
        ]
        [
            "add extension": AddExtensionLayer::new(1u8),
            "add authorization": authorization(),
            "catch panic": CatchPanicLayer::new(),
            "compression": CompressionLayer::new(),
            "cors": CorsLayer::permissive(),
            "decompression": DecompressionLayer::new(),
            // Its body is none that we know: as the error says.
            "request decompression": (RequestDecompressionLayer::new(), MapRequestBodyLayer::new(BufferedBody::new)),
            "request body limit": RequestBodyLimitLayer::new(1 << 20),
            "map request body": MapRequestBodyLayer::new(Body::new),
            "map response body": MapResponseBodyLayer::new(Body::new),
            "in-flight requests": in_flight(),
            "normalize path": NormalizePathLayer::trim_trailing_slash(),
            "propagate header": propagate(),
            "propagate request id": PropagateRequestIdLayer::x_request_id(),
            "set request id": request_id(),
            "sensitive headers": SetSensitiveHeadersLayer::new([http::header::COOKIE]),
            "set request header": request_header(),
            "set response header": response_header(),
            "set status": status(),
            "timeout": timeout(),
            "request body timeout": RequestBodyTimeoutLayer::new(MINUTE),
            "response body timeout": ResponseBodyTimeoutLayer::new(MINUTE),
            "trace": TraceLayer::new_for_http(),
            "validate request": ValidateRequestHeaderLayer::accept("*/*"),
            "our inbound budget": inbound(),
            "our deadline": deadline(),
            "our problem": ProblemLayer::new(),
            "our idempotency": idempotency(),
            "our replay": replay(),
            "our webhook verify": verify(),
            "our retry guidance": RetryGuidanceLayer::new(),
        ]
    );
    Table::of("axum::Router", theirs).await.check();
}
