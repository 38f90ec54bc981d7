//! tower-http's trace layer judges by the same tables.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_http::trace::TraceLayer;
use tower_reprise::{call::Cause, error::BoxError, http::GrpcCode, stacks};
use tracing::Span;

use crate::{
    client::{Body, get, plain, stack},
    support::{
        authority::{Authority, Identity},
        deps,
        http1::{Act, Server, reply},
        ports::deaf_uri,
        quick,
        telemetry::{Spans, keep_tests_apart},
    },
    tls::{TlsServer, https},
};

type Failures = Arc<Mutex<Vec<Cause>>>;

/// Calls below a `TraceLayer` and returns what it was told of failures, the body read to its end.
async fn traced<S, B>(inner: S, request: Request<Body>) -> Vec<Cause>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: std::fmt::Display + std::fmt::Debug + 'static,
    B: http_body::Body,
    B::Error: std::fmt::Display + 'static,
{
    let failures = Failures::default();
    let told = failures.clone();
    let layer = TraceLayer::new(deps(quick()).trace())
        .on_failure(move |cause: Cause, _: Duration, _: &Span| told.lock().unwrap().push(cause));
    let client = ServiceBuilder::new().layer(layer).service(inner);
    if let Ok(response) = client.oneshot(request).await {
        let _ = Box::pin(response.into_body()).as_mut().collect().await;
    }
    failures.lock().unwrap().clone()
}

fn boxed() -> impl Service<Request<Body>, Response = Response<Incoming>, Error = BoxError> {
    plain().map_err(BoxError::from)
}

#[tokio::test]
async fn c_9_a_trace_layer_judges_responses_by_the_same_tables() {
    let grpc = "content-type: application/grpc\r\n";
    let trailers = |status: u32| {
        Act::Say(format!(
            "HTTP/1.1 200 OK\r\n{grpc}transfer-encoding: chunked\r\ntrailer: grpc-status\r\n\r\n\
             2\r\nok\r\n0\r\ngrpc-status: {status}\r\n\r\n"
        ))
    };
    let unavailable = Cause::Grpc(GrpcCode::Unavailable);
    let busy = Cause::Status(StatusCode::TOO_MANY_REQUESTS);
    let down = Cause::Status(StatusCode::SERVICE_UNAVAILABLE);
    let cases = [
        (reply(200, ""), vec![]),
        (reply(404, ""), vec![]),
        (reply(429, ""), vec![busy]),
        (reply(503, ""), vec![down]),
        (
            reply(200, &format!("{grpc}grpc-status: 14\r\n")),
            vec![unavailable],
        ),
        (reply(200, &format!("{grpc}grpc-status: 5\r\n")), vec![]),
        (trailers(14), vec![unavailable]),
        (trailers(0), vec![]),
    ];
    for (act, expected) in cases {
        let server = Server::start(vec![act]).await;
        assert_eq!(traced(boxed(), get(&server.uri())).await, expected);
    }
}

#[tokio::test]
async fn c_9_a_trace_layer_judges_errors_by_the_same_tables() {
    let server = Server::start(vec![Act::ReadAndClose]).await;
    assert_eq!(
        traced(boxed(), get(&server.uri())).await,
        [Cause::Incomplete]
    );

    let (_socket, uri) = deaf_uri();
    assert_eq!(traced(boxed(), get(&uri)).await, [Cause::Connect]);
    // Above the whole stack, whose error wraps hyper's.
    assert_eq!(
        traced(stack(&deps(quick()), plain()), get(&uri)).await,
        [Cause::Connect]
    );

    let authority = Authority::new();
    let server = TlsServer::start(Identity::self_signed("127.0.0.1"), 0).await;
    let failures = traced(stack(&deps(quick()), https(&authority)), get(&server.uri())).await;
    assert_eq!(failures, [Cause::Certificate]);

    // A stream that breaks off before its status.
    let broken =
        "HTTP/1.1 200 OK\r\ncontent-type: application/grpc\r\ncontent-length: 9\r\n\r\nbro";
    let server = Server::start(vec![Act::Say(broken.into())]).await;
    let failures = traced(boxed(), get(&server.uri())).await;
    assert_eq!(failures, [Cause::Reset]);
}

#[tokio::test]
async fn c_9_a_trace_layer_right_on_the_hyper_client_knows_its_errors() {
    let (_socket, uri) = deaf_uri();
    assert_eq!(traced(plain(), get(&uri)).await, [Cause::Connect]);
}

/// O-5: over a real client, with what the server saw.
#[tokio::test]
async fn o_5_attempts_of_hyper_are_spans_with_a_traceparent_each() {
    let (spans, _guard) = Spans::listen();
    keep_tests_apart();
    let server = Server::start(vec![reply(503, ""), Act::Reset, reply(200, "")]).await;
    let sent = Arc::new(std::sync::atomic::AtomicU16::new(1));
    let propagate = move |_: &Span, headers: &mut http::HeaderMap| {
        let n = sent.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        headers.insert("traceparent", n.into());
    };
    let layers = stacks::traced(deps(quick()), propagate);
    let client = ServiceBuilder::new().layer(layers).service(plain());
    client.oneshot(get(&server.uri())).await.unwrap();
    assert_eq!(spans.field("error.type"), ["503", "reset", ""]);
    assert_eq!(spans.field("http.request.resend_count"), ["", "1", "2"]);
    let seen = server.arrivals();
    let seen = seen.iter().map(|arrival| arrival.header("traceparent"));
    assert!(seen.eq(["1", "2", "3"].map(Some)));
}
