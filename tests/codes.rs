//! Error codes in bodies: found, judged by the table, and the response left whole.
#![cfg(feature = "codes")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the helpers are tests too"
)]

mod support;

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Channel, Full, combinators::UnsyncBoxBody};
use tokio::time::Instant;
use tower::{Service, ServiceBuilder, service_fn};
use tower_http::request_id::RequestId;
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, IdempotencyKeyLayer, PeekLayer, Policy, RetryLayer,
    call::{Health, StopReason},
    classify::Codes,
    error::BoxError,
    http::BufferedBody,
    policy::PolicyBuilder,
};

use support::{call, outcome};

type ReplyBody = UnsyncBoxBody<Bytes, Infallible>;
type Reply = Response<ReplyBody>;
type Peeked = Result<Response<BufferedBody<ReplyBody>>, BoxError>;

/// As many retries as a profile allows, so that only a table can say less.
fn policy(codes: Codes) -> PolicyBuilder {
    Policy::synchronous().max_retries(5).codes(codes)
}

fn said(status: u16, content_type: &str, body: impl Into<Bytes>) -> Reply {
    Response::builder()
        .status(status)
        .header("content-type", content_type)
        .body(Full::new(body.into()).boxed_unsync())
        .unwrap()
}

fn json(status: u16, body: impl Into<Bytes>) -> Reply {
    said(status, "application/json", body)
}

fn forrst(code: &str) -> String {
    format!(
        r#"{{"protocol":{{"name":"forrst","version":"0.1.0"}},"id":"req_1","result":null,"errors":[{{"code":"{code}","message":"no"}}]}}"#
    )
}

fn get() -> Request<Full<Bytes>> {
    Request::get("http://api.example/")
        .body(Full::default())
        .unwrap()
}

/// What a call came to, and the heads of all requests that were made for it.
struct Called {
    result: Peeked,
    requests: Vec<Request<()>>,
}

impl Called {
    /// Attempts, and why there were no more.
    fn outcome(&self) -> (usize, Option<StopReason>) {
        let told = outcome(&self.result);
        let attempts = self.requests.len();
        assert_eq!(told.map_or(1, |(n, _)| n as usize), attempts);
        (attempts, told.and_then(|(_, why)| why))
    }

    async fn body(self) -> Bytes {
        let body = self.result.unwrap().into_body();
        body.collect().await.unwrap().to_bytes()
    }

    fn header(&self, name: &str) -> Vec<Option<String>> {
        let value = |request: &Request<()>| {
            let value: &HeaderValue = request.headers().get(name)?;
            Some(value.to_str().unwrap().to_owned())
        };
        self.requests.iter().map(value).collect()
    }
}

/// Makes one call to something that replies so to each attempt; the last reply is for all others.
async fn run(
    policy: PolicyBuilder,
    request: Request<Full<Bytes>>,
    reply: impl Fn(usize) -> Reply,
) -> Called {
    let deps = Dependencies::new(policy.build().unwrap());
    let requests: Arc<Mutex<Vec<Request<()>>>> = Arc::default();
    let service = service_fn(|request: Request<Full<Bytes>>| {
        let mut requests = requests.lock().unwrap();
        let reply = reply(requests.len());
        requests.push(request.map(drop));
        async { Ok::<_, Infallible>(reply) }
    });
    let mut client = ServiceBuilder::new()
        .layer(IdempotencyKeyLayer::new())
        .layer(RetryLayer::new(deps.clone()))
        .layer(PeekLayer::new(deps))
        .service(CloneService(Arc::new(Mutex::new(service))));
    let result = call(&mut client, request).await;
    drop(client);
    let requests = std::mem::take(&mut *requests.lock().unwrap());
    Called { result, requests }
}

/// A closure that borrows, as a service that can be cloned.
struct CloneService<S>(Arc<Mutex<S>>);

impl<S> Clone for CloneService<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Service<Request<Full<Bytes>>>> Service<Request<Full<Bytes>>> for CloneService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.lock().unwrap().poll_ready(cx)
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> S::Future {
        self.0.lock().unwrap().call(request)
    }
}

/// How many attempts a reply gets that never changes.
async fn attempts(codes: Codes, reply: impl Fn() -> Reply) -> usize {
    run(policy(codes), get(), |_| reply()).await.outcome().0
}

// ---- tables

#[tokio::test(start_paused = true)]
async fn c_6_forrst_codes_are_retried_as_often_as_their_table_says() {
    for (code, times) in [
        ("RATE_LIMITED", 3),
        ("UNAVAILABLE", 5),
        ("DEADLINE_EXCEEDED", 1),
        ("INTERNAL_ERROR", 3),
        ("DEPENDENCY_ERROR", 3),
        ("IDEMPOTENCY_PROCESSING", 3),
        ("SERVER_MAINTENANCE", 1),
        ("FUNCTION_MAINTENANCE", 1),
        ("FUNCTION_DISABLED", 2),
    ] {
        // Whatever the status is, a successful one included.
        for status in [200, 400, 409, 500, 503] {
            let made = attempts(Codes::forrst(), || json(status, forrst(code))).await;
            assert_eq!(made, 1 + times, "{code} with {status}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c_6_forrst_codes_that_another_call_does_not_mend_are_final() {
    for code in [
        "INVALID_ARGUMENTS",
        "NOT_FOUND",
        "UNAUTHORIZED",
        "FORBIDDEN",
        "CANCELLED",
        "VALIDATION_ERROR",
        "IDEMPOTENCY_CONFLICT",
        "REPLAY_NOT_FOUND",
        "REPLAY_EXPIRED",
        "REPLAY_ALREADY_COMPLETE",
        "REPLAY_CANCELLED",
    ] {
        for status in [200, 400, 429, 503] {
            let called = run(policy(Codes::forrst()), get(), |_| {
                json(status, forrst(code))
            });
            let outcome = called.await.outcome();
            assert_eq!(
                outcome,
                (1, Some(StopReason::NotRetryable)),
                "{code}, {status}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c_6_the_banks_table() {
    let bank = |status, code| async move {
        let body = format!(r#"{{"code":"{code}","details":[]}}"#);
        attempts(Codes::bank(), || json(status, body.clone())).await
    };
    for code in [
        "RESOURCE_EXHAUSTED",
        "PROVIDER_UNAVAILABLE",
        "DATABASE_UNAVAILABLE",
        "UPSTREAM_UNAVAILABLE",
    ] {
        assert_eq!(bank(400, code).await, 6, "{code}");
    }
    for code in [
        "INVALID_ARGUMENT",
        "WALLET_NOT_FOUND",
        "PAYMENT_ORDER_NOT_FOUND",
        "WALLET_ALREADY_EXISTS",
        "RBAC_DENY",
        "IDEMPOTENCY_KEY_IN_USE_WITH_DIFFERENT_PARAMS",
        "SIGNATURE_INVALID",
        "TIMESTAMP_SKEW_EXCEEDED",
        "INTERNAL",
    ] {
        assert_eq!(bank(503, code).await, 1, "{code}");
    }
    let preset = Policy::bank().build().unwrap();
    assert_eq!(
        preset.rules().codes,
        Codes::bank(),
        "the bank's policy has it"
    );
}

#[tokio::test(start_paused = true)]
async fn c_6_an_unknown_code_leaves_it_to_the_status() {
    for codes in [Codes::forrst, Codes::bank] {
        for (status, made) in [(200, 1), (400, 1), (409, 1), (429, 6), (503, 6)] {
            let found = attempts(codes(), || json(status, forrst("SOMETHING_ELSE"))).await;
            assert_eq!(found, made, "{status}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c_6_a_table_of_ones_own() {
    let codes = || {
        Codes::standard()
            .retry("BUSY")
            .at_most("LOCKED", 2)
            .never("FRAUD")
            .retry("20429")
    };
    let with = |status, body: &'static str| attempts(codes(), move || json(status, body));
    assert_eq!(with(400, r#"{"code":"BUSY"}"#).await, 6);
    assert_eq!(with(400, r#"{"code":"LOCKED"}"#).await, 3);
    assert_eq!(with(503, r#"{"code":"FRAUD"}"#).await, 1);
    assert_eq!(with(400, r#"{"code":20429}"#).await, 6, "a number");
    // The last word on a code counts.
    let changed = attempts(codes().never("BUSY"), || json(503, r#"{"code":"BUSY"}"#));
    assert_eq!(changed.await, 1);
}

// ---- where codes are

#[tokio::test(start_paused = true)]
async fn c_6_every_place_that_apis_put_codes() {
    let codes = || Codes::standard().retry("X");
    for body in [
        r#"{"errors":[{"code":"X"}]}"#,
        r#"{"error":{"code":429,"status":"X","message":"google.rpc"}}"#,
        r#"{"error":{"code":"X"}}"#,
        r#"{"code":"X"}"#,
        r#"{"type":"X","title":"RFC 9457"}"#,
        // One that is not in the table does not hide one that is.
        r#"{"code":"Y","type":"X"}"#,
    ] {
        assert_eq!(attempts(codes(), || json(400, body)).await, 6, "{body}");
    }
    for body in [
        "",
        "X",
        r#""X""#,
        "[]",
        "null",
        r#"{"code":["X"]}"#,
        r#"{"code":null}"#,
        r#"{"errors":["X"]}"#,
        r#"{"errors":[]}"#,
        r#"{"code":"X""#,
        r#"{"code":"x"}"#,
        "\u{feff}{}",
    ] {
        assert_eq!(attempts(codes(), || json(400, body)).await, 1, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn c_6_a_pointer_of_ones_own_is_looked_at_first() {
    let codes = || Codes::standard().retry("BUSY").never("FRAUD");
    let body = r#"{"fault":{"a/b":"FRAUD"},"code":"BUSY"}"#;
    assert_eq!(attempts(codes(), || json(503, body)).await, 6);
    let pointed = codes().pointer("/nowhere").pointer("/fault/a~1b");
    assert_eq!(attempts(pointed, || json(503, body)).await, 1);
}

#[tokio::test(start_paused = true)]
async fn s_3_a_body_that_is_nested_too_deep_tells_nothing() {
    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    let body = format!(r#"{{"code":"X","deep":{deep}}}"#);
    let codes = Codes::standard().retry("X");
    assert_eq!(attempts(codes, || json(400, body.clone())).await, 1);
}

#[tokio::test(start_paused = true)]
async fn c_6_content_types() {
    let body = r#"{"code":"X"}"#;
    let codes = || Codes::standard().retry("X");
    for kind in [
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/problem+json",
        "application/vnd.api+JSON",
    ] {
        let made = attempts(codes(), || said(400, kind, body)).await;
        assert_eq!(made, 6, "{kind}");
        let made = attempts(codes(), || said(200, kind, body)).await;
        assert_eq!(made, 1, "{kind}: a success is nobody's business");
    }
    for kind in ["text/html", "text/json", "application/jsonp", ""] {
        let made = attempts(codes(), || said(400, kind, body)).await;
        assert_eq!(made, 1, "{kind}");
    }
    let declared = || codes().content_type("text/json");
    for (status, kind, made) in [
        (200, "text/json", 6),
        (200, "TEXT/json;q=1", 6),
        (400, "text/json", 6),
        (200, "application/json", 1),
        (400, "application/json", 6),
    ] {
        let found = attempts(declared(), || said(status, kind, body)).await;
        assert_eq!(found, made, "{status} {kind}");
    }
    let none = || {
        Response::builder()
            .status(400)
            .body(Full::from(body).boxed_unsync())
    };
    assert_eq!(attempts(codes(), || none().unwrap()).await, 1);
}

#[tokio::test(start_paused = true)]
async fn c_6_a_body_that_is_encoded_is_not_looked_at() {
    for (encoding, made) in [
        ("gzip", 1),
        ("br, gzip", 1),
        ("identity", 6),
        ("Identity", 6),
    ] {
        let found = attempts(Codes::standard().retry("X"), || {
            let mut reply = json(400, r#"{"code":"X"}"#);
            let encoding = HeaderValue::from_static(encoding);
            reply.headers_mut().insert("content-encoding", encoding);
            reply
        });
        assert_eq!(found.await, made, "{encoding}");
    }
}

// ---- 409

#[tokio::test(start_paused = true)]
async fn c_6_a_409_is_retried_while_the_first_request_is_processed() {
    let ours = "urn:tower-reprise:problem:idempotency-processing";
    for body in [
        forrst("IDEMPOTENCY_PROCESSING"),
        r#"{"code":"IDEMPOTENCY_PROCESSING"}"#.to_owned(),
        format!(r#"{{"type":"{ours}","title":"Still processing","status":409}}"#),
    ] {
        // No table was asked for.
        let policy = || Policy::synchronous().max_retries(5);
        let called = run(policy(), get(), |n| match n {
            0 | 1 => said(409, "application/problem+json", body.clone()),
            _ => json(201, "{}"),
        });
        let called = called.await;
        assert_eq!(called.outcome(), (3, None), "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn c_1_no_other_409_is_retried() {
    for reply in [
        || {
            json(
                409,
                r#"{"type":"urn:tower-reprise:problem:idempotency-mismatch"}"#,
            )
        },
        || json(409, r#"{"code":"CONFLICT"}"#),
        || json(409, ""),
        || said(409, "text/plain", "IDEMPOTENCY_PROCESSING"),
        // The same words with another status are not the rule's business.
        || json(422, r#"{"code":"IDEMPOTENCY_PROCESSING"}"#),
    ] {
        let called = run(Policy::synchronous(), get(), |_| reply()).await;
        assert_eq!(called.outcome(), (1, Some(StopReason::NotRetryable)));
    }
}

// ---- a fresh request id

fn replay() -> Reply {
    json(409, r#"{"code":"REPLAY_DETECTED"}"#)
}

fn pay() -> Request<Full<Bytes>> {
    Request::post("http://bank.example/pay")
        .header("x-request-id", "r-1")
        .extension(RequestId::new(HeaderValue::from_static("r-1")))
        .body(Full::from("1 EUR"))
        .unwrap()
}

fn all_differ(ids: &[Option<String>]) {
    for (n, id) in ids.iter().enumerate() {
        assert!(id.is_some() && !ids[..n].contains(id), "{ids:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn c_6_replay_detected_is_tried_once_more_with_a_fresh_id() {
    let called = run(Policy::bank(), pay(), |_| replay()).await;
    assert_eq!(called.outcome(), (2, Some(StopReason::Exhausted)));
    let ids = called.header("x-request-id");
    assert_eq!(ids[0].as_deref(), Some("r-1"));
    all_differ(&ids);
    let known = called.requests[1].extensions().get::<RequestId>().unwrap();
    let known = known.header_value().to_str().unwrap();
    assert_eq!(Some(known), ids[1].as_deref(), "the extension agrees");
    let keys = called.header("idempotency-key");
    assert!(keys[0].is_some() && keys[0] == keys[1], "K-1: {keys:?}");
    assert_eq!(called.body().await, r#"{"code":"REPLAY_DETECTED"}"#);
}

#[tokio::test(start_paused = true)]
async fn c_6_attempts_after_a_replay_do_not_go_back_to_the_old_id() {
    let called = run(Policy::bank(), pay(), |n| match n {
        0 => replay(),
        1 | 2 => json(503, "{}"),
        _ => json(200, "{}"),
    });
    let called = called.await;
    assert_eq!(called.outcome(), (4, None));
    assert!(!called.header("x-request-id")[1..].contains(&Some("r-1".into())));
}

#[tokio::test(start_paused = true)]
async fn c_6_without_a_replay_the_id_stays() {
    let called = run(Policy::bank(), pay(), |_| json(503, "{}")).await;
    assert_eq!(called.header("x-request-id"), vec![Some("r-1".into()); 4]);
}

#[tokio::test(start_paused = true)]
async fn c_6_replay_detected_once_is_once_in_a_call() {
    // 425 is retried once too, which is no reason to begin to count anew.
    let called = run(Policy::bank(), pay(), |n| match n {
        1 => json(425, "{}"),
        _ => replay(),
    });
    assert_eq!(called.await.outcome(), (3, Some(StopReason::Exhausted)));
}

#[tokio::test(start_paused = true)]
async fn c_6_the_id_is_in_the_header_that_the_policy_names() {
    let policy = Policy::synchronous()
        .codes(Codes::standard().fresh_id("STALE"))
        .request_id_header("x-nonce".parse().unwrap());
    let called = run(policy, get(), |_| json(400, r#"{"code":"STALE"}"#)).await;
    let ids = called.header("x-nonce");
    assert_eq!((ids.len(), &ids[0]), (2, &None));
    assert!(ids[1].is_some());
    assert_eq!(called.header("x-request-id"), [None, None]);
}

// ---- bounds, and a response that stays whole

/// A JSON document of so many bytes.
fn document(code: &str, size: usize) -> String {
    let padded = format!(r#"{{"code":"{code}","pad":""}}"#);
    let pad = "x".repeat(size - padded.len());
    format!(r#"{{"code":"{code}","pad":"{pad}"}}"#)
}

/// Frames, one after the other, without a word about their size.
struct Frames(Vec<Frame<Bytes>>);

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready((!self.0.is_empty()).then(|| Ok(self.0.remove(0))))
    }
}

fn in_frames(status: u16, body: &str, size: usize) -> Reply {
    let chunks = body.as_bytes().chunks(size);
    let frames = chunks.map(|chunk| Frame::data(Bytes::copy_from_slice(chunk)));
    json(status, "").map(|_| Frames(frames.collect()).boxed_unsync())
}

#[tokio::test(start_paused = true)]
async fn c_6_a_code_is_read_up_to_the_limit() {
    const LIMIT: usize = 64 * 1024;
    let codes = || Codes::standard().retry("X");
    for size in [1000, LIMIT - 1, LIMIT, LIMIT + 1, 3 * LIMIT] {
        let body = document("X", size);
        let made = if size <= LIMIT { 6 } else { 1 };
        for frame in [100, 4096, usize::MAX] {
            // Frames that are tiny count as more than they are.
            let found = attempts(codes(), || in_frames(400, &body, frame)).await;
            assert_eq!(found, made, "{size} in frames of {frame}");
        }
        assert_eq!(attempts(codes(), || json(400, body.clone())).await, made);
    }
    let short = codes().limit(100);
    let found = attempts(short, || json(400, document("X", 101))).await;
    assert_eq!(found, 1, "a limit of one's own");
}

/// A body that says how long it is and is not to be read.
struct Untouchable(u64);

impl Body for Untouchable {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        unreachable!("it was read")
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0)
    }
}

#[tokio::test(start_paused = true)]
async fn c_6_what_says_that_it_is_too_long_is_not_read() {
    let long = || json(400, "").map(|_| Untouchable(64 * 1024 + 1).boxed_unsync());
    assert_eq!(attempts(Codes::standard().retry("X"), long).await, 1);
    // Nor is what nobody asks about: a success, and a 4xx where only a 409 is of interest.
    let other = |status| move || json(status, "").map(|_| Untouchable(10).boxed_unsync());
    assert_eq!(attempts(Codes::bank(), other(200)).await, 1);
    assert_eq!(attempts(Codes::standard(), other(400)).await, 1);
}

#[tokio::test(start_paused = true)]
async fn c_6_the_response_is_whole_for_the_caller() {
    for size in [20, 1000, 64 * 1024, 64 * 1024 + 1, 300_000] {
        for code in ["NEVER", "ALWAYS", "OTHER"] {
            let body = document(code, size.max(40));
            let codes = Codes::standard().never("NEVER").retry("ALWAYS");
            let called = run(policy(codes), get(), |_| {
                let mut trailers = HeaderMap::new();
                trailers.insert("x-end", HeaderValue::from_static("here"));
                let chunks = body.as_bytes().chunks(1 + size / 7);
                let data = chunks.map(|chunk| Frame::data(Bytes::copy_from_slice(chunk)));
                let frames = data.chain([Frame::trailers(trailers)]).collect();
                json(400, "").map(|_| Frames(frames).boxed_unsync())
            });
            let response = called.await.result.unwrap();
            let whole = response.into_body().collect().await.unwrap();
            assert_eq!(whole.trailers().unwrap()["x-end"], "here");
            assert_eq!(whole.to_bytes(), body, "{code} {size}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c_6_a_body_that_stalls_is_not_waited_for() {
    let codes = Codes::standard().retry("X").time(Duration::from_millis(40));
    let deps = Dependencies::new(policy(codes).build().unwrap());
    let (sender, body) = Channel::<Bytes, Infallible>::new(4);
    let body = Arc::new(Mutex::new(Some(body)));
    let service = service_fn(move |_: Request<Full<Bytes>>| {
        let body = body.lock().unwrap().take().expect("one attempt");
        async { Ok::<_, Infallible>(json(400, "").map(|_| body.boxed_unsync())) }
    });
    let mut client = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()))
        .layer(PeekLayer::new(deps))
        .service(service);
    let mut sender = sender;
    sender
        .send_data(Bytes::from_static(b"{\"code\":"))
        .await
        .unwrap();

    let start = Instant::now();
    let response = call(&mut client, get()).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_millis(40));
    sender
        .send_data(Bytes::from_static(b"\"X\"}"))
        .await
        .unwrap();
    drop(sender);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, r#"{"code":"X"}"#);
}

// ---- C-7

#[tokio::test(start_paused = true)]
async fn c_7_what_an_idempotency_store_answered_is_final() {
    for (value, made) in [("true", 1), ("TRUE", 1), ("false", 4), ("", 4)] {
        for body in ["{}", r#"{"code":"UNAVAILABLE"}"#] {
            let policy = Policy::synchronous().codes(Codes::forrst());
            let called = run(policy, get(), |_| {
                let mut reply = json(503, body);
                let value = HeaderValue::from_static(value);
                reply.headers_mut().insert("idempotent-replayed", value);
                reply
            });
            assert_eq!(called.await.outcome().0, made, "{value} {body}");
        }
    }
}

fn cached(urn: &str, status: &str) -> String {
    format!(
        r#"{{"errors":[{{"code":"UNAVAILABLE"}}],"extensions":[{{"urn":"urn:forrst:ext:retry","data":{{"allowed":true}}}},{{"urn":"{urn}","data":{{"key":"k","status":"{status}"}}}}]}}"#
    )
}

#[tokio::test(start_paused = true)]
async fn c_7_what_forrst_says_is_cached_is_final() {
    let ours = "urn:forrst:ext:idempotency";
    for (urn, status, made) in [
        (ours, "cached", 1),
        ("urn:cline:forrst:ext:idempotency", "cached", 1),
        (ours, "processed", 6),
        (ours, "processing", 6),
        ("urn:forrst:ext:other", "cached", 6),
    ] {
        for http in [200, 503] {
            let found = attempts(Codes::forrst(), || json(http, cached(urn, status))).await;
            assert_eq!(found, made, "{urn} {status} {http}");
        }
    }
    let result = r#"{"result":{"ok":1},"extensions":[{"urn":"urn:forrst:ext:idempotency","data":{"status":"cached"}}]}"#;
    let called = run(policy(Codes::forrst()), get(), |_| json(200, result)).await;
    assert_eq!(called.outcome(), (1, None), "a success is one");
}

// ---- what a code says of the dependency

#[tokio::test(start_paused = true)]
async fn c_8_a_code_says_how_its_dependency_is() {
    for (code, status, health) in [
        ("UNAVAILABLE", 200, Health::Failure),
        ("NOT_FOUND", 500, Health::Success),
        ("RATE_LIMITED", 503, Health::Neutral),
        ("SOMETHING_ELSE", 500, Health::Failure),
        ("SOMETHING_ELSE", 200, Health::Success),
    ] {
        let policy = Policy::synchronous().codes(Codes::forrst());
        let deps = Dependencies::new(policy.build().unwrap());
        let mut client = ServiceBuilder::new()
            .layer(CircuitBreakerLayer::new(deps.clone()))
            .layer(PeekLayer::new(deps.clone()))
            .service(service_fn(move |_: Request<Full<Bytes>>| async move {
                Ok::<_, Infallible>(json(status, forrst(code)))
            }));
        let mut refused = false;
        for _ in 0..30 {
            refused |= call(&mut client, get()).await.is_err();
        }
        assert_eq!(refused, health == Health::Failure, "{code} {status}");
    }
}

// ---- configuration

#[cfg(feature = "serde")]
mod configured {
    use super::*;

    fn expected() -> Codes {
        Codes::forrst()
            .retry("BUSY")
            .at_most("LOCKED", 1)
            .fresh_id("STALE")
            .never("FRAUD")
            .pointer("/fault/id")
            .content_type("text/json")
            .limit(1024)
            .time(Duration::from_millis(50))
    }

    #[test]
    fn c_6_tables_come_from_configuration() {
        let toml = Policy::from_toml(
            r#"
            profile = "synchronous"
            [rules]
            request_id_header = "x-nonce"
            [rules.codes]
            preset = "forrst"
            retry = ["BUSY"]
            once = ["LOCKED"]
            fresh_id = ["STALE"]
            never = ["FRAUD"]
            pointers = ["/fault/id"]
            content_types = ["text/json"]
            limit = 1024
            time = "50ms"
            "#,
        );
        let json = Policy::from_json(
            r#"{"profile":"synchronous","rules":{"request_id_header":"x-nonce","codes":{
                "preset":"forrst","retry":["BUSY"],"once":["LOCKED"],"fresh_id":["STALE"],
                "never":["FRAUD"],"pointers":["/fault/id"],"content_types":["text/json"],
                "limit":1024,"time":"50ms"}}}"#,
        );
        let env = Policy::from_env(
            "APP_",
            [
                ("APP_PROFILE", "synchronous"),
                ("APP_RULES__REQUEST_ID_HEADER", "x-nonce"),
                ("APP_RULES__CODES__PRESET", "forrst"),
                ("APP_RULES__CODES__RETRY", r#"["BUSY"]"#),
                ("APP_RULES__CODES__ONCE", r#"["LOCKED"]"#),
                ("APP_RULES__CODES__FRESH_ID", r#"["STALE"]"#),
                ("APP_RULES__CODES__NEVER", r#"["FRAUD"]"#),
                ("APP_RULES__CODES__POINTERS", r#"["/fault/id"]"#),
                ("APP_RULES__CODES__CONTENT_TYPES", r#"["text/json"]"#),
                ("APP_RULES__CODES__LIMIT", "1024"),
                ("APP_RULES__CODES__TIME", "50ms"),
            ],
        );
        for policy in [toml, json, env] {
            let policy = policy.unwrap();
            assert_eq!(policy.rules().codes, expected());
            assert_eq!(policy.rules().request_id_header, "x-nonce");
        }
    }

    #[test]
    fn c_6_what_is_not_said_is_the_profiles() {
        let codes = |text| Policy::from_toml(text).unwrap().rules().codes.clone();
        assert_eq!(codes("profile = 'bank'"), Codes::bank());
        let more = "profile = 'bank'\nrules.codes = { never = ['UPSTREAM_UNAVAILABLE'] }";
        assert_eq!(codes(more), Codes::bank().never("UPSTREAM_UNAVAILABLE"));
        let other = "profile = 'bank'\nrules.codes = { preset = 'standard' }";
        assert_eq!(codes(other), Codes::standard());
    }

    #[test]
    fn p_4_an_error_names_the_field() {
        for (codes, field) in [
            ("{ preset = 'fortran' }", "rules.codes.preset"),
            ("{ retries = ['BUSY'] }", "rules.codes.retries"),
            ("{ retry = 'BUSY' }", "rules.codes.retry"),
            ("{ retry = [17] }", "rules.codes.retry[0]"),
            ("{ limit = 0 }", "rules.codes.limit"),
            ("{ limit = 1048577 }", "rules.codes.limit"),
            ("{ limit = -1 }", "rules.codes.limit"),
            ("{ time = '11s' }", "rules.codes.time"),
            ("{ time = 'soon' }", "rules.codes.time"),
            ("{ pointers = ['fault'] }", "rules.codes.pointers"),
            ("{ pointers = ['/a~2'] }", "rules.codes.pointers"),
            ("{ pointers = [''] }", "rules.codes.pointers"),
            ("{ content_types = ['json'] }", "rules.codes.content_types"),
            (
                "{ content_types = ['a/b; c'] }",
                "rules.codes.content_types",
            ),
            ("{ retry = [''] }", "rules.codes"),
            ("{ never = ['two words'] }", "rules.codes"),
        ] {
            let text = format!("profile = 'synchronous'\nrules.codes = {codes}");
            let error = Policy::from_toml(&text).unwrap_err();
            assert_eq!(error.field(), field, "{codes}: {error}");
            assert!(error.to_string().len() > field.len() + 10, "{error}");
        }
        let header = "profile = 'synchronous'\nrules.request_id_header = 'two words'";
        let error = Policy::from_toml(header).unwrap_err();
        assert_eq!(error.field(), "rules.request_id_header");
    }

    #[test]
    fn p_2_the_builder_refuses_the_same() {
        for codes in [
            Codes::standard().limit(0),
            Codes::standard().limit(1024 * 1024 + 1),
            Codes::standard().time(Duration::from_secs(11)),
            Codes::standard().pointer("fault"),
            Codes::standard().content_type("json"),
            Codes::standard().retry(""),
            Codes::standard().retry("x".repeat(129)),
        ] {
            let refused = Policy::synchronous().codes(codes.clone()).build();
            assert!(refused.is_err(), "{codes:?}");
        }
    }
}
