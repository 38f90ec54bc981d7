//! Bodies that stream over real hyper connections, to servers that misbehave on purpose.

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full, channel::Channel, combinators::BoxBody};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{net::TcpSocket, sync::Notify};
use tower::{Layer, ServiceBuilder, ServiceExt, util::BoxCloneService};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, IdempotencyKeyLayer, PeekLayer, Policy, RetryAfterLayer,
    RetryBudgetLayer, RetryLayer,
    call::{Attempt, StopReason},
    classify::Codes,
    client::retry::ReplayBody,
    error::BoxError,
    http::BufferedBody,
    policy::PolicyBuilder,
};

use crate::support::{
    arrivals::Arrival,
    call,
    http1::{Act, Server, reply},
    http2::{Act2, Server2},
    outcome,
    pieces::{Broken, Piece, Pieces, data, trailers},
};

type Body = BoxBody<Bytes, Broken>;
type Peeked = Response<BufferedBody<hyper::body::Incoming>>;
type Stack = BoxCloneService<Request<Body>, Peeked, BoxError>;

pub(crate) fn policy() -> PolicyBuilder {
    Policy::http()
        .base(Duration::from_millis(1))
        .cap(Duration::from_millis(2))
}

/// A client that repeats nothing by itself, and over HTTP/1 connects anew for each attempt.
fn client<E>(http2: bool) -> legacy::Client<HttpConnector, BoxBody<Bytes, E>>
where
    E: Into<BoxError> + Send + Sync + 'static,
{
    legacy::Client::builder(TokioExecutor::new())
        .http2_only(http2)
        .retry_canceled_requests(false)
        .pool_max_idle_per_host(usize::from(http2))
        .build(HttpConnector::new())
}

fn stack(policy: PolicyBuilder, http2: bool) -> Stack {
    let deps = Dependencies::new(policy.build().unwrap());
    BoxCloneService::new(
        ServiceBuilder::new()
            .layer(IdempotencyKeyLayer::new())
            .layer(RetryBudgetLayer::new(deps.clone()))
            .layer(RetryLayer::new(deps.clone()))
            .layer(RetryAfterLayer::new(deps.clone()))
            .layer(CircuitBreakerLayer::new(deps.clone()))
            .layer(PeekLayer::new(deps))
            .service(client(http2)),
    )
}

async fn send(
    policy: PolicyBuilder,
    http2: bool,
    request: Request<Body>,
) -> Result<Peeked, BoxError> {
    call(&mut stack(policy, http2), request).await
}

fn post(uri: &str, body: Body) -> Request<Body> {
    Request::post(uri).body(body).unwrap()
}

/// The body that the tests send.
fn pieces() -> Vec<Piece> {
    vec![data("abc"), data("def"), data("ghi")]
}

/// A request with that body, in every way in which a client can have it.
fn requests(uri: &str) -> Vec<Request<Body>> {
    let pause = Piece::Wait(Duration::from_millis(5));
    let slow = pieces()
        .into_iter()
        .flat_map(|piece| [piece, pause.clone()]);
    let bodies = [
        Full::from("abcdefghi")
            .map_err(|never| match never {})
            .boxed(),
        Pieces::new(pieces()).boxed(),
        Pieces::new(pieces()).announces_end(true).boxed(),
        Pieces::new(pieces()).sized(true).boxed(),
        Pieces::new(slow).boxed(),
    ];
    let mut requests: Vec<_> = bodies.into_iter().map(|body| post(uri, body)).collect();
    // One whose length is in its head alone.
    let mut request = post(uri, Pieces::new(pieces()).boxed());
    request.headers_mut().insert("content-length", 9.into());
    requests.push(request);
    requests
}

/// All arrivals are of one operation, and those that came whole are the same to the byte.
fn assert_same(arrivals: &[Arrival]) {
    let key = arrivals[0].header("idempotency-key").unwrap();
    for arrival in arrivals {
        assert_eq!(arrival.header("idempotency-key"), Some(key));
        assert!(b"abcdefghi".starts_with(&arrival.body));
        assert!(!arrival.whole || arrival.body == b"abcdefghi");
    }
    assert!(arrivals.last().unwrap().whole);
}

pub(crate) const SECOND: Option<(u32, Option<StopReason>)> = Some((2, None));
const LOST: Option<(u32, Option<StopReason>)> = Some((1, Some(StopReason::NotReplayable)));

#[tokio::test]
async fn c_3_what_streams_over_http1_is_sent_again_after_every_fault() {
    let faults = [
        Act::Close,
        Act::ReadAndClose.part(0),
        Act::ReadAndClose.part(3),
        Act::ReadAndClose,
        Act::Reset.part(0),
        Act::Reset.part(3),
        Act::Reset,
        Act::Say("HTTP/1.1 200 OK\r\ncontent-le".into()),
        reply(503, "retry-after: 0\r\n"),
    ];
    for fault in faults {
        for kind in 0..requests("http://unused/").len() {
            let server = Server::start(vec![fault.clone(), reply(200, "")]).await;
            let request = requests(&server.uri()).swap_remove(kind);
            let result = send(policy(), false, request).await;
            assert_eq!(outcome(&result), SECOND, "{fault:?}, {kind}");
            assert_same(&server.arrivals());
        }
    }
}

#[tokio::test]
async fn c_3_what_streams_over_http2_is_sent_again_after_every_fault() {
    let faults = [
        (Act2::Close, false),
        (Act2::Reset(Reason::INTERNAL_ERROR), false),
        (Act2::Reset(Reason::REFUSED_STREAM), false),
        (Act2::GoAway(Reason::NO_ERROR), false),
        (Act2::GoAway(Reason::ENHANCE_YOUR_CALM), false),
        (Act2::GoAwayAndBreak, false),
        (Act2::Answer(503), false),
    ];
    for fault in faults {
        for kind in 0..requests("http://unused/").len() {
            let server = Server2::start(vec![fault]).await;
            let request = requests(&server.uri()).swap_remove(kind);
            let result = send(policy(), true, request).await;
            assert_eq!(outcome(&result), SECOND, "{fault:?}, {kind}");
            assert_same(&server.arrivals());
        }
    }
}

#[tokio::test]
async fn c_4_a_refused_stream_gives_a_body_back_that_was_not_begun() {
    // The first frame is not there when the stream is refused, and there is no key.
    let wait = Piece::Wait(Duration::from_millis(50));
    let server = Server2::start(vec![(Act2::Reset(Reason::REFUSED_STREAM), true)]).await;
    let body = Pieces::new([vec![wait], pieces()].concat()).boxed();
    let deps = Dependencies::new(policy().build().unwrap());
    let client = RetryLayer::new(deps).layer(client(true));
    let result = client.oneshot(post(&server.uri(), body)).await;
    assert_eq!(outcome(&result), SECOND);
    assert_eq!(server.arrivals()[1].body, b"abcdefghi");
}

#[tokio::test]
async fn c_4_a_refused_connection_leaves_the_body_alone() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let uri = format!("http://{}/", socket.local_addr().unwrap());
    for http2 in [false, true] {
        let body = Pieces::new(pieces());
        let polls = body.polls();
        let result = send(policy(), http2, post(&uri, body.boxed())).await;
        assert_eq!(outcome(&result), Some((4, Some(StopReason::Exhausted))));
        assert_eq!(polls.load(Ordering::Relaxed), 0);
    }
}

#[tokio::test]
async fn d_3_a_stalled_attempt_is_given_up_and_its_body_sent_again() {
    let policy = || policy().attempt_timeout(Duration::from_millis(150));
    let server = Server::start(vec![Act::Stall, reply(200, "")]).await;
    let request = post(&server.uri(), Pieces::new(pieces()).boxed());
    let result = send(policy(), false, request).await;
    assert_eq!(result.as_ref().unwrap().status(), 200);
    assert!(server.arrivals().len() >= 2);
    assert_same(&server.arrivals());

    let server = Server2::start(vec![(Act2::Stall, false)]).await;
    let request = post(&server.uri(), Pieces::new(pieces()).boxed());
    let result = send(policy(), true, request).await;
    assert_eq!(result.as_ref().unwrap().status(), 200);
    assert_same(&server.arrivals());
}

#[tokio::test]
async fn d_4_trailers_are_sent_again() {
    let body = || Pieces::new([pieces(), vec![trailers([("x-sum", "45")])]].concat()).boxed();
    let server = Server::start(vec![reply(503, ""), reply(200, "")]).await;
    let mut request = post(&server.uri(), body());
    request
        .headers_mut()
        .insert("trailer", "x-sum".parse().unwrap());
    let result = send(policy(), false, request).await;
    assert_eq!(outcome(&result), SECOND);

    let server2 = Server2::start(vec![(Act2::Answer(503), false)]).await;
    let result = send(policy(), true, post(&server2.uri(), body())).await;
    assert_eq!(outcome(&result), SECOND);
    for arrivals in [server.arrivals(), server2.arrivals()] {
        assert_eq!(arrivals.len(), 2);
        assert_same(&arrivals);
        assert!(
            arrivals
                .iter()
                .all(|arrival| arrival.trailers["x-sum"] == "45")
        );
    }
}

/// Sends a body of which only the beginning is there until it is retried.
async fn send_slowly<E>(http2: bool, uri: &str)
where
    E: Into<BoxError> + std::fmt::Debug + Send + Sync + 'static,
    BoxBody<Bytes, E>: ReplayBody<Recording: Send>,
{
    let (mut more, body) = Channel::<Bytes, E>::new(9);
    more.send_data("abc".into()).await.unwrap();
    let more = Arc::new(Mutex::new(Some(more)));
    let prepare = move |request: Request<BoxBody<Bytes, E>>, _: Attempt| {
        let mut more = more.lock().unwrap().take().unwrap();
        async move {
            more.send_data("def".into()).await.unwrap();
            more.send_data("ghi".into()).await.unwrap();
            let sum = HeaderMap::from_iter([("x-sum".parse().unwrap(), "45".parse().unwrap())]);
            more.send_trailers(sum).await.unwrap();
            Ok::<_, BoxError>(request)
        }
    };
    let deps = Dependencies::new(policy().build().unwrap());
    let client = ServiceBuilder::new()
        .layer(RetryLayer::new(deps).with_prepare(prepare))
        .service(client(http2));
    let request = Request::put(uri)
        .header("trailer", "x-sum")
        .body(body.boxed());
    let result = client.oneshot(request.unwrap()).await;
    assert_eq!(outcome(&result), SECOND);
}

/// The first connection or stream is open all the while, and the client told to send on.
#[tokio::test]
async fn d_8_after_an_early_answer_the_rest_goes_to_the_retry() {
    let open = Act::SayLater(
        "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n".into(),
        Arc::default(),
        String::new(),
    );
    for knows_error in [false, true] {
        let server = Server::start(vec![open.clone().part(3), reply(200, "")]).await;
        let server2 = Server2::start(vec![(Act2::Answer(503), true)]).await;
        for (http2, uri) in [(false, server.uri()), (true, server2.uri())] {
            match knows_error {
                true => send_slowly::<BoxError>(http2, &uri).await,
                false => send_slowly::<Broken>(http2, &uri).await,
            }
        }
        for arrivals in [server.arrivals(), server2.arrivals()] {
            assert_eq!(arrivals.len(), 2);
            assert!(!arrivals[0].whole);
            assert!(arrivals[1].whole);
            assert_eq!(arrivals[1].body, b"abcdefghi");
            assert_eq!(arrivals[1].trailers["x-sum"], "45");
        }
    }
}

/// Sends a body whose rest comes with its retry, and fails then or ends.
pub(crate) async fn send_rest(
    policy: PolicyBuilder,
    http2: bool,
    uri: &str,
    fails: bool,
) -> Result<Response<hyper::body::Incoming>, BoxError> {
    let (mut more, body) = Channel::<Bytes, BoxError>::new(9);
    more.send_data("abc".into()).await.unwrap();
    let more = Arc::new(Mutex::new(Some(more)));
    let prepare = move |request: Request<BoxBody<Bytes, BoxError>>, _: Attempt| {
        let mut more = more.lock().unwrap().take().unwrap();
        async move {
            more.send_data("defghi".into()).await.unwrap();
            if fails {
                more.abort("the disk is gone".into());
            }
            Ok::<_, BoxError>(request)
        }
    };
    let client = ServiceBuilder::new()
        .layer(RetryLayer::new(Dependencies::new(policy.build().unwrap())).with_prepare(prepare))
        .service(client(http2));
    let request = Request::put(uri).body(body.boxed()).unwrap();
    client.oneshot(request).await
}

/// The retry that reads the rest is the last one, and nobody takes a part for the whole.
#[tokio::test]
async fn d_8_a_rest_that_fails_or_is_too_long_ends_with_the_retry_that_reads_it() {
    let open = Act::SayLater(
        "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n".into(),
        Arc::default(),
        String::new(),
    );
    for fails in [true, false] {
        let server =
            Server::start(vec![open.clone().part(3), reply(503, ""), reply(200, "")]).await;
        let busy = |early| (Act2::Answer(503), early);
        let server2 = Server2::start(vec![busy(true), busy(false)]).await;
        for (http2, uri) in [(false, server.uri()), (true, server2.uri())] {
            let limit = if fails { 100 } else { 5 };
            let result = send_rest(policy().replay_limit(limit), http2, &uri, fails).await;
            let (attempts, reason) = outcome(&result).unwrap();
            assert_eq!(attempts, 2);
            match fails {
                true => assert_ne!(reason, None, "{:?}", result.unwrap_err()),
                false => {
                    assert_eq!(reason, Some(StopReason::NotReplayable));
                    assert_eq!(result.unwrap().status(), 503);
                }
            }
        }
        for arrivals in [server.arrivals(), server2.arrivals()] {
            assert!(!arrivals[0].whole);
            assert!(arrivals.len() <= 2);
            match fails {
                true => assert!(arrivals.iter().all(|arrival| !arrival.whole)),
                false => {
                    assert!(arrivals[1].whole);
                    assert_eq!(arrivals[1].body, b"abcdefghi");
                }
            }
        }
    }
}

#[tokio::test]
async fn s_3_a_body_over_the_cap_arrives_whole_and_once() {
    let long = || Pieces::new((0..70).map(|n| data(vec![n; 1000])));
    let server = Server::start(vec![reply(503, ""), reply(200, "")]).await;
    let result = send(policy(), false, post(&server.uri(), long().boxed())).await;
    assert_eq!(outcome(&result), LOST);

    let server2 = Server2::start(vec![(Act2::Answer(503), false)]).await;
    let result = send(policy(), true, post(&server2.uri(), long().boxed())).await;
    assert_eq!(outcome(&result), LOST);
    for arrivals in [server.arrivals(), server2.arrivals()] {
        assert_eq!(arrivals.len(), 1);
        assert!(arrivals[0].whole);
        assert_eq!(arrivals[0].body.len(), 70_000);
    }
}

#[tokio::test]
async fn d_4_a_body_that_fails_is_not_sent_again() {
    let broken = || Pieces::new([data("ab"), Piece::Fail]).boxed();
    let server = Server::start(vec![reply(200, "")]).await;
    let result = send(policy(), false, post(&server.uri(), broken())).await;
    assert_eq!(outcome(&result).unwrap().0, 1);
    result.unwrap_err();
    assert!(server.arrivals().iter().all(|arrival| !arrival.whole));

    let server = Server2::start(vec![]).await;
    let result = send(policy(), true, post(&server.uri(), broken())).await;
    assert_eq!(outcome(&result).unwrap().0, 1);
    assert!(server.arrivals().iter().all(|arrival| !arrival.whole));
}

#[tokio::test]
async fn s_3_an_error_body_that_trickles_does_not_keep_a_retry() {
    let head = "HTTP/1.1 503 Busy\r\ncontent-length: 9\r\n\r\nso";
    let never = Act::SayLater(head.into(), Arc::default(), String::new());
    let server = Server::start(vec![never.clone(), reply(200, "")]).await;
    let codes = || Codes::standard().time(Duration::from_millis(20));
    let request = post(&server.uri(), Pieces::new(pieces()).boxed());
    let result = send(policy().codes(codes()), false, request).await;
    assert_eq!(outcome(&result), SECOND);

    // One that is the last word is the caller's to read.
    let more = Arc::new(Notify::new());
    let slow = Act::SayLater(head.into(), Arc::clone(&more), " sorry.".into());
    let server = Server::start(vec![slow]).await;
    let policy = policy().codes(codes());
    let request = Request::patch(server.uri()).body(Pieces::new(pieces()).boxed());
    let deps = Dependencies::new(policy.build().unwrap());
    let client = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()))
        .layer(PeekLayer::new(deps))
        .service(client(false));
    let result = client.oneshot(request.unwrap()).await;
    assert_eq!(outcome(&result), Some((1, Some(StopReason::NotIdempotent))));
    more.notify_one();
    let body = result.unwrap().into_body().collect().await.unwrap();
    assert_eq!(body.to_bytes(), "so sorry.");
}
