//! The layers on a real axum router, and a proxy made of one.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::State,
    http::{HeaderMap, Request, Response, StatusCode, Uri},
    response::IntoResponse,
    routing::{any, get},
};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper_util::{client::legacy, rt::TokioExecutor};
use tokio::{net::TcpListener, sync::Notify};
use tower::{ServiceBuilder, timeout::TimeoutLayer};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, InboundBudgetLayer, Policy, ProblemLayer, RetryAfterLayer,
    RetryBudgetLayer, RetryLayer,
    error::{BoxError, Refusal, Refused},
    policy::{PolicyBuilder, RetryAfterMode},
    stacks,
};

fn policy() -> PolicyBuilder {
    Policy::http()
        .honours_keys()
        .base(Duration::from_millis(1))
        .cap(Duration::from_millis(2))
}

fn deps(policy: PolicyBuilder) -> Dependencies {
    Dependencies::new(policy.build().unwrap())
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// A reply, read to its end.
#[derive(Debug)]
struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn problem(&self) -> serde_json::Value {
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json")
        );
        assert_eq!(self.header("cache-control"), Some("no-store"));
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], self.status.as_u16());
        problem
    }
}

async fn send(request: Request<Full<Bytes>>) -> Reply {
    let client = legacy::Client::builder(TokioExecutor::new()).build_http();
    let (head, body) = client.request(request).await.unwrap().into_parts();
    Reply {
        status: head.status,
        headers: head.headers,
        body: body.collect().await.unwrap().to_bytes(),
    }
}

fn request(address: SocketAddr, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::get(format!("http://{address}/"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::default()).unwrap()
}

async fn fetch(address: SocketAddr) -> Reply {
    send(request(address, &[])).await
}

async fn call_grpc(address: SocketAddr) -> Reply {
    send(request(address, &[("content-type", "application/grpc")])).await
}

// ---- problems in place of errors

#[tokio::test]
async fn cb_2_an_open_breaker_on_a_router_is_a_503_with_a_problem() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let handler = move || async move {
        counted.fetch_add(1, Ordering::SeqCst);
        StatusCode::INTERNAL_SERVER_ERROR
    };
    let deps = deps(policy().consecutive_failures(2));
    let app = Router::new().route("/", get(handler)).layer(
        ServiceBuilder::new()
            .layer(ProblemLayer::new())
            .layer(CircuitBreakerLayer::new(deps)),
    );
    let address = serve(app).await;
    for _ in 0..2 {
        assert_eq!(fetch(address).await.status, 500, "the handler's own");
    }
    let reply = fetch(address).await;
    assert_eq!(reply.status, 503);
    let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&wait), "{wait}");
    let problem = reply.problem();
    assert_eq!(problem["type"], "urn:tower-reprise:problem:refused");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("circuit breaker is open"), "{detail}");

    let reply = call_grpc(address).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("grpc-status"), Some("14"));
    assert_eq!(reply.header("content-type"), Some("application/grpc"));
    let wait: u64 = reply
        .header("grpc-retry-pushback-ms")
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=30_000).contains(&wait), "{wait}");
    let message = reply.header("grpc-message").unwrap();
    assert!(message.contains("circuit breaker is open"), "{message}");
    assert_eq!(reply.body.len(), 0);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn cb_2_each_layer_of_a_router_may_stand_in_a_call_of_its_own() {
    // Below a layer whose error is not `Infallible` a router does not compile, so each has one.
    let deps = deps(policy());
    let app: Router = Router::new().route("/", get(|| async { "ok" }));
    let app: Router<()> = app
        .layer(
            ServiceBuilder::new()
                .layer(ProblemLayer::new())
                .layer(RetryAfterLayer::new(deps.clone())),
        )
        .layer(InboundBudgetLayer::new(deps.clone()))
        .route_layer(
            ServiceBuilder::new()
                .layer(ProblemLayer::new())
                .layer(RetryBudgetLayer::new(deps)),
        );
    let reply = fetch(serve(app).await).await;
    assert_eq!(
        (reply.status, &reply.body[..]),
        (StatusCode::OK, &b"ok"[..])
    );
}

#[tokio::test]
async fn ra_9_a_handler_that_asks_for_patience_gets_it() {
    let handler = || async { (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "50")]) };
    let deps = deps(policy().retry_after_mode(RetryAfterMode::Refuse));
    let app = Router::new().route("/", get(handler)).layer(
        ServiceBuilder::new()
            .layer(ProblemLayer::new())
            .layer(RetryAfterLayer::new(deps)),
    );
    let address = serve(app).await;
    assert_eq!(fetch(address).await.header("retry-after"), Some("50"));
    let reply = fetch(address).await;
    assert_eq!(reply.problem()["type"], "urn:tower-reprise:problem:refused");
    // Rounded up from a little less.
    assert_eq!(reply.header("retry-after"), Some("50"));
}

#[tokio::test]
async fn d_1_a_deadline_is_a_504() {
    // Of ours, for a client behind the router, and of tower's.
    let deps = deps(policy().total_timeout(Duration::from_millis(50)));
    let ours = ServiceBuilder::new()
        .layer(ProblemLayer::new())
        .layer(RetryLayer::new(deps))
        .service_fn(stall);
    let towers = ServiceBuilder::new()
        .layer(ProblemLayer::new())
        .layer(TimeoutLayer::new(Duration::from_millis(50)))
        .service_fn(stall);
    for app in [
        Router::new().fallback_service(ours),
        Router::new().fallback_service(towers),
    ] {
        let address = serve(app).await;
        let reply = fetch(address).await;
        assert_eq!(reply.status, 504);
        assert_eq!(reply.header("retry-after"), None);
        let problem = reply.problem();
        assert_eq!(problem["type"], "urn:tower-reprise:problem:timeout");
        assert_eq!(call_grpc(address).await.header("grpc-status"), Some("4"));
    }
}

async fn stall(_: Request<Body>) -> Result<Response<Body>, BoxError> {
    std::future::pending().await
}

#[tokio::test]
async fn d_4_any_other_error_is_a_502_that_tells_nothing() {
    let secret = |_: Request<Body>| async {
        Err::<Response<Body>, BoxError>("connect to 10.1.2.3 as admin:hunter2".into())
    };
    let app = Router::new().fallback_service(
        ServiceBuilder::new()
            .layer(ProblemLayer::new())
            .service_fn(secret),
    );
    let address = serve(app).await;
    let reply = fetch(address).await;
    assert_eq!(reply.status, 502);
    assert_eq!(
        reply.problem()["type"],
        "urn:tower-reprise:problem:upstream"
    );
    let text = String::from_utf8(reply.body.to_vec()).unwrap();
    assert!(
        !text.contains("hunter2") && !text.contains("10.1"),
        "{text}"
    );
    let reply = call_grpc(address).await;
    assert_eq!(reply.header("grpc-status"), Some("14"));
    assert_eq!(reply.header("grpc-message"), Some("The call failed."));
}

#[tokio::test]
async fn d_7_a_service_that_is_never_ready_is_a_problem_and_not_an_error() {
    #[derive(Clone)]
    struct NeverReady;
    impl tower::Service<Request<Body>> for NeverReady {
        type Response = Response<Body>;
        type Error = Refused;
        type Future = std::future::Ready<Result<Response<Body>, Refused>>;

        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Refused>> {
            let wait = Some(Duration::from_millis(2500));
            std::task::Poll::Ready(Err(Refused::new(Refusal::Breaker, "stock", wait)))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            unreachable!()
        }
    }
    let app = Router::new().fallback_service(
        ServiceBuilder::new()
            .layer(ProblemLayer::new())
            .service(NeverReady),
    );
    let address = serve(app).await;
    for _ in 0..2 {
        let reply = fetch(address).await;
        assert_eq!(reply.status, 503);
        assert_eq!(reply.header("retry-after"), Some("3"));
        let detail = &reply.problem()["detail"];
        assert!(detail.as_str().unwrap().contains("stock"), "{detail}");
    }
}

// ---- storms of inbound retries

#[tokio::test]
async fn g_6_a_storm_of_inbound_retries_is_refused() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let handler = move || async move {
        counted.fetch_add(1, Ordering::SeqCst);
        StatusCode::SERVICE_UNAVAILABLE
    };
    let app = Router::new()
        .route("/", get(handler))
        .layer(InboundBudgetLayer::new(deps(policy())));
    let address = serve(app).await;
    // 100 originals allow 20 retries.
    for _ in 0..100 {
        fetch(address).await;
    }
    let mut refused = Vec::new();
    for attempt in 0..60 {
        let attempt = (attempt % 3 + 2).to_string();
        let reply = send(request(address, &[("x-envoy-attempt-count", &attempt)])).await;
        if reply.status == 429 {
            refused.push(reply);
        }
    }
    assert_eq!(calls.load(Ordering::SeqCst), 120);
    assert_eq!(refused.len(), 40);
    for reply in &refused {
        assert_eq!(reply.header("x-should-retry"), Some("false"));
        let problem = reply.problem();
        assert_eq!(problem["type"], "urn:tower-reprise:problem:retry-budget");
    }
    // Originals go on.
    assert_eq!(fetch(address).await.status, 503);
    // And a gRPC retry is told in its own words.
    let headers = [
        ("content-type", "application/grpc"),
        ("grpc-previous-rpc-attempts", "1"),
    ];
    let reply = send(request(address, &headers)).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("grpc-status"), Some("8"));
    assert_eq!(reply.header("grpc-retry-pushback-ms"), Some("-1"));
}

#[tokio::test]
async fn g_6_an_inbound_budget_composes_with_problems_in_one_builder() {
    let deps = deps(policy().budget_floor(0).budget_ratio(0.0));
    let app = Router::new().route("/", get(|| async { "ok" })).layer(
        ServiceBuilder::new()
            .layer(InboundBudgetLayer::new(deps.clone()))
            .layer(ProblemLayer::new())
            .layer(CircuitBreakerLayer::new(deps)),
    );
    let address = serve(app).await;
    assert_eq!(fetch(address).await.body, "ok");
    let reply = send(request(address, &[("x-envoy-attempt-count", "2")])).await;
    assert_eq!(reply.status, 429);
}

// ---- a proxy

/// An upstream router: what it says to each request in turn, and what it saw.
#[derive(Clone)]
struct Upstream {
    script: Arc<Vec<Says>>,
    seen: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    gate: Arc<Notify>,
}

const HALF: usize = 32 * 1024;

#[derive(Clone, Copy)]
enum Says {
    Status(u16),
    /// 200 with all of [`big`], in frames of many sizes.
    Big,
    /// Half of it, and when notified an error.
    Half,
}

impl Upstream {
    async fn start(script: Vec<Says>) -> (Self, SocketAddr) {
        let upstream = Self {
            script: Arc::new(script),
            seen: Arc::default(),
            gate: Arc::default(),
        };
        let app = Router::new()
            .route("/{*path}", any(answer))
            .with_state(upstream.clone());
        (upstream, serve(app).await)
    }

    fn seen(&self) -> Vec<(HeaderMap, Bytes)> {
        self.seen.lock().unwrap().clone()
    }
}

async fn answer(State(upstream): State<Upstream>, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let number = {
        let mut seen = upstream.seen.lock().unwrap();
        seen.push((head.headers, body));
        seen.len() - 1
    };
    let says = upstream.script[number.min(upstream.script.len() - 1)];
    match says {
        Says::Status(status) => StatusCode::from_u16(status).unwrap().into_response(),
        Says::Big => Response::new(streamed(&big())),
        Says::Half => {
            let gate = upstream.gate;
            let (mut send, body) = http_body_util::channel::Channel::<Bytes, BoxError>::new(1);
            tokio::spawn(async move {
                let half = Bytes::from(big()).slice(..HALF);
                send.send_data(half).await.unwrap();
                gate.notified().await;
                send.abort("half is all there is".into());
            });
            Response::new(Body::new(body))
        }
    }
}

/// 64 KiB that are not the same all over.
fn big() -> Vec<u8> {
    (0..64 * 1024_u32).map(|n| (n * 31 / 7) as u8).collect()
}

fn streamed(bytes: &[u8]) -> Body {
    let sizes = [1, 7, 4096, 1000, 16 * 1024].into_iter().cycle();
    let mut rest = bytes;
    let mut frames = Vec::new();
    for size in sizes {
        let (frame, after) = rest.split_at(size.min(rest.len()));
        let frame = Bytes::copy_from_slice(frame);
        frames.push(Ok::<_, Infallible>(http_body::Frame::data(frame)));
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    Body::new(StreamBody::new(tokio_stream::iter(frames)))
}

/// A proxy to one upstream: the client's stack behind a router.
async fn proxy(policy: PolicyBuilder, upstream: SocketAddr) -> SocketAddr {
    let client = legacy::Client::builder(TokioExecutor::new()).build_http::<Body>();
    let stack = ServiceBuilder::new()
        .layer(ProblemLayer::new())
        .map_request(move |mut request: Request<Body>| {
            let path = request.uri().path_and_query().unwrap().as_str();
            let uri: Uri = format!("http://{upstream}{path}").parse().unwrap();
            *request.uri_mut() = uri;
            request
        })
        .layer(stacks::client(deps(policy)))
        .service(client);
    serve(Router::new().fallback_service(stack)).await
}

fn post(address: SocketAddr, body: Body) -> Request<Body> {
    let request = Request::post(format!("http://{address}/orders?id=7"));
    request.body(body).unwrap()
}

async fn forward(request: Request<Body>) -> Response<hyper::body::Incoming> {
    let client = legacy::Client::builder(TokioExecutor::new()).build_http();
    client.request(request).await.unwrap()
}

#[tokio::test]
async fn c_1_a_proxy_mends_a_503_and_streams_both_ways_byte_for_byte() {
    let (upstream, address) = Upstream::start(vec![Says::Status(503), Says::Big]).await;
    let proxy = proxy(policy(), address).await;
    let response = forward(post(proxy, streamed(&big()))).await;
    assert_eq!(response.status(), 200);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(body == big());
    let seen = upstream.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|(_, body)| *body == big()));
    let key = |n: usize| seen[n].0.get("idempotency-key");
    assert!(key(0).is_some());
    assert_eq!(key(0), key(1));
}

#[tokio::test]
async fn c_1_a_proxy_lets_a_body_over_the_cap_through_once() {
    let mut longer = big();
    longer.push(1);
    let (upstream, address) = Upstream::start(vec![Says::Status(503), Says::Big]).await;
    let proxy = proxy(policy(), address).await;
    let response = forward(post(proxy, streamed(&longer))).await;
    assert_eq!(response.status(), 503, "the upstream's own");
    assert_eq!(upstream.seen().len(), 1);
    assert!(upstream.seen()[0].1 == longer);
}

#[tokio::test]
async fn d_1_a_reply_that_breaks_off_in_its_body_is_not_hidden() {
    let (upstream, address) = Upstream::start(vec![Says::Half, Says::Big]).await;
    let proxy = proxy(policy(), address).await;
    let response = forward(post(proxy, Body::from("pay"))).await;
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    let mut read = Vec::new();
    while read.len() < HALF {
        let frame = body.frame().await.unwrap().unwrap();
        read.extend_from_slice(&frame.into_data().unwrap());
    }
    assert!(read == big()[..HALF]);
    upstream.gate.notify_one();
    let end = body.frame().await.expect("an end that is an error");
    assert!(end.is_err());
    assert_eq!(upstream.seen().len(), 1);
}

#[tokio::test]
async fn c_3_a_proxy_without_an_upstream_is_a_502_and_then_a_503() {
    // Nobody listens there any more.
    let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let upstream = gone.local_addr().unwrap();
    drop(gone);
    let proxy = proxy(
        policy()
            .consecutive_failures(4)
            .cooldown(Duration::from_secs(9), Duration::from_secs(9)),
        upstream,
    )
    .await;
    let reply = fetch(proxy).await;
    assert_eq!(reply.status, 502);
    let reply = fetch(proxy).await;
    assert_eq!(reply.status, 503, "four attempts opened the breaker");
    assert!(reply.header("retry-after").is_some());
    let detail = reply.problem()["detail"].clone();
    assert!(detail.as_str().unwrap().contains(&upstream.to_string()));
}

/// A router takes what the layers make, and its own error type stays what it is.
#[tokio::test]
async fn d_4_the_error_type_of_a_stack_with_problems_is_infallible() {
    fn infallible<S: tower::Service<Request<Body>, Error = Infallible>>(_: &S) {}
    let deps = deps(policy());
    let client = legacy::Client::builder(TokioExecutor::new()).build_http::<Body>();
    let stack = ServiceBuilder::new()
        .layer(ProblemLayer::new())
        .layer(stacks::client(deps))
        .service(client);
    infallible(&stack);
}
