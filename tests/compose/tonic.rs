//! On a tonic server, and on its channel under a generated client.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use tokio_stream::empty;
use tonic::{Status, body::Body, service::Routes, transport::Server};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimitLayer, load_shed::LoadShedLayer};
use tower_http::{
    add_extension::AddExtensionLayer,
    catch_panic::CatchPanicLayer,
    compression::CompressionLayer,
    cors::CorsLayer,
    decompression::{DecompressionLayer, RequestDecompressionLayer},
    limit::RequestBodyLimitLayer,
    map_request_body::MapRequestBodyLayer,
    map_response_body::MapResponseBodyLayer,
    sensitive_headers::SetSensitiveHeadersLayer,
    timeout::{RequestBodyTimeoutLayer, ResponseBodyTimeoutLayer},
    trace::TraceLayer,
};
use tower_reprise::{
    CircuitBreakerLayer, IdempotencyKeyLayer, PeekLayer, ProblemLayer, RetryAfterLayer,
    RetryBudgetLayer, RetryLayer, error::BoxError, http::BufferedBody, stacks,
};

use crate::{
    layers::*,
    table::{Call, Table, pairs},
};

/// An empty `HealthCheckRequest`.
const MESSAGE: &[u8] = &[0; 5];

fn routes() -> Routes {
    let (_, service) = tonic_health::server::health_reporter();
    Routes::new(service)
}

/// Calls a server with the layer, whose bounds are those of `Server::serve`.
fn serve<L, R>(layer: L) -> Call
where
    L: Layer<Routes>,
    L::Service: Service<Request<Body>, Response = Response<R>> + Clone + Send + 'static,
    <L::Service as Service<Request<Body>>>::Future: Send,
    <L::Service as Service<Request<Body>>>::Error: Into<BoxError> + Send,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let server = layer.layer(routes().prepare());
    Box::pin(async move {
        let uri = "http://peer/grpc.health.v1.Health/Check";
        let mut request = signed(uri, MESSAGE, |data| {
            Body::new(http_body_util::Full::new(data))
        });
        let grpc = http::HeaderValue::from_static("application/grpc");
        request
            .headers_mut()
            .insert(http::header::CONTENT_TYPE, grpc);
        let response = server
            .oneshot(request)
            .await
            .map_err(|error| error.into().to_string())?;
        expect_ok(response.status())?;
        let body = response.into_body().collect().await;
        let body = body.map_err(|error| error.into().to_string())?;
        let trailers = body.trailers().ok_or("no trailers")?;
        match trailers.get("grpc-status").is_some_and(|code| code == "0") {
            true => Ok(()),
            false => Err(format!("{trailers:?}")),
        }
    })
}

#[tokio::test]
async fn every_pair_goes_onto_a_tonic_server() {
    let pairs = pairs!(serve;
        [
            "our inbound budget": inbound(),
            "our deadline": deadline(),
            "our problem": ProblemLayer::new(),
            "our idempotency": idempotency(),
            "our replay": replay(),
            "our webhook verify": verify(),
        ]
        [
            "add extension": AddExtensionLayer::new(1u8),
            "catch panic": CatchPanicLayer::new(),
            "compression": CompressionLayer::new(),
            "cors": CorsLayer::permissive(),
            // Its body is none that we know: as the error says.
            "request decompression": (RequestDecompressionLayer::new(), MapRequestBodyLayer::new(BufferedBody::new)),
            "request body limit": RequestBodyLimitLayer::new(1 << 20),
            "map request body": MapRequestBodyLayer::new(Body::new),
            "map response body": MapResponseBodyLayer::new(Body::new),
            "in-flight requests": in_flight(),
            "propagate header": propagate(),
            "set request id": request_id(),
            "sensitive headers": SetSensitiveHeadersLayer::new([http::header::COOKIE]),
            "set request header": request_header(),
            "set response header": response_header(),
            "timeout": timeout(),
            "request body timeout": RequestBodyTimeoutLayer::new(MINUTE),
            "response body timeout": ResponseBodyTimeoutLayer::new(MINUTE),
            "trace": TraceLayer::new_for_grpc(),
            "our inbound budget": inbound(),
            "our deadline": deadline(),
            "our problem": ProblemLayer::new(),
            "our idempotency": idempotency(),
            "our replay": replay(),
            "our webhook verify": verify(),
        ]
    );
    Table::of("tonic server", pairs).await.check();
}

/// The whole of `Server`, which no pair needs to build again.
#[tokio::test]
async fn a_server_takes_our_layers() {
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder()
        .layer(inbound())
        .layer(TraceLayer::new_for_grpc())
        .layer(replay())
        .layer(idempotency())
        .add_service(health);
    let nobody = empty::<Result<tokio::net::TcpStream, std::io::Error>>();
    server.serve_with_incoming(nobody).await.unwrap();
}

/// Calls through a generated client, over a peer in this process.
fn check<L, R>(layer: L) -> Call
where
    L: Layer<Peer>,
    L::Service: Service<Request<Body>, Response = Response<R>> + Clone + Send + 'static,
    <L::Service as Service<Request<Body>>>::Future: Send,
    <L::Service as Service<Request<Body>>>::Error: Into<BoxError> + Send + Sync,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError> + Send,
{
    let mut client = HealthClient::new(layer.layer(Peer(routes().prepare())));
    Box::pin(async move {
        let reply = client.check(HealthCheckRequest::default()).await;
        reply.map(drop).map_err(|status: Status| status.to_string())
    })
}

/// A channel without a network: its types are those of `tonic::transport::Channel`.
#[derive(Clone)]
struct Peer(Routes);

impl Service<Request<Body>> for Peer {
    type Response = Response<Body>;
    type Error = tonic::transport::Error;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Response<Body>, Self::Error>> + Send>>;

    fn poll_ready(
        &mut self,
        _cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let reply = self.0.clone().oneshot(request);
        Box::pin(async { Ok(reply.await.unwrap_or_else(|error| never(error))) })
    }
}

#[tokio::test]
async fn every_pair_goes_under_a_generated_client() {
    let pairs = pairs!(check;
        [
            "our stack": stacks::tonic::client(channel()),
            "our idempotency key": IdempotencyKeyLayer::new(),
            "our retry budget": RetryBudgetLayer::new(channel()),
            "our retry": RetryLayer::new(channel()),
            "our retry after": RetryAfterLayer::new(channel()),
            "our circuit breaker": CircuitBreakerLayer::new(channel()),
            "our peek": PeekLayer::new(channel()),
        ]
        [
            "add authorization": authorization(),
            "catch panic": CatchPanicLayer::new(),
            "decompression": DecompressionLayer::new(),
            "map request body": MapRequestBodyLayer::new(Body::new),
            "map response body": MapResponseBodyLayer::new(Body::new),
            "in-flight requests": in_flight(),
            "set request id": request_id(),
            "sensitive headers": SetSensitiveHeadersLayer::new([http::header::COOKIE]),
            "set request header": request_header(),
            "set response header": response_header(),
            "timeout": timeout(),
            "trace": TraceLayer::new_for_grpc(),
            "concurrency limit": ConcurrencyLimitLayer::new(1),
            "load shed": LoadShedLayer::new(),
            "tower's timeout": tower::timeout::TimeoutLayer::new(MINUTE),
        ]
    );
    Table::of("tonic client", pairs).await.check();
}
