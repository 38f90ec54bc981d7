//! The stack over a real hyper client, against real servers that misbehave on purpose.
#![cfg(all(feature = "hyper", feature = "tracing"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

#[path = "support/authority.rs"]
mod authority;
#[path = "support/server.rs"]
mod server;

use std::{
    error::Error,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use h2::Reason;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{
        self,
        connect::{Connect, HttpConnector, dns::Name},
    },
    rt::{TokioExecutor, TokioIo},
};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::CertificateDer,
    server::WebPkiClientVerifier,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::Notify,
};
use tokio_rustls::TlsAcceptor;
use tower::{
    Service, ServiceBuilder, ServiceExt, service_fn, timeout::TimeoutLayer, util::BoxCloneService,
};
use tower_http::trace::TraceLayer;
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, IdempotencyKeyLayer, Policy, RetryAfterLayer,
    RetryBudgetLayer, RetryLayer, RetryOutcome,
    call::{Attempt, Cause, Health, Retryable, StopReason, Verdict},
    classify::{Classify, Rules, Standard},
    error::{BoxError, Elapsed, Refusal, Refused},
    http::GrpcCode,
    policy::PolicyBuilder,
};
use tracing::Span;

use authority::{Authority, Identity};
use server::{Act, Act2, Server, Server2, read_request, reply, say};

type Body = Full<Bytes>;
type Client<C = HttpConnector> = legacy::Client<C, Body>;
type Stack = BoxCloneService<Request<Body>, Response<Incoming>, BoxError>;

// ---- clients

fn policy() -> PolicyBuilder {
    Policy::synchronous()
        .base(Duration::from_millis(1))
        .cap(Duration::from_millis(2))
}

fn deps() -> Dependencies {
    Dependencies::new(policy().build().unwrap())
}

/// Attempts that stall are given up soon; the whole call has time enough.
fn impatient() -> Dependencies {
    let policy = policy().attempt_timeout(Duration::from_millis(150));
    Dependencies::new(policy.build().unwrap())
}

/// A client that connects anew for each attempt and repeats nothing by itself, so that what the
/// server sees is what the layers did.
fn over<C: Connect + Clone>(connector: C) -> Client<C> {
    legacy::Client::builder(TokioExecutor::new())
        .retry_canceled_requests(false)
        .pool_max_idle_per_host(0)
        .build(connector)
}

fn plain() -> Client {
    over(HttpConnector::new())
}

fn http2() -> Client {
    legacy::Client::builder(TokioExecutor::new())
        .http2_only(true)
        .retry_canceled_requests(false)
        .build(HttpConnector::new())
}

/// All five layers.
fn stack<C>(deps: &Dependencies, client: Client<C>) -> Stack
where
    C: Connect + Clone + Send + Sync + 'static,
{
    BoxCloneService::new(
        ServiceBuilder::new()
            .layer(IdempotencyKeyLayer::new())
            .layer(RetryBudgetLayer::new(deps.clone()))
            .layer(RetryLayer::new(deps.clone()))
            .layer(RetryAfterLayer::new(deps.clone()))
            .layer(CircuitBreakerLayer::new(deps.clone()))
            .service(client),
    )
}

/// All but the one that stamps keys.
fn keyless<C>(deps: &Dependencies, client: Client<C>) -> Stack
where
    C: Connect + Clone + Send + Sync + 'static,
{
    BoxCloneService::new(
        ServiceBuilder::new()
            .layer(RetryBudgetLayer::new(deps.clone()))
            .layer(RetryLayer::new(deps.clone()))
            .layer(RetryAfterLayer::new(deps.clone()))
            .layer(CircuitBreakerLayer::new(deps.clone()))
            .service(client),
    )
}

fn get(uri: &str) -> Request<Body> {
    Request::get(uri).body(Body::default()).unwrap()
}

fn post(uri: &str) -> Request<Body> {
    Request::post(uri).body(Body::from("pay")).unwrap()
}

async fn text(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// How a response was come by: attempts, and why there were no more.
fn outcome<B>(response: &Response<B>) -> (u32, Option<StopReason>) {
    RetryOutcome::of(response).map_or((1, None), |o| (o.attempts(), o.stop_reason()))
}

fn outcome_of(error: &BoxError) -> (u32, Option<StopReason>) {
    let outcome = RetryOutcome::of_error(&**error).expect("an outcome in the chain");
    (outcome.attempts(), outcome.stop_reason())
}

fn verdict(error: &BoxError) -> Verdict {
    let rules = Rules::standard();
    Classify::<Request<()>, Response<()>>::classify(&Standard, &rules, Err(&**error))
}

/// The parts of a verdict on a network error.
fn parts(error: &BoxError) -> (Cause, Retryable, Health, bool) {
    let v = verdict(error);
    assert_eq!(v.guidance, None);
    (v.cause, v.retry, v.health, v.never_sent)
}

/// Walks the sources alone, as a caller would.
fn source<T: Error + 'static>(error: &BoxError) -> Option<&T> {
    let mut link: Option<&(dyn Error + 'static)> = Some(&**error);
    while let Some(error) = link {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        link = error.source();
    }
    None
}

// ---- the stack

#[tokio::test]
async fn c_1_the_stack_mends_a_503() {
    let server = Server::start(vec![reply(503, ""), reply(200, "")]).await;
    let deps = deps();
    let response = stack(&deps, plain())
        .oneshot(get(&server.uri()))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(outcome(&response), (2, None));
    assert_eq!(text(response).await, "ok");
    assert_eq!(server.requests().len(), 2);

    let status = deps.get(&server.address.to_string()).status();
    assert_eq!(
        (status.originals, status.retries),
        (1, 1),
        "each counted once"
    );
}

#[tokio::test]
async fn c_1_a_success_is_left_alone() {
    let server = Server::start(vec![reply(200, "")]).await;
    let response = stack(&deps(), plain())
        .oneshot(get(&server.uri()))
        .await
        .unwrap();
    assert!(RetryOutcome::of(&response).is_none());
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn k_1_a_retried_post_carries_the_same_key_and_body() {
    let server = Server::start(vec![reply(503, ""), reply(502, ""), reply(200, "")]).await;
    let response = stack(&deps(), plain())
        .oneshot(post(&server.uri()))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    let keys = server.keys();
    assert_eq!(keys.len(), 3);
    assert_eq!(keys[0].as_deref().map(str::len), Some(36));
    assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    let requests = server.requests();
    assert!(requests.iter().all(|request| *request == requests[0]));
    assert!(requests[0].ends_with("pay"));
}

#[tokio::test]
async fn c_5_a_post_without_a_key_is_not_repeated_on_503() {
    let server = Server::start(vec![reply(503, ""), reply(200, "")]).await;
    let response = keyless(&deps(), plain())
        .oneshot(post(&server.uri()))
        .await
        .unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(outcome(&response), (1, Some(StopReason::NotIdempotent)));
    assert_eq!(server.requests().len(), 1);
}

// ---- connections that fail

/// An address that refuses connections until somebody listens on the socket.
fn deaf() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let uri = format!("http://{}/", socket.local_addr().unwrap());
    (socket, uri)
}

#[tokio::test]
async fn c_3_a_refused_connection_is_retried_until_exhausted() {
    let (_socket, uri) = deaf();
    let error = stack(&deps(), plain())
        .oneshot(get(&uri))
        .await
        .unwrap_err();
    assert_eq!(outcome_of(&error), (4, Some(StopReason::Exhausted)));
    assert_eq!(
        parts(&error),
        (Cause::Connect, Retryable::Yes, Health::Failure, true)
    );
    let io: &io::Error = source(&error).expect("the socket's error");
    assert_eq!(io.kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn c_4_a_post_without_a_key_is_repeated_when_the_connection_was_refused() {
    let (socket, uri) = deaf();
    let socket = Arc::new(Mutex::new(Some(socket)));
    let server = Arc::new(Mutex::new(None));
    // The server comes up between the first attempt and the second.
    let (waiting, up) = (socket.clone(), server.clone());
    let come_up = move |request: Request<Body>, _: Attempt| {
        if let Some(socket) = waiting.lock().unwrap().take() {
            let listener = socket.listen(8).unwrap();
            *up.lock().unwrap() = Some(Server::on(listener, vec![reply(200, "")]));
        }
        async { Ok::<_, BoxError>(request) }
    };
    let deps = deps();
    let response = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()).with_prepare(come_up))
        .layer(CircuitBreakerLayer::new(deps))
        .service(plain())
        .oneshot(post(&uri))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(outcome(&response), (2, None));
    let server = server.lock().unwrap().take().unwrap();
    assert_eq!(server.requests().len(), 1);
    assert_eq!(server.keys(), [None]);
}

#[tokio::test]
async fn c_3_a_connection_closed_before_the_request_is_read_is_retried() {
    let server = Server::start(vec![Act::Close, reply(200, "")]).await;
    let response = stack(&deps(), plain())
        .oneshot(get(&server.uri()))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(outcome(&response), (2, None));

    let server = Server::start(vec![Act::Close]).await;
    let error = stack(&deps(), plain())
        .oneshot(get(&server.uri()))
        .await
        .unwrap_err();
    assert_eq!(outcome_of(&error), (4, Some(StopReason::Exhausted)));
    assert_eq!(server.connections(), 4);
    // Which of them it is depends on who was faster.
    let cause = verdict(&error).cause;
    assert!(matches!(cause, Cause::Reset | Cause::Incomplete), "{cause}");
}

#[tokio::test]
async fn c_4_a_request_that_its_connection_never_took_was_never_sent() {
    let server = Server::start(vec![Act::Stall]).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let io = TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    drop(connection);
    let error = sender.send_request(post("/")).await.unwrap_err();
    assert!(error.is_canceled());
    assert_eq!(
        parts(&error.into()),
        (Cause::Reset, Retryable::Yes, Health::Failure, true)
    );
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn c_3_a_reply_that_never_begins_is_retried() {
    let server = Server::start(vec![Act::ReadAndClose]).await;
    let error = stack(&deps(), plain())
        .oneshot(get(&server.uri()))
        .await
        .unwrap_err();
    assert_eq!(server.requests().len(), 4);
    assert_eq!(outcome_of(&error), (4, Some(StopReason::Exhausted)));
    assert_eq!(
        parts(&error),
        (Cause::Incomplete, Retryable::Yes, Health::Failure, false)
    );
}

#[tokio::test]
async fn c_3_half_a_response_head_is_retried() {
    let half = Act::Say("HTTP/1.1 200 OK\r\ncontent-le".into());
    let server = Server::start(vec![half.clone(), reply(200, "")]).await;
    let response = stack(&deps(), plain())
        .oneshot(get(&server.uri()))
        .await
        .unwrap();
    assert_eq!(text(response).await, "ok");
    assert_eq!(server.requests().len(), 2);

    let server = Server::start(vec![half]).await;
    let error = stack(&deps(), plain())
        .oneshot(get(&server.uri()))
        .await
        .unwrap_err();
    assert_eq!(server.requests().len(), 4);
    assert_eq!(
        parts(&error),
        (Cause::Incomplete, Retryable::Yes, Health::Failure, false)
    );
}

#[tokio::test]
async fn c_3_a_reset_is_retried() {
    let server = Server::start(vec![Act::Reset, reply(200, "")]).await;
    let response = stack(&deps(), plain())
        .oneshot(get(&server.uri()))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(server.requests().len(), 2);

    let server = Server::start(vec![Act::Reset]).await;
    let error = stack(&deps(), plain())
        .oneshot(get(&server.uri()))
        .await
        .unwrap_err();
    assert_eq!(server.requests().len(), 4);
    assert_eq!(
        parts(&error),
        (Cause::Reset, Retryable::Yes, Health::Failure, false)
    );
}

#[tokio::test]
async fn c_5_a_post_that_may_have_been_processed_is_repeated_with_a_key_only() {
    for lost in [Act::ReadAndClose, Act::Reset] {
        let server = Server::start(vec![lost.clone(), reply(200, "")]).await;
        let error = keyless(&deps(), plain())
            .oneshot(post(&server.uri()))
            .await
            .unwrap_err();
        assert_eq!(outcome_of(&error), (1, Some(StopReason::NotIdempotent)));
        assert_eq!(server.requests().len(), 1);

        let server = Server::start(vec![lost, reply(200, "")]).await;
        let response = stack(&deps(), plain())
            .oneshot(post(&server.uri()))
            .await
            .unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(server.requests().len(), 2);
    }
}

#[tokio::test]
async fn c_3_a_reply_that_is_not_http_is_never_retried() {
    let server = Server::start(vec![Act::Say("SSH-2.0-OpenSSH_9.9\r\n\r\n".into())]).await;
    let error = stack(&deps(), plain())
        .oneshot(get(&server.uri()))
        .await
        .unwrap_err();
    assert_eq!(server.requests().len(), 1);
    assert_eq!(outcome_of(&error), (1, Some(StopReason::NotRetryable)));
    assert_eq!(
        parts(&error),
        (
            Cause::Serialization,
            Retryable::Never,
            Health::Neutral,
            false
        )
    );
}

#[tokio::test]
async fn d_1_a_body_that_comes_late_is_the_callers_to_read() {
    let late = Arc::new(Notify::new());
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nsl".into();
    let act = Act::SayLater(head, late.clone(), "ow".into());
    let server = Server::start(vec![act]).await;
    let response = stack(&deps(), plain())
        .oneshot(get(&server.uri()))
        .await
        .unwrap();
    assert!(RetryOutcome::of(&response).is_none());
    late.notify_one();
    assert_eq!(text(response).await, "slow");
}

#[tokio::test]
async fn d_4_a_body_that_breaks_off_is_the_callers_error() {
    let broken = Act::Say("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nbro".into());
    let server = Server::start(vec![broken]).await;
    let response = stack(&deps(), plain())
        .oneshot(get(&server.uri()))
        .await
        .unwrap();
    let error = response.into_body().collect().await.unwrap_err();
    assert!(!error.is_user(), "{error:?}");
    assert_eq!(server.requests().len(), 1);
}

// ---- time

#[tokio::test]
async fn d_3_an_attempt_that_stalls_is_given_up_and_retried() {
    let server = Server::start(vec![Act::Stall, reply(200, "")]).await;
    let response = stack(&impatient(), plain())
        .oneshot(get(&server.uri()))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert!(outcome(&response).0 >= 2);
    assert!(server.requests().len() >= 2);
}

#[tokio::test]
async fn d_3_stalls_to_the_end_are_a_timeout() {
    let server = Server::start(vec![Act::Stall]).await;
    let policy = policy()
        .max_retries(1)
        .attempt_timeout(Duration::from_millis(20));
    let deps = Dependencies::new(policy.build().unwrap());
    let error = stack(&deps, plain())
        .oneshot(get(&server.uri()))
        .await
        .unwrap_err();
    assert_eq!(outcome_of(&error), (2, Some(StopReason::Exhausted)));
    assert_eq!(
        parts(&error),
        (Cause::Timeout, Retryable::Yes, Health::Failure, false)
    );
    let elapsed: &Elapsed = source(&error).unwrap();
    assert!(!elapsed.is_whole_call());
    assert_eq!(elapsed.limit(), Duration::from_millis(20));
}

#[tokio::test]
async fn d_1_a_stall_of_the_whole_call_is_not_retried() {
    let server = Server::start(vec![Act::Stall]).await;
    let policy = policy().total_timeout(Duration::from_millis(50));
    let deps = Dependencies::new(policy.build().unwrap());
    let error = stack(&deps, plain())
        .oneshot(get(&server.uri()))
        .await
        .unwrap_err();
    assert_eq!(outcome_of(&error), (1, Some(StopReason::Deadline)));
    assert_eq!(
        parts(&error),
        (Cause::Timeout, Retryable::Never, Health::Failure, false)
    );
    assert!(source::<Elapsed>(&error).unwrap().is_whole_call());
}

#[tokio::test]
async fn c_3_a_timeout_of_towers_is_retried() {
    let limit = Duration::from_millis(150);
    let layered = |script| async move {
        let server = Server::start(script).await;
        let client = ServiceBuilder::new()
            .layer(RetryLayer::new(deps()))
            .layer(TimeoutLayer::new(limit))
            .service(plain());
        let result = client.oneshot(get(&server.uri())).await;
        (server, result)
    };
    let (server, result) = layered(vec![Act::Stall, reply(200, "")]).await;
    assert_eq!(result.unwrap().status(), 200);
    assert!(server.requests().len() >= 2);

    let (_server, result) = layered(vec![Act::Stall]).await;
    let error = result.unwrap_err();
    assert_eq!(outcome_of(&error), (4, Some(StopReason::Exhausted)));
    assert!(source::<tower::timeout::error::Elapsed>(&error).is_some());
    assert_eq!(
        parts(&error),
        (Cause::Timeout, Retryable::Yes, Health::Failure, false)
    );
}

#[tokio::test]
async fn c_3_a_connect_timeout_is_retried_for_any_method() {
    let timed_out = |connects: Arc<AtomicUsize>| {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let resolver = service_fn(move |_: Name| {
            connects.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok::<_, io::Error>(vec![address].into_iter()))
        });
        // A connector that takes too long, as seen from the client.
        let connector = ServiceBuilder::new()
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))
            .service(HttpConnector::new_with_resolver(resolver));
        over(connector)
    };
    let connects = Arc::new(AtomicUsize::new(0));
    let error = keyless(&deps(), timed_out(connects.clone()))
        .oneshot(post("http://slow.example/"))
        .await
        .unwrap_err();
    assert_eq!(connects.load(Ordering::SeqCst), 4);
    assert_eq!(
        parts(&error),
        (Cause::Timeout, Retryable::Yes, Health::Failure, true)
    );
}

// ---- names

#[tokio::test]
async fn c_3_a_name_that_does_not_resolve_is_looked_up_twice_at_most() {
    for request in [
        get("http://nowhere.invalid/"),
        post("http://nowhere.invalid/"),
    ] {
        let lookups = Arc::new(AtomicUsize::new(0));
        let counted = lookups.clone();
        let resolver = service_fn(move |_: Name| {
            counted.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Err::<std::vec::IntoIter<SocketAddr>, _>(io::Error::other(
                "no such name",
            )))
        });
        let error = keyless(&deps(), over(HttpConnector::new_with_resolver(resolver)))
            .oneshot(request)
            .await
            .unwrap_err();
        assert_eq!(lookups.load(Ordering::SeqCst), 2);
        assert_eq!(outcome_of(&error), (2, Some(StopReason::Exhausted)));
        assert_eq!(
            parts(&error),
            (
                Cause::Dns,
                Retryable::MaxConsecutive(1),
                Health::Failure,
                true
            )
        );
    }
}

#[tokio::test]
async fn c_3_a_lookup_that_times_out_is_a_dns_failure_still() {
    let resolver = service_fn(|_: Name| {
        std::future::ready(Err::<std::vec::IntoIter<SocketAddr>, _>(io::Error::from(
            io::ErrorKind::TimedOut,
        )))
    });
    let error = stack(&deps(), over(HttpConnector::new_with_resolver(resolver)))
        .oneshot(get("http://nowhere.invalid/"))
        .await
        .unwrap_err();
    assert_eq!(verdict(&error).cause, Cause::Dns);
    assert_eq!(outcome_of(&error).0, 2);
}

#[tokio::test]
async fn c_3_the_systems_resolver_is_recognised() {
    let error = stack(&deps(), plain())
        .oneshot(get("http://nowhere.invalid/"))
        .await
        .unwrap_err();
    assert_eq!(
        parts(&error),
        (
            Cause::Dns,
            Retryable::MaxConsecutive(1),
            Health::Failure,
            true
        )
    );
    assert_eq!(outcome_of(&error), (2, Some(StopReason::Exhausted)));

    let https = HttpsConnectorBuilder::new()
        .with_tls_config(trusting([]))
        .https_only()
        .enable_http1()
        .build();
    let error = stack(&deps(), over(https))
        .oneshot(get("https://nowhere.invalid/"))
        .await
        .unwrap_err();
    assert_eq!(verdict(&error).cause, Cause::Dns);
}

// ---- TLS

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn roots(trusted: impl IntoIterator<Item = CertificateDer<'static>>) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for certificate in trusted {
        roots.add(certificate).unwrap();
    }
    roots
}

fn trusting(trusted: impl IntoIterator<Item = CertificateDer<'static>>) -> ClientConfig {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots(trusted))
        .with_no_client_auth()
}

fn https(trusted: &Authority) -> Client<HttpsConnector<HttpConnector>> {
    over(
        HttpsConnectorBuilder::new()
            .with_tls_config(trusted.trusted())
            .https_only()
            .enable_http1()
            .build(),
    )
}

/// A TLS server: stalls so many connections, then answers 200.
struct TlsServer {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl TlsServer {
    async fn start(identity: Identity, stalls: usize) -> Self {
        Self::with(identity.acceptor(&[]), stalls).await
    }

    async fn with(acceptor: TlsAcceptor, stalls: usize) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            connections: Arc::default(),
            requests: Arc::default(),
        };
        let (connections, requests) = (server.connections.clone(), server.requests.clone());
        tokio::spawn(async move {
            let mut stalled = Vec::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                if connections.fetch_add(1, Ordering::SeqCst) < stalls {
                    stalled.push(stream);
                    continue;
                }
                let (acceptor, requests) = (acceptor.clone(), requests.clone());
                tokio::spawn(async move {
                    match acceptor.accept(stream).into_fallible().await {
                        Ok(stream) => {
                            let mut stream = BufReader::new(stream);
                            if let Ok(request) = read_request(&mut stream).await {
                                requests.lock().unwrap().push(request.head);
                                let Act::Say(text) = reply(200, "") else {
                                    unreachable!()
                                };
                                say(&mut stream, &text).await;
                                let _ = stream.shutdown().await;
                            }
                        }
                        // Read to the end, so that closing does not overtake the alert.
                        Err((_, mut stream)) => {
                            let _ = stream.read_to_end(&mut Vec::new()).await;
                        }
                    }
                });
            }
        });
        server
    }

    fn uri(&self) -> String {
        format!("https://{}/", self.address)
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn c_3_a_good_certificate_is_no_obstacle() {
    let authority = Authority::new();
    let server = TlsServer::start(authority.issue("127.0.0.1", false), 0).await;
    let response = stack(&deps(), https(&authority))
        .oneshot(get(&server.uri()))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(text(response).await, "ok");
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn c_3_a_bad_certificate_is_never_retried() {
    let authority = Authority::new();
    for request in [get, post] {
        let bad = [
            ("self-signed", Identity::self_signed("127.0.0.1")),
            (
                "unknown authority",
                Authority::new().issue("127.0.0.1", false),
            ),
            ("expired", authority.issue("127.0.0.1", true)),
            ("another's name", authority.issue("other.example", false)),
        ];
        for (what, identity) in bad {
            let server = TlsServer::start(identity, 0).await;
            let error = keyless(&deps(), https(&authority))
                .oneshot(request(&server.uri()))
                .await
                .unwrap_err();
            assert_eq!(server.connections(), 1, "{what}");
            assert_eq!(server.requests.lock().unwrap().len(), 0, "{what}");
            assert_eq!(
                outcome_of(&error),
                (1, Some(StopReason::NotRetryable)),
                "{what}"
            );
            assert_eq!(
                parts(&error),
                (Cause::Certificate, Retryable::Never, Health::Failure, true),
                "{what}"
            );
        }
    }
}

#[tokio::test]
async fn c_3_a_client_without_the_certificate_that_is_asked_for_does_not_insist() {
    let authority = Authority::new();
    let (certificate, key) = authority.issue("127.0.0.1", false).der();
    let trusted = Arc::new(roots([authority.certificate.der().clone()]));
    let verifier = WebPkiClientVerifier::builder_with_provider(trusted, provider())
        .build()
        .unwrap();
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let server = TlsServer::with(TlsAcceptor::from(Arc::new(config)), 0).await;
    // The alert comes after the client's side of the handshake, in place of a reply.
    let error = stack(&deps(), https(&authority))
        .oneshot(get(&server.uri()))
        .await
        .unwrap_err();
    assert_eq!(server.connections(), 1);
    assert_eq!(outcome_of(&error), (1, Some(StopReason::NotRetryable)));
    assert_eq!(verdict(&error).cause, Cause::Certificate);
}

#[tokio::test]
async fn c_3_a_handshake_that_stalls_is_retried() {
    let authority = Authority::new();
    let server = TlsServer::start(authority.issue("127.0.0.1", false), 1).await;
    let response = stack(&impatient(), https(&authority))
        .oneshot(get(&server.uri()))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert!(server.connections() >= 2);
}

#[tokio::test]
async fn c_3_a_handshake_that_breaks_off_is_retried_for_any_method() {
    let authority = Authority::new();
    let server = Server::start(vec![Act::Close]).await;
    let error = keyless(&deps(), https(&authority))
        .oneshot(post(&server.uri().replace("http:", "https:")))
        .await
        .unwrap_err();
    assert_eq!(server.connections(), 4);
    assert_eq!(
        parts(&error),
        (Cause::Reset, Retryable::Yes, Health::Failure, true)
    );
}

#[tokio::test]
async fn c_3_a_server_that_speaks_no_tls_is_not_retried() {
    // What it says is no TLS record, and as long as one.
    let server = PlainTalker::start().await;
    let error = stack(&deps(), https(&Authority::new()))
        .oneshot(get(&format!("https://{}/", server.address)))
        .await
        .unwrap_err();
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
    assert_eq!(
        parts(&error),
        (Cause::Tls, Retryable::Never, Health::Failure, true)
    );
}

/// Greets whoever connects in plain text, and listens until they leave.
struct PlainTalker {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl PlainTalker {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = connections.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    say(&mut stream, "220 mail.example ESMTP ready\r\n").await;
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                });
            }
        });
        Self {
            address,
            connections,
        }
    }
}

// ---- HTTP/2

#[tokio::test]
async fn c_4_a_refused_stream_is_repeated_for_any_method() {
    let server = Server2::start(vec![(Act2::Reset(Reason::REFUSED_STREAM), false)]).await;
    let response = keyless(&deps(), http2())
        .oneshot(post(&server.uri()))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(outcome(&response), (2, None));
    assert_eq!(server.requests(), 2);

    let server = Server2::start(vec![(Act2::Reset(Reason::REFUSED_STREAM), false); 9]).await;
    let error = keyless(&deps(), http2())
        .oneshot(post(&server.uri()))
        .await
        .unwrap_err();
    assert_eq!(server.requests(), 4, "the bound on attempts holds");
    assert_eq!(outcome_of(&error), (4, Some(StopReason::Exhausted)));
    assert_eq!(
        parts(&error),
        (Cause::StreamRefused, Retryable::Yes, Health::Neutral, true)
    );
}

#[tokio::test]
async fn c_4_a_stream_above_the_last_of_a_go_away_is_repeated_for_any_method() {
    let server = Server2::start(vec![(Act2::GoAway(Reason::NO_ERROR), false)]).await;
    let response = keyless(&deps(), http2())
        .oneshot(post(&server.uri()))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(server.requests(), 2);

    let server = Server2::start(vec![(Act2::GoAway(Reason::NO_ERROR), false)]).await;
    let error: BoxError = http2()
        .oneshot(post(&server.uri()))
        .await
        .unwrap_err()
        .into();
    assert_eq!(
        parts(&error),
        (Cause::GoAway, Retryable::Yes, Health::Neutral, true)
    );
    let reason = source::<h2::Error>(&error).and_then(h2::Error::reason);
    assert_eq!(reason, Some(Reason::NO_ERROR));
}

#[tokio::test]
async fn c_4_a_stream_that_a_go_away_promised_to_finish_may_have_been_processed() {
    let server = Server2::start(vec![(Act2::GoAwayAndBreak, false)]).await;
    let error = keyless(&deps(), http2())
        .oneshot(post(&server.uri()))
        .await
        .unwrap_err();
    assert_eq!(server.requests(), 1);
    assert_eq!(outcome_of(&error), (1, Some(StopReason::NotIdempotent)));
    assert!(!verdict(&error).never_sent);

    let server = Server2::start(vec![(Act2::GoAwayAndBreak, false)]).await;
    let response = stack(&deps(), http2())
        .oneshot(post(&server.uri()))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(server.requests(), 2);
}

#[tokio::test]
async fn c_4_an_http2_failure_that_is_not_never_sent_needs_a_key() {
    let failures = [
        (Act2::Reset(Reason::INTERNAL_ERROR), Cause::Protocol),
        (Act2::Reset(Reason::CANCEL), Cause::Protocol),
        (Act2::Reset(Reason::ENHANCE_YOUR_CALM), Cause::Protocol),
        // It says that nothing was processed, but then it says so of every stream.
        (Act2::GoAway(Reason::ENHANCE_YOUR_CALM), Cause::Protocol),
        (Act2::Close, Cause::Reset),
    ];
    for (failure, cause) in failures {
        let server = Server2::start(vec![(failure, false)]).await;
        let error = keyless(&deps(), http2())
            .oneshot(post(&server.uri()))
            .await
            .unwrap_err();
        assert_eq!(server.requests(), 1, "{cause}");
        assert_eq!(outcome_of(&error), (1, Some(StopReason::NotIdempotent)));
        assert_eq!(
            parts(&error),
            (cause, Retryable::Yes, Health::Failure, false)
        );

        let server = Server2::start(vec![(failure, false)]).await;
        let response = stack(&deps(), http2())
            .oneshot(post(&server.uri()))
            .await
            .unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(server.requests(), 2);
    }
}

// ---- why it gave up

#[tokio::test]
async fn d_4_the_last_real_response_says_why_there_were_no_more() {
    let starved = policy().budget_floor(0).budget_ratio(0.0);
    let brittle = policy().consecutive_failures(2);
    let forgetful = policy().replay_limit(8);
    let cases = [
        (policy(), reply(503, ""), 4, StopReason::Exhausted),
        (policy(), reply(404, ""), 1, StopReason::NotRetryable),
        (
            policy(),
            reply(503, "retry-after: 3600\r\n"),
            1,
            StopReason::Deadline,
        ),
        (
            policy(),
            reply(503, "grpc-retry-pushback-ms: -1\r\n"),
            1,
            StopReason::Pushback,
        ),
        (starved, reply(503, ""), 1, StopReason::Budget),
        (brittle, reply(503, ""), 2, StopReason::Breaker),
        (forgetful, reply(503, ""), 1, StopReason::NotReplayable),
    ];
    for (policy, act, attempts, reason) in cases {
        let deps = Dependencies::new(policy.build().unwrap());
        let server = Server::start(vec![act]).await;
        let response = stack(&deps, plain())
            .oneshot(get(&server.uri()))
            .await
            .unwrap();
        assert_eq!(outcome(&response), (attempts, Some(reason)));
        assert_eq!(server.requests().len(), attempts as usize, "{reason}");
        assert_eq!(text(response).await, "ok", "{reason}: unmodified");
    }
}

#[tokio::test]
async fn d_4_hypers_own_errors_are_reached_by_their_sources() {
    let server = Server::start(vec![Act::ReadAndClose]).await;
    let error = stack(&deps(), plain())
        .oneshot(get(&server.uri()))
        .await
        .unwrap_err();
    let client: &legacy::Error = source(&error).expect("hyper-util's error");
    assert!(!client.is_connect());
    let hyper: &hyper::Error = source(&error).expect("hyper's error");
    assert!(hyper.is_incomplete_message());
    let text = error.to_string();
    assert_eq!(text, "call failed after 4 attempts (exhausted)");

    let (_socket, uri) = deaf();
    let error = stack(&deps(), plain())
        .oneshot(get(&uri))
        .await
        .unwrap_err();
    assert!(source::<legacy::Error>(&error).unwrap().is_connect());

    let server = Server2::start(vec![(Act2::Reset(Reason::INTERNAL_ERROR), false)]).await;
    let error = keyless(&deps(), http2())
        .oneshot(post(&server.uri()))
        .await
        .unwrap_err();
    let h2: &h2::Error = source(&error).expect("h2's error");
    assert_eq!(h2.reason(), Some(Reason::INTERNAL_ERROR));
}

#[tokio::test]
async fn s_2_an_error_holds_nothing_of_the_request() {
    const SECRETS: [&str; 4] = ["hunter2", "s3cret-query", "s3cret-token", "s3cret-body"];
    let secret = |uri: &str| {
        let uri = uri.replace("://", "://user:hunter2@") + "?card=s3cret-query";
        Request::put(uri)
            .header("authorization", "Bearer s3cret-token")
            .body(Body::from("s3cret-body"))
            .unwrap()
    };
    let mut errors = Vec::new();
    let (_socket, uri) = deaf();
    errors.push(stack(&deps(), plain()).oneshot(secret(&uri)).await);
    let garbage = Act::Say("s3cret-body\r\n\r\n".into());
    for act in [Act::ReadAndClose, Act::Reset, garbage] {
        let server = Server::start(vec![act]).await;
        errors.push(stack(&deps(), plain()).oneshot(secret(&server.uri())).await);
    }
    let server = Server2::start(vec![(Act2::Reset(Reason::INTERNAL_ERROR), false); 4]).await;
    errors.push(stack(&deps(), http2()).oneshot(secret(&server.uri())).await);
    let server = TlsServer::start(Identity::self_signed("127.0.0.1"), 0).await;
    let client = stack(&deps(), https(&Authority::new()));
    errors.push(client.oneshot(secret(&server.uri())).await);
    for error in errors {
        let error = error.unwrap_err();
        let text = format!("{error} {error:?}");
        for secret in SECRETS {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

#[tokio::test]
async fn cb_7_an_open_breaker_refuses_without_connecting() {
    let server = Server::start(vec![Act::ReadAndClose]).await;
    let policy = policy().consecutive_failures(2);
    let client = stack(&Dependencies::new(policy.build().unwrap()), plain());
    let error = client
        .clone()
        .oneshot(get(&server.uri()))
        .await
        .unwrap_err();
    assert_eq!(outcome_of(&error), (2, Some(StopReason::Breaker)));
    assert!(
        source::<hyper::Error>(&error).is_some(),
        "the last real error"
    );

    let error = client.oneshot(get(&server.uri())).await.unwrap_err();
    let refused = Refused::find(&*error).expect("a refusal");
    assert_eq!(refused.kind(), Refusal::Breaker);
    assert_eq!(refused.dependency(), server.address.to_string());
    assert_eq!(verdict(&error).cause, Cause::Refused(Refusal::Breaker));
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn cb_1_a_bad_certificate_counts_against_the_dependency() {
    let authority = Authority::new();
    let server = TlsServer::start(Identity::self_signed("127.0.0.1"), 0).await;
    let policy = policy().consecutive_failures(2);
    let client = stack(
        &Dependencies::new(policy.build().unwrap()),
        https(&authority),
    );
    for _ in 0..2 {
        let error = client
            .clone()
            .oneshot(get(&server.uri()))
            .await
            .unwrap_err();
        assert_eq!(verdict(&error).cause, Cause::Certificate);
    }
    let error = client.oneshot(get(&server.uri())).await.unwrap_err();
    assert!(Refused::find(&*error).is_some());
    assert_eq!(server.connections(), 2);
}

// ---- configuration

#[tokio::test]
async fn c_3_a_uri_that_the_connector_can_not_use_is_never_retried() {
    let never = |error: BoxError| {
        assert_eq!(outcome_of(&error), (1, Some(StopReason::NotRetryable)));
        assert_eq!(
            parts(&error),
            (
                Cause::Configuration,
                Retryable::Never,
                Health::Neutral,
                true
            )
        );
    };
    let plain = keyless(&deps(), plain());
    never(
        plain
            .oneshot(get("https://127.0.0.1:1/"))
            .await
            .unwrap_err(),
    );
    let https = keyless(&deps(), https(&Authority::new()));
    never(
        https
            .clone()
            .oneshot(get("http://127.0.0.1:1/"))
            .await
            .unwrap_err(),
    );
    // Not a name that a certificate could hold.
    never(
        https
            .oneshot(get("https://a..example:1/"))
            .await
            .unwrap_err(),
    );
}

#[tokio::test]
async fn c_3_a_request_that_hyper_can_not_send_is_never_retried() {
    let error = keyless(&deps(), plain())
        .oneshot(get("/relative"))
        .await
        .unwrap_err();
    assert_eq!(outcome_of(&error), (1, Some(StopReason::NotRetryable)));
    assert_eq!(verdict(&error).retry, Retryable::Never);
    assert_eq!(
        verdict(&error).health,
        Health::Neutral,
        "no fault of the dependency's"
    );
}

// ---- tracing by the same tables

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
    let layer = TraceLayer::new(deps().trace())
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

    let (_socket, uri) = deaf();
    assert_eq!(traced(boxed(), get(&uri)).await, [Cause::Connect]);
    // Above the whole stack, whose error wraps hyper's.
    assert_eq!(
        traced(stack(&deps(), plain()), get(&uri)).await,
        [Cause::Connect]
    );

    let authority = Authority::new();
    let server = TlsServer::start(Identity::self_signed("127.0.0.1"), 0).await;
    let failures = traced(stack(&deps(), https(&authority)), get(&server.uri())).await;
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
    let (_socket, uri) = deaf();
    assert_eq!(traced(plain(), get(&uri)).await, [Cause::Connect]);
}

// ---- each layer alone

#[tokio::test]
async fn k_1_the_key_layer_works_alone() {
    let server = Server::start(vec![reply(503, "")]).await;
    let client = ServiceBuilder::new()
        .layer(IdempotencyKeyLayer::new())
        .service(plain());
    let response = client.oneshot(post(&server.uri())).await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(server.keys()[0].as_deref().map(str::len), Some(36));
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn g_6_the_budget_layer_works_alone() {
    let server = Server::start(vec![reply(200, "")]).await;
    let policy = policy().budget_floor(2).budget_ratio(0.0);
    let client = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(Dependencies::new(
            policy.build().unwrap(),
        )))
        .service(plain());
    let repeat = || {
        let mut request = get(&server.uri());
        request.extensions_mut().insert(Attempt::retry(1));
        request
    };
    for _ in 0..2 {
        assert_eq!(
            client.clone().oneshot(repeat()).await.unwrap().status(),
            200
        );
    }
    let error = client.clone().oneshot(repeat()).await.unwrap_err();
    assert_eq!(
        Refused::find(&*error).map(Refused::kind),
        Some(Refusal::Budget)
    );
    assert_eq!(server.requests().len(), 2);
    assert_eq!(
        client.oneshot(get(&server.uri())).await.unwrap().status(),
        200
    );
}

#[tokio::test]
async fn c_1_the_retry_layer_works_alone() {
    let server = Server::start(vec![Act::Reset, reply(500, ""), reply(200, "")]).await;
    let client = ServiceBuilder::new()
        .layer(RetryLayer::new(deps()))
        .service(plain());
    let response = client.oneshot(get(&server.uri())).await.unwrap();
    assert_eq!(outcome(&response), (3, None));
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn ra_9_the_retry_after_layer_works_alone() {
    let server = Server::start(vec![reply(503, "retry-after: 3600\r\n")]).await;
    let client = ServiceBuilder::new()
        .layer(RetryAfterLayer::new(deps()))
        .service(plain());
    let first = client.clone().oneshot(get(&server.uri())).await.unwrap();
    assert_eq!(first.status(), 503);
    let error = client.oneshot(get(&server.uri())).await.unwrap_err();
    assert_eq!(
        Refused::find(&*error).map(Refused::kind),
        Some(Refusal::RetryAfter)
    );
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn cb_2_the_breaker_layer_works_alone() {
    let server = Server::start(vec![reply(503, ""), Act::Reset, reply(200, "")]).await;
    let policy = policy().consecutive_failures(2);
    let client = ServiceBuilder::new()
        .layer(CircuitBreakerLayer::new(Dependencies::new(
            policy.build().unwrap(),
        )))
        .service(plain());
    assert_eq!(
        client
            .clone()
            .oneshot(get(&server.uri()))
            .await
            .unwrap()
            .status(),
        503
    );
    client
        .clone()
        .oneshot(get(&server.uri()))
        .await
        .unwrap_err();
    let error = client.oneshot(get(&server.uri())).await.unwrap_err();
    assert_eq!(
        Refused::find(&*error).map(Refused::kind),
        Some(Refusal::Breaker)
    );
    assert_eq!(server.connections(), 2);
}
