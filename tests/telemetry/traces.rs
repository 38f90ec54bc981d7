//! O-5: a client span for each attempt.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, Request};
use tower::{Layer as _, ServiceBuilder, ServiceExt, service_fn};
use tower_reprise::{RetryLayer, client::attempt_span::AttemptSpanLayer, error::Refused, stacks};
use tracing::{Instrument, Span};

use crate::{
    setup::{Body, URI, deps, get, peer, policy, refused, reply},
    support::telemetry::{Spans, keep_tests_apart},
};

/// Writes a `traceparent` that is new each time.
fn fresh() -> impl Fn(&Span, &mut HeaderMap) + Clone {
    let sent = Arc::new(AtomicU32::new(0));
    move |_, headers| {
        let id = sent.fetch_add(1, Ordering::Relaxed) + 1;
        let context = format!("00-0af7651916cd43dd8448eb211c80319c-{id:016x}-01");
        headers.insert("traceparent", context.parse().unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn o_5_the_golden_trace_of_503_503_200() {
    let (spans, _guard) = Spans::listen();
    keep_tests_apart();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let server = peer([503, 503, 200].map(|status| reply(status, &[])));
    let seen = Arc::clone(&sent);
    let server = server.map_request(move |request: Request<Body>| {
        let contexts = request.headers().get_all("traceparent").iter();
        let contexts = contexts.map(|value| value.to_str().unwrap().to_owned());
        seen.lock().unwrap().extend(contexts);
        request
    });
    let client = stacks::traced(deps(), fresh()).layer(server);
    let mut request = get(&format!("{URI}?card=s3cret-query"));
    // The caller's own is written over, in every attempt.
    let caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = request.headers_mut();
    headers.insert("traceparent", caller.parse().unwrap());
    let call = client.oneshot(request);
    let call = call.instrument(tracing::info_span!("order"));
    assert_eq!(call.await.unwrap().status(), 200);

    let attempt = |resend: &str, error: &str, status: u16, ended: &str| {
        format!(
            "dependency=stock.example:8080 {error}http.request.method=GET {resend}\
             http.response.status_code={status} otel.kind=client otel.name=GET {ended}\
             parent=order server.address=stock.example server.port=8080 url.scheme=http"
        )
    };
    let failed = ("error.type=503 ", "otel.status_code=ERROR ");
    assert_eq!(
        spans.lines(),
        [
            attempt("", failed.0, 503, failed.1),
            attempt("http.request.resend_count=1 ", failed.0, 503, failed.1),
            attempt("http.request.resend_count=2 ", "", 200, ""),
        ]
    );
    let id = |n| format!("00-0af7651916cd43dd8448eb211c80319c-{n:016x}-01");
    assert_eq!(*sent.lock().unwrap(), [1, 2, 3].map(id));
}

#[tokio::test(start_paused = true)]
async fn o_5_a_span_says_how_its_attempt_failed() {
    let (spans, _guard) = Spans::listen();
    keep_tests_apart();
    let grpc = [("content-type", "application/grpc"), ("grpc-status", "14")];
    let client = stacks::traced(deps(), ()).layer(peer([
        refused(),
        reply(404, &[]),
        reply(200, &grpc),
        reply(200, &grpc[..1]),
    ]));
    client.clone().oneshot(get(URI)).await.unwrap();
    let mut call = Request::put("http://ledger:9/ledger.v1.Ledger/Pay");
    call = call.header("content-type", "application/grpc");
    let call = call.body(Body::default()).unwrap();
    let _ = client.oneshot(call).await;
    assert_eq!(
        spans.field("error.type"),
        ["connect", "404", "UNAVAILABLE", ""]
    );
    assert_eq!(
        spans.field("http.response.status_code"),
        ["", "404", "200", "200"]
    );
    assert_eq!(spans.field("rpc.grpc.status_code"), ["", "", "14", ""]);
    assert_eq!(
        spans.field("rpc.service"),
        ["", "", "ledger.v1.Ledger", "ledger.v1.Ledger"]
    );
    assert_eq!(spans.field("rpc.method"), ["", "", "Pay", "Pay"]);
    assert_eq!(
        spans.field("otel.name"),
        ["GET", "GET", "ledger.v1.Ledger/Pay", "ledger.v1.Ledger/Pay"]
    );
}

#[tokio::test(start_paused = true)]
async fn o_5_an_attempt_that_runs_out_of_its_time_is_cancelled() {
    let (spans, _guard) = Spans::listen();
    keep_tests_apart();
    let policy = policy()
        .attempt_timeout(Duration::from_secs(1))
        .max_retries(1);
    let deps = tower_reprise::Dependencies::new(policy.build().unwrap());
    let hangs = service_fn(|_: Request<Body>| std::future::pending::<crate::setup::Reply>());
    let client = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()))
        .layer(AttemptSpanLayer::new(deps))
        .service(hangs);
    client.oneshot(get(URI)).await.unwrap_err();
    assert_eq!(spans.field("error.type"), ["cancelled", "cancelled"]);
    assert_eq!(spans.field("http.request.resend_count"), ["", "1"]);
}

#[tokio::test(start_paused = true)]
async fn o_5_a_call_that_is_refused_is_no_attempt() {
    let (spans, _guard) = Spans::listen();
    keep_tests_apart();
    let deps = deps();
    deps.get("stock.example:8080").force_open();
    let client = stacks::traced(deps, ()).layer(peer([]));
    let error = client.oneshot(get(URI)).await.unwrap_err();
    assert!(Refused::find(&*error).is_some());
    assert_eq!(spans.lines(), [""; 0]);
}

/// Nobody has to listen: the headers are written all the same.
#[tokio::test(start_paused = true)]
async fn o_5_spans_that_no_subscriber_wants_change_nothing() {
    let server = service_fn(async |request: Request<Body>| {
        reply(
            if request.headers().contains_key("traceparent") {
                200
            } else {
                400
            },
            &[],
        )
    });
    let client = stacks::traced(deps(), fresh()).layer(server);
    assert_eq!(client.oneshot(get(URI)).await.unwrap().status(), 200);
}
