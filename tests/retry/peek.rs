//! Replies that are looked into: what is read, what is learned, and that nothing is lost.

use std::{
    future::pending,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, header::CONTENT_TYPE};
use http_body::{Body, Frame};
use proptest::prelude::*;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, PeekLayer, Policy, RetryAfterLayer, RetryLayer,
    RetryOverride, call::StopReason, classify::Codes, dependency::BreakerState, error::BoxError,
    http::BufferedBody, policy::PolicyBuilder,
};

use crate::support::{
    call, outcome,
    pieces::{Broken, Piece, Pieces, all_data, any_pieces, data, paused, read, trailers},
};

const HOST: &str = "a.example";
const METHOD: &str = "bank.Ledger/Balance";

type Peeked = Response<BufferedBody<Pieces>>;
type Client = BoxCloneService<Request<()>, Peeked, BoxError>;

fn policy() -> PolicyBuilder {
    Policy::grpc_unary().idempotent_methods([METHOD])
}

fn unary() -> PolicyBuilder {
    policy().unary_methods([METHOD])
}

/// A policy of which other methods are unary: this one may stream.
fn streaming() -> PolicyBuilder {
    policy().unary_methods(["bank.Ledger/Transfer"])
}

fn wait(milliseconds: u64) -> Piece {
    Piece::Wait(Duration::from_millis(milliseconds))
}

fn grpc(body: Pieces) -> Response<Pieces> {
    let response = Response::builder().header(CONTENT_TYPE, "application/grpc+proto");
    response.body(body).unwrap()
}

fn status(status: u16, body: Pieces) -> Response<Pieces> {
    let response = Response::builder().status(status).header("x-plain", "1");
    response.body(body).unwrap()
}

fn code(code: &str) -> Piece {
    trailers([("grpc-status", code)])
}

fn request() -> Request<()> {
    let request = Request::post(format!("http://{HOST}/{METHOD}"));
    request
        .header(CONTENT_TYPE, "application/grpc")
        .body(())
        .unwrap()
}

/// Answers with these replies in turn, and then with a success.
fn server(
    replies: impl IntoIterator<Item = Response<Pieces>>,
) -> impl Service<Request<()>, Response = Response<Pieces>, Error = BoxError, Future: Send>
+ Clone
+ Send
+ 'static {
    let mut replies: Vec<_> = replies.into_iter().collect();
    replies.reverse();
    let replies = Arc::new(Mutex::new(replies));
    service_fn(move |_: Request<()>| {
        let reply = replies.lock().unwrap().pop();
        async move { Ok(reply.unwrap_or_else(|| grpc(Pieces::new([data("ok"), code("0")])))) }
    })
}

/// A reply that was looked into.
async fn peek(policy: PolicyBuilder, reply: Response<Pieces>) -> Peeked {
    let deps = Dependencies::new(policy.build().unwrap());
    let mut client = PeekLayer::new(deps).layer(server([reply]));
    call(&mut client, request()).await.unwrap()
}

/// All client layers that judge, above the one that looks.
fn stack(policy: PolicyBuilder, replies: Vec<Response<Pieces>>) -> (Dependencies, Client) {
    let deps = Dependencies::new(policy.build().unwrap());
    let client = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()))
        .layer(RetryAfterLayer::new(deps.clone()))
        .layer(CircuitBreakerLayer::new(deps.clone()))
        .layer(PeekLayer::new(deps.clone()))
        .service(server(replies));
    (deps, BoxCloneService::new(client))
}

// Nothing is lost

/// Reads a body frame by frame, and checks what it says of itself on the way.
async fn read_checked(mut body: BufferedBody<Pieces>, sized: bool, mut left: usize) -> Vec<Piece> {
    let mut all = Vec::new();
    loop {
        let hint = body.size_hint();
        let ended = body.is_end_stream();
        if sized {
            assert_eq!(hint.exact(), Some(left as u64));
        } else {
            assert!(hint.lower() <= left as u64);
            assert_eq!(hint.upper(), None, "a size that was never announced");
        }
        let next = read(&mut body, 1).await;
        assert!(!ended || next.is_empty(), "not at its end");
        if next.is_empty() {
            return all;
        }
        left -= all_data(&next).len();
        all.extend(next);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn c_2_what_comes_out_is_what_went_in(
        pieces in any_pieces(),
        sized in any::<bool>(),
        announces in any::<bool>(),
        status in prop::sample::select(vec![200_u16, 200, 401, 404, 409, 425, 503]),
        content_type in prop::sample::select(vec!["application/grpc", "application/json", "text/plain"]),
        wait_for_it in any::<bool>(),
        limit in prop_oneof![1_usize..300, Just(64 * 1024)],
        time in 0_u64..6,
    ) {
        let body = Pieces::new(pieces.clone()).sized(sized).announces_end(announces);
        let reply = Response::builder().status(status).header(CONTENT_TYPE, content_type);
        let policy = if wait_for_it { unary() } else { policy() };
        let codes = Codes::forrst().limit(limit).time(Duration::from_millis(time));
        let out = paused().block_on(async {
            let response = peek(policy.codes(codes), reply.body(body).unwrap()).await;
            assert_eq!(response.status(), status);
            read_checked(response.into_body(), sized, all_data(&pieces).len()).await
        });
        let went_in: Vec<_> = pieces.into_iter().filter(|piece| !matches!(piece, Piece::Wait(_))).collect();
        prop_assert_eq!(out, went_in);
    }
}

#[tokio::test(start_paused = true)]
async fn c_2_what_is_of_no_interest_is_not_touched() {
    let untouched = [
        ("a plain success", status(200, Pieces::new([data("x")]))),
        ("nothing to retry", status(404, Pieces::new([data("x")]))),
        ("a redirect", status(307, Pieces::new([data("x")]))),
        ("grpc with its status in the head", {
            let mut reply = grpc(Pieces::new([data("x")]));
            reply.headers_mut().insert("grpc-status", 14.into());
            reply
        }),
        (
            "too long to read",
            status(503, Pieces::new([data(vec![0; 65537])]).sized(true)),
        ),
    ];
    for (what, reply) in untouched {
        let polls = reply.body().polls();
        let response = peek(unary(), reply).await;
        assert_eq!(polls.load(Ordering::Relaxed), 0, "{what}");
        assert_eq!(read(&mut response.into_body(), 9).await.len(), 1);
    }
}

// gRPC statuses in trailers

#[tokio::test(start_paused = true)]
async fn c_2_a_streams_head_is_not_delayed() {
    for first in [data("message"), data(""), code("14")] {
        let pieces = [wait(3_600_000), first.clone(), code("14")];
        let start = Instant::now();
        let response = peek(streaming(), grpc(Pieces::new(pieces))).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        let mut body = response.into_body();
        assert_eq!(read(&mut body, 1).await, [first]);
        assert_eq!(start.elapsed(), Duration::from_secs(3600));
    }
    // An empty frame that is there does not make it wait for the next.
    let start = Instant::now();
    let pieces = [data(""), wait(3_600_000), data("message")];
    let response = peek(streaming(), grpc(Pieces::new(pieces))).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(
        read(&mut response.into_body(), 9).await,
        [data(""), data("message")]
    );
}

#[tokio::test(start_paused = true)]
async fn c_2_a_reply_of_one_message_is_waited_for() {
    for first in [data("message"), code("0")] {
        let start = Instant::now();
        let response = peek(unary(), grpc(Pieces::new([wait(9000), first.clone()]))).await;
        assert_eq!(start.elapsed(), Duration::from_secs(9));
        assert_eq!(read(&mut response.into_body(), 9).await, [first]);
    }
    // Late trailers are seen only by who waits for them.
    for (policy, attempts) in [(unary(), Some((2, None))), (streaming(), None)] {
        let late = grpc(Pieces::new([wait(100), code("14")]));
        let (_, client) = stack(policy, vec![late]);
        assert_eq!(outcome(&client.oneshot(request()).await), attempts);
    }
    // And no longer than the call may take.
    let never = grpc(Pieces::new([wait(3_600_000), data("x")]));
    let (_, client) = stack(unary().total_timeout(Duration::from_secs(7)), vec![never]);
    let start = Instant::now();
    let result = client.oneshot(request()).await;
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Deadline))));
    assert_eq!(start.elapsed(), Duration::from_secs(7));
}

/// The profile says that replies are single messages; a call that is not retried may stream.
#[tokio::test(start_paused = true)]
async fn c_10_under_the_unary_profile_the_status_of_every_method_is_waited_for() {
    let off = RetryOverride::off;
    for (policy, wish, waits) in [
        (Policy::grpc_unary(), RetryOverride::new(), true),
        (Policy::grpc_unary(), off(), false),
        (streaming(), RetryOverride::new(), false),
        (Policy::http(), RetryOverride::new(), false),
    ] {
        let deps = Dependencies::new(policy.build().unwrap());
        let late = grpc(Pieces::new([wait(9000), code("14")]));
        let mut client = PeekLayer::new(deps).layer(server([late]));
        let mut request = request();
        request.extensions_mut().insert(wish);
        let start = Instant::now();
        call(&mut client, request).await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_secs(9) * u32::from(waits));
    }
}

/// A body that holds a place of the service until it is dropped.
struct Holding(
    Pieces,
    #[allow(dead_code, reason = "it is held")] OwnedSemaphorePermit,
);

impl Body for Holding {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }
}

/// A response whose body goes on would keep its connection from the retry. One that was read is
/// there for a caller whose retry brings nothing.
#[tokio::test(start_paused = true)]
async fn d_4_d_7_a_retry_does_not_wait_for_the_response_before_it() {
    let read = || vec![data("short")];
    let long = || vec![data(vec![0; 100_000]), wait(3_600_000)];
    let slow = || vec![data("x"), wait(3_600_000)];
    for (pieces, is_read) in [(read(), true), (long(), false), (slow(), false)] {
        for hangs in [false, true] {
            let places = Arc::new(Semaphore::new(1));
            let attempts = Arc::new(AtomicUsize::new(0));
            let (taken, first) = (Arc::clone(&places), pieces.clone());
            let service = service_fn(move |_: Request<()>| {
                let (places, pieces) = (Arc::clone(&taken), first.clone());
                let attempt = attempts.fetch_add(1, Ordering::Relaxed);
                async move {
                    let place = places.acquire_owned().await?;
                    if attempt > 0 && hangs {
                        pending::<()>().await;
                    }
                    let reply = Response::builder().status([503, 200][attempt]);
                    let body = Holding(Pieces::new(pieces), place);
                    Ok::<_, BoxError>(reply.header("x-plain", "1").body(body)?)
                }
            });
            let deps = Dependencies::new(Policy::http().build().unwrap());
            let mut client = ServiceBuilder::new()
                .layer(RetryLayer::new(deps.clone()))
                .layer(PeekLayer::new(deps))
                .service(service);
            let result = call(
                &mut client,
                Request::get("http://a.example/").body(()).unwrap(),
            );
            let result = result.await;
            let status = result.as_ref().ok().map(|reply| reply.status().as_u16());
            let (expected, reason) = match (hangs, is_read) {
                (false, _) => (Some(200), None),
                (true, true) => (Some(503), Some(StopReason::Deadline)),
                (true, false) => (None, Some(StopReason::Deadline)),
            };
            assert_eq!(status, expected, "{is_read} {hangs}");
            assert_eq!(outcome(&result), Some((2, reason)), "{is_read} {hangs}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c_2_trailers_without_a_message_are_judged_by_every_layer() {
    for pieces in [vec![code("14")], vec![data(""), data(""), code("14")]] {
        let replies = || vec![grpc(Pieces::new(pieces.clone()))];
        let (_, client) = stack(policy(), replies());
        let result = client.oneshot(request()).await;
        assert_eq!(outcome(&result), Some((2, None)));

        let minute = Duration::from_secs(60);
        let brittle = policy().consecutive_failures(1).cooldown(minute, minute);
        let (deps, client) = stack(brittle, replies());
        let result = client.oneshot(request()).await;
        assert_eq!(outcome(&result), Some((1, Some(StopReason::Breaker))));
        let breaker = deps.get(HOST).status().breaker;
        assert!(matches!(breaker, BreakerState::Open(_)), "{breaker:?}");
        // The caller gets the whole body.
        assert_eq!(read(&mut result.unwrap().into_body(), 9).await, pieces);
    }
    // A status that is not retried is one too.
    let (deps, client) = stack(policy(), vec![grpc(Pieces::new([code("5")]))]);
    let result = client.oneshot(request()).await;
    assert_eq!(outcome(&result), Some((1, Some(StopReason::NotRetryable))));
    assert_eq!(deps.get(HOST).status().breaker, BreakerState::Closed);
    // OK is a success, and so are trailers without a status.
    for fine in [code("0"), trailers([("x-sum", "1")])] {
        let (_, client) = stack(policy(), vec![grpc(Pieces::new([fine]))]);
        assert_eq!(outcome(&client.oneshot(request()).await), None);
    }
}

#[tokio::test(start_paused = true)]
async fn ra_8_a_pushback_in_trailers_is_kept() {
    let pushed_back = |pushback| {
        let fields = [("grpc-status", "14"), ("grpc-retry-pushback-ms", pushback)];
        vec![grpc(Pieces::new([trailers(fields)]))]
    };
    let policy = || policy().retry_after_spread(Duration::ZERO);
    let start = Instant::now();
    let (_, client) = stack(policy(), pushed_back("7000"));
    assert_eq!(outcome(&client.oneshot(request()).await), Some((2, None)));
    assert_eq!(start.elapsed(), Duration::from_secs(7));

    let (_, client) = stack(policy(), pushed_back("-1"));
    let result = client.oneshot(request()).await;
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Pushback))));

    // RA-9: it holds for this call alone.
    let (deps, client) = stack(policy().max_retries(1), pushed_back("60000"));
    let result = client.oneshot(request()).await;
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Deadline))));
    assert_eq!(deps.get(HOST).status().hold, None);
}

#[tokio::test(start_paused = true)]
async fn c_2_trailers_after_a_message_are_the_callers() {
    for policy in [policy(), unary()] {
        let pieces = [data("message"), code("14")];
        let (deps, client) = stack(
            policy.consecutive_failures(1),
            vec![grpc(Pieces::new(pieces.clone()))],
        );
        let result = client.oneshot(request()).await;
        assert_eq!(outcome(&result), None);
        assert_eq!(deps.get(HOST).status().breaker, BreakerState::Closed);
        assert_eq!(read(&mut result.unwrap().into_body(), 9).await, pieces);
    }
}

#[tokio::test(start_paused = true)]
async fn c_7_a_replayed_reply_is_final_though_its_status_is_in_trailers() {
    let mut replayed = grpc(Pieces::new([code("14")]));
    let yes = http::HeaderValue::from_static("true");
    replayed.headers_mut().insert("idempotent-replayed", yes);
    let (_, client) = stack(policy(), vec![replayed]);
    let result = client.oneshot(request()).await;
    assert_eq!(outcome(&result), Some((1, Some(StopReason::NotRetryable))));
}

#[tokio::test(start_paused = true)]
async fn c_2_a_body_that_fails_before_its_trailers_is_the_callers_error() {
    let (_, client) = stack(policy(), vec![grpc(Pieces::new([Piece::Fail]))]);
    let result = client.oneshot(request()).await;
    assert_eq!(outcome(&result), None);
    assert_eq!(
        read(&mut result.unwrap().into_body(), 9).await,
        [Piece::Fail]
    );
}

// Error bodies

#[tokio::test(start_paused = true)]
async fn s_3_an_error_body_that_trickles_is_waited_for_no_longer_than_allowed() {
    let trickle = |gap| (0..999).flat_map(move |_| [wait(gap), data("x")]);
    for gap in [1, 40, 249, 251, 3_600_000] {
        let body = Pieces::new(trickle(gap));
        let start = Instant::now();
        let response = peek(policy(), status(503, body)).await;
        assert_eq!(
            start.elapsed(),
            Duration::from_millis(250),
            "{gap} ms apart"
        );
        let read = read(&mut response.into_body(), usize::MAX).await;
        assert_eq!(read.len(), 999, "{gap} ms apart");
    }
    // One that comes in time delays nobody after that.
    let start = Instant::now();
    peek(policy(), status(503, Pieces::new([wait(100), data("x")]))).await;
    assert_eq!(start.elapsed(), Duration::from_millis(100));
}

/// Nor so long that the head, which is there, is lost with the attempt.
#[tokio::test(start_paused = true)]
async fn d_4_an_error_body_that_stalls_does_not_cost_the_reply() {
    let policy = Policy::http().attempt_timeout(Duration::from_millis(200));
    let busy = || {
        let mut reply = status(429, Pieces::new([wait(3_600_000)]));
        let after = reply.headers_mut();
        after.insert("retry-after", "7".parse().unwrap());
        reply
    };
    let (deps, mut client) = stack(policy.max_retries(1), vec![busy(), busy()]);
    let reply = call(
        &mut client,
        Request::get(format!("http://{HOST}/")).body(()).unwrap(),
    )
    .await;
    assert_eq!(reply.as_ref().unwrap().status(), 429);
    assert_eq!(outcome(&reply), Some((2, Some(StopReason::Exhausted))));
    assert!(deps.get(HOST).status().hold.is_some());
}

#[tokio::test(start_paused = true)]
async fn s_3_no_more_of_an_error_body_is_read_than_allowed() {
    for (frame, frames, most) in [
        (1000, 99, 66),
        (1, 2000, 1025),
        (0, 2000, 1025),
        (1 << 20, 3, 1),
    ] {
        let body = Pieces::new((0..frames).map(|_| data(vec![7; frame])));
        let polls = body.polls();
        let response = peek(policy(), status(503, body)).await;
        assert_eq!(
            polls.load(Ordering::Relaxed),
            most,
            "frames of {frame} bytes"
        );
        let read = read(&mut response.into_body(), usize::MAX).await;
        assert_eq!(read.len(), frames, "frames of {frame} bytes");
    }
    // Nor of gRPC frames that are empty.
    let body = Pieces::new((0..2000).map(|_| data("")));
    let polls = body.polls();
    let response = peek(unary(), grpc(body)).await;
    assert_eq!(polls.load(Ordering::Relaxed), 1025);
    assert_eq!(
        read(&mut response.into_body(), usize::MAX).await.len(),
        2000
    );
}

#[tokio::test(start_paused = true)]
async fn d_4_an_error_body_that_breaks_off_is_retried_and_at_last_the_callers() {
    let broken = || status(503, Pieces::new([data("ha"), Piece::Fail]));
    let (_, client) = stack(policy().max_retries(1), vec![broken(), broken()]);
    let result = client.oneshot(request()).await;
    assert_eq!(outcome(&result), Some((2, Some(StopReason::Exhausted))));
    let body = &mut result.unwrap().into_body();
    assert_eq!(read(body, 9).await, [data("ha"), Piece::Fail]);
    assert_eq!(read(body, 9).await, [], "an error is told once");
}

/// A JSON body may say when to call again, in the members that the policy's table names.
#[cfg(feature = "codes")]
#[tokio::test(start_paused = true)]
async fn ra_10_members_of_a_problem_are_a_floor() {
    use tower_reprise::classify::retry_after::GuidanceTable;

    for (kind, body, least) in [
        (
            "application/problem+json",
            r#"{"status":429,"retry_after":7}"#,
            7000,
        ),
        (
            "application/json",
            r#"{"message":"slow down","retry_after":6.5,"global":false}"#,
            7000,
        ),
        ("application/json", r#"{"retryAfter":"1m30s"}"#, 90_000),
        ("application/json", r#"{"retry_after_ms":4500}"#, 4500),
        (
            "application/json",
            r#"{"parameters":{"retry_after":5}}"#,
            5000,
        ),
        (
            "application/json; charset=utf-8",
            r#"{"error":{"details":[{"@type":"help"},{"@type":"retry","retryDelay":"3.5s"}]}}"#,
            3500,
        ),
        ("application/json", r#"{"acme":{"wait":"8s"}}"#, 8000),
        // None of it.
        ("text/plain", r#"{"retry_after":7}"#, 0),
        ("application/json", r#"{"retry_after":-7}"#, 0),
        (
            "application/json",
            r#"{"retry_after":{"retry_after":7}}"#,
            0,
        ),
        ("application/json", r#"{"retry_after":7"#, 0),
    ] {
        let mut reply = status(503, Pieces::new([data(body)]));
        reply
            .headers_mut()
            .insert(CONTENT_TYPE, kind.parse().unwrap());
        let table = GuidanceTable::standard().delay("/acme/wait");
        let builder = Policy::events()
            .dead_letters("q")
            .base(Duration::from_millis(1))
            .cap(Duration::from_millis(2))
            .guidance(table)
            .idempotent_methods([METHOD]);
        let (_, client) = stack(builder, vec![reply]);
        let start = Instant::now();
        let result = client.oneshot(request()).await;
        assert_eq!(outcome(&result), Some((2, None)), "{body}");
        let waited = start.elapsed().as_millis();
        // A tenth more, at most, and the backoff.
        assert!(
            (least..=least * 11 / 10 + 3).contains(&waited),
            "{body}: {waited}"
        );
    }
}

/// An error code may say that there are too many calls, whatever its status is.
#[cfg(feature = "codes")]
#[tokio::test(start_paused = true)]
async fn b_5_a_code_for_throttling_has_the_wait_of_throttling() {
    for (code, throttled) in [("SlowDown", true), ("InternalError", false)] {
        let mut longest = Duration::ZERO;
        for _ in 0..100 {
            let body = format!(r#"{{"code":"{code}"}}"#);
            let mut reply = status(400, Pieces::new([data(body)]));
            let json = http::HeaderValue::from_static("application/json");
            reply.headers_mut().insert(CONTENT_TYPE, json);
            let codes = Codes::standard()
                .throttled("SlowDown")
                .retry("InternalError");
            let policy = policy()
                .base(Duration::from_millis(1))
                .throttled_base(Duration::from_secs(1))
                .codes(codes);
            let (_, client) = stack(policy, vec![reply]);
            let start = Instant::now();
            let result = client.oneshot(request()).await;
            assert_eq!(outcome(&result), Some((2, None)), "{code}");
            longest = longest.max(start.elapsed());
        }
        assert_eq!(
            longest > Duration::from_millis(100),
            throttled,
            "{code}: {longest:?}"
        );
    }
}

/// And it may say that a retry is of no use; that of a success says nothing.
#[cfg(feature = "codes")]
#[tokio::test(start_paused = true)]
async fn ra_10_a_member_stops() {
    use tower_reprise::classify::retry_after::GuidanceTable;

    let body = r#"{"retryable":false}"#;
    for (code, expected) in [(503, Some((1, Some(StopReason::Pushback)))), (200, None)] {
        let mut reply = status(code, Pieces::new([data(body)]));
        let json = http::HeaderValue::from_static("application/json");
        reply.headers_mut().insert(CONTENT_TYPE, json);
        let table = GuidanceTable::standard().stop("/retryable");
        let (_, client) = stack(policy().guidance(table), vec![reply]);
        let result = client.oneshot(request()).await;
        assert_eq!(outcome(&result), expected, "{code}");
        let read = read(&mut result.unwrap().into_body(), 9).await;
        assert_eq!(all_data(&read), body.as_bytes());
    }
}

#[cfg(feature = "codes")]
#[tokio::test(start_paused = true)]
async fn c_6_a_code_is_found_wherever_the_body_is_cut() {
    let document = br#"{"code":"FRAUD","text":"no"}"#;
    for cut in 0..=document.len() {
        let (first, second) = document.split_at(cut);
        let pieces = [data(first), wait(10), data(""), data(second)];
        let mut reply = status(503, Pieces::new(pieces));
        let json = http::HeaderValue::from_static("application/json");
        reply.headers_mut().insert(CONTENT_TYPE, json);
        let (_, client) = stack(
            policy().codes(Codes::standard().never("FRAUD")),
            vec![reply],
        );
        let result = client.oneshot(request()).await;
        assert_eq!(
            outcome(&result),
            Some((1, Some(StopReason::NotRetryable))),
            "cut at {cut}"
        );
        let read = read(&mut result.unwrap().into_body(), 9).await;
        assert_eq!(all_data(&read), document);
    }
}

#[cfg(feature = "codes")]
#[tokio::test(start_paused = true)]
async fn c_6_a_detected_replay_is_tried_once_more_with_a_fresh_id() {
    use tower_http::request_id::RequestId;

    let detected = r#"{"code":"REPLAY_DETECTED"}"#;
    for (replies, expected) in [
        ([(409, detected); 3], (2, Some(StopReason::Exhausted))),
        ([(409, detected), (503, ""), (200, "")], (3, None)),
    ] {
        let ids = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&ids);
        let server = service_fn(move |request: Request<()>| {
            let mut log = log.lock().unwrap();
            let known = request.extensions().get::<RequestId>().cloned();
            let header = request.headers()["x-request-id"].clone();
            assert_eq!(
                known.map(RequestId::into_header_value),
                Some(header.clone())
            );
            let (code, text) = replies[log.len()];
            log.push(header);
            let reply = Response::builder()
                .status(code)
                .header(CONTENT_TYPE, "application/json");
            let reply = reply.body(Pieces::new([data(text)])).unwrap();
            async { Ok::<_, BoxError>(reply) }
        });
        let deps = Dependencies::new(Policy::bank().build().unwrap());
        let mut client = ServiceBuilder::new()
            .layer(RetryLayer::new(deps.clone()))
            .layer(PeekLayer::new(deps))
            .service(server);
        let mut request = Request::get("http://a.example/").body(()).unwrap();
        let id = http::HeaderValue::from_static("one");
        request.headers_mut().insert("x-request-id", id.clone());
        request.extensions_mut().insert(RequestId::new(id.clone()));
        let result = call(&mut client, request).await;
        assert_eq!(outcome(&result), Some(expected));
        let ids = ids.lock().unwrap().clone();
        assert_eq!(ids[0], id);
        assert_eq!(ids.len(), expected.0 as usize);
        // The refused id never comes again, nor does any other.
        let distinct: std::collections::HashSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len());
        assert!(ids[1..].iter().all(|id| id.len() == 36));
    }
}

#[test]
fn a_reply_that_was_looked_into_shows_no_content() {
    let text = paused().block_on(async {
        let reply = status(503, Pieces::new([data("s3cret")]));
        format!("{:?}", peek(policy(), reply).await.into_body())
    });
    assert!(!text.contains("s3cret"), "{text}");
}

// Connections

#[cfg(feature = "hyper")]
mod connections {
    use super::*;
    use std::{convert::Infallible, net::Ipv4Addr, sync::atomic::AtomicUsize};

    use bytes::Bytes;
    use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
    use hyper::{body::Incoming, server::conn::http1};
    use hyper_util::{
        client::legacy,
        rt::{TokioExecutor, TokioIo},
    };
    use tokio::net::TcpListener;
    use tower_reprise::call::Attempt;

    /// A server on a real port that fails the first request on it with this body.
    async fn serve(
        failure: impl Fn() -> Full<Bytes> + Clone + Send + 'static,
    ) -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let uri = format!("http://{}/", listener.local_addr().unwrap());
        let (connections, requests) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&connections);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                let (failure, requests) = (failure.clone(), Arc::clone(&requests));
                let answer = hyper::service::service_fn(move |_: Request<Incoming>| {
                    let first = requests.fetch_add(1, Ordering::SeqCst) == 0;
                    let mut response =
                        Response::new(if first { failure() } else { Full::default() });
                    *response.status_mut() = if first { 503 } else { 200 }.try_into().unwrap();
                    async { Ok::<_, Infallible>(response) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        (uri, connections)
    }

    type Boxed = UnsyncBoxBody<Bytes, hyper::Error>;

    /// Connections made for a call that is retried once.
    async fn connections(looks: bool, failure: Full<Bytes>) -> usize {
        let (uri, connections) = serve(move || failure.clone()).await;
        let millisecond = Duration::from_millis(1);
        let policy = Policy::http().base(millisecond).cap(millisecond);
        let deps = Dependencies::new(policy.build().unwrap());
        let client = legacy::Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let client: BoxCloneService<_, Response<Boxed>, BoxError> = match looks {
            true => BoxCloneService::new(
                ServiceBuilder::new()
                    .map_response(|response: Response<_>| response.map(BodyExt::boxed_unsync))
                    .layer(PeekLayer::new(deps.clone()))
                    .service(client),
            ),
            false => BoxCloneService::new(
                ServiceBuilder::new()
                    .map_response(|response: Response<_>| response.map(BodyExt::boxed_unsync))
                    .map_err(BoxError::from)
                    .service(client),
            ),
        };
        // The hook lets the connection finish its work before the retry goes out.
        let settle = |request: Request<Full<Bytes>>, _: Attempt| async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            Ok::<_, BoxError>(request)
        };
        let client = RetryLayer::new(deps).with_prepare(settle).layer(client);
        let request = Request::get(uri).body(Full::default()).unwrap();
        let result = client.oneshot(request).await;
        assert_eq!(outcome(&result), Some((2, None)));
        connections.load(Ordering::SeqCst)
    }

    #[tokio::test]
    async fn a_retry_goes_out_on_the_connection_of_the_failed_attempt() {
        let body = |length| Full::new(Bytes::from(vec![7; length]));
        for length in [0, 1, 20_000, 64 * 1024] {
            assert_eq!(connections(true, body(length)).await, 1, "{length} bytes");
        }
        // One that is too long to be read takes its connection with it.
        assert_eq!(connections(true, body(64 * 1024 + 1)).await, 2);
        assert_eq!(
            connections(false, body(20_000)).await,
            2,
            "as without the layer"
        );
    }
}
