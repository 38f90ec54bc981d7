//! The stack under generated tonic clients, against real servers that misbehave on purpose.
#![cfg(feature = "tonic")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

#[path = "support/authority.rs"]
mod authority;
#[path = "grpc/server.rs"]
mod server;

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{Buf, BufMut};
use h2::Reason;
use http::{Request as HttpRequest, Response as HttpResponse, uri::PathAndQuery};
use tokio::{net::TcpSocket, sync::Notify};
use tokio_stream::Stream;
use tonic::{
    Code, GrpcMethod, Request, Response, Status,
    body::Body,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    metadata::MetadataValue,
    service::InterceptorLayer,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, ServerTlsConfig},
};
use tonic_health::{
    ServingStatus,
    pb::{HealthCheckRequest, health_client::HealthClient},
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, IdempotencyKeyLayer, InboundBudgetLayer, PeekLayer, Policy,
    ProblemLayer, RetryAfterLayer, RetryBudgetLayer, RetryLayer, RetryOutcome, RetryOverride,
    call::{Attempt, Cause, Health, Retryable, StopReason, Verdict},
    classify::{Classify, Rules, Standard},
    client::retry::{BearerToken, Token},
    dependency::Named,
    error::{BoxError, Elapsed, Refusal, Refused},
    http::BufferedBody,
    policy::PolicyBuilder,
    stacks::{self, tonic::StatusLayer},
};

use crate::{
    authority::Authority,
    server::{Act, ByHand, HandAct, Server},
};

const CHECK: &str = "grpc.health.v1.Health/Check";
const WATCH: &str = "grpc.health.v1.Health/Watch";

type Deps = Dependencies<Standard, Named>;
type Stack<B> = BoxCloneService<HttpRequest<Body>, HttpResponse<B>, Status>;

// ---- clients

/// A policy for which `Check` is safe to repeat, and `Watch` is not.
fn policy() -> PolicyBuilder {
    Policy::grpc_unary()
        .base(Duration::from_millis(1))
        .cap(Duration::from_millis(2))
        .idempotent_methods([CHECK])
}

fn named(policy: PolicyBuilder) -> Deps {
    Dependencies::named("ledger", policy.build().unwrap())
}

fn channel(address: SocketAddr) -> Channel {
    endpoint(address).connect_lazy()
}

fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}")).unwrap()
}

/// All layers, as a user has them.
fn full(deps: &Deps, channel: Channel) -> Stack<BufferedBody<Body>> {
    BoxCloneService::new(
        ServiceBuilder::new()
            .layer(stacks::tonic::client(deps.clone()))
            .service(channel),
    )
}

/// All but the one that stamps keys, around anything.
fn keyless<S, B>(deps: &Deps, inner: S) -> Stack<BufferedBody<B>>
where
    S: Service<HttpRequest<Body>, Response = HttpResponse<B>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: http_body::Body<Data = bytes::Bytes> + Unpin + Send + 'static,
    B::Error: Send,
{
    BoxCloneService::new(
        ServiceBuilder::new()
            .layer(StatusLayer::new())
            .layer(RetryBudgetLayer::new(deps.clone()))
            .layer(RetryLayer::new(deps.clone()))
            .layer(RetryAfterLayer::new(deps.clone()))
            .layer(CircuitBreakerLayer::new(deps.clone()))
            .layer(PeekLayer::new(deps.clone()))
            .service(inner),
    )
}

fn check() -> HealthCheckRequest {
    HealthCheckRequest::default()
}

fn served<T>(response: &Response<T>) -> u32 {
    let outcome = response.extensions().get::<RetryOutcome>();
    outcome.map_or(1, RetryOutcome::attempts)
}

/// Attempts, and why there were no more, from a status alone.
fn outcome(status: &Status) -> (u32, Option<StopReason>) {
    let outcome = RetryOutcome::of_error(status).expect("an outcome in the source");
    (outcome.attempts(), outcome.stop_reason())
}

fn verdict(status: &Status) -> Verdict {
    let rules = Rules::standard();
    let source = std::error::Error::source(status).expect("a source");
    Classify::<HttpRequest<()>, HttpResponse<()>>::classify(&Standard, &rules, Err(source))
}

// ---- generated clients over a real tonic server

/// tonic's health service, over however many connections.
async fn health_server() -> (tonic_health::server::HealthReporter, SocketAddr) {
    let (reporter, health) = tonic_health::server::health_reporter();
    let (incoming, address, _) = server::incoming().await;
    let router = tonic::transport::Server::builder().add_service(health);
    tokio::spawn(router.serve_with_incoming(incoming));
    (reporter, address)
}

#[tokio::test]
async fn c_2_unary_and_streaming_calls_of_a_generated_client_work() {
    let (reporter, address) = health_server().await;
    // Not boxed: as a user writes it, on a task of its own, and cloned.
    let stack = ServiceBuilder::new()
        .layer(stacks::tonic::client(named(policy())))
        .service(channel(address));
    let client = HealthClient::new(stack);
    let mut unary = client.clone();
    let reply = tokio::spawn(async move { unary.check(check()).await });
    let reply = reply.await.unwrap().unwrap();
    assert_eq!(reply.into_inner().status, 1);

    let mut streaming = client.clone();
    let mut stream = streaming.watch(check()).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().status, 1);
    reporter
        .set_service_status("", ServingStatus::NotServing)
        .await;
    assert_eq!(stream.message().await.unwrap().unwrap().status, 2);
    // A status that is no failure of the transport's is the server's own.
    let unknown = HealthCheckRequest {
        service: "nobody".into(),
    };
    let status = streaming.check(unknown).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    assert_eq!(outcome(&status), (1, Some(StopReason::NotRetryable)));
}

#[tokio::test]
async fn c_2_each_layer_alone_fits_under_a_generated_client() {
    let (_reporter, address) = health_server().await;
    let deps = named(policy());
    macro_rules! fits {
        ($($layer:expr),* $(,)?) => {$(
            let mut client = HealthClient::new($layer.layer(channel(address)));
            let reply = client.check(check()).await.unwrap();
            assert_eq!(reply.into_inner().status, 1, stringify!($layer));
            let mut stream = client.watch(check()).await.unwrap().into_inner();
            let message = stream.message().await.unwrap();
            assert_eq!(message.unwrap().status, 1, stringify!($layer));
        )*};
    }
    fits!(
        StatusLayer::new(),
        IdempotencyKeyLayer::new(),
        RetryBudgetLayer::new(deps.clone()),
        RetryLayer::new(deps.clone()),
        RetryAfterLayer::new(deps.clone()),
        CircuitBreakerLayer::new(deps.clone()),
        PeekLayer::new(deps.clone()),
    );
}

// ---- statuses, wherever they come

#[tokio::test]
async fn c_2_a_trailers_only_unavailable_is_retried_for_a_declared_method() {
    let server = Server::start(vec![Act::fail(14), Act::fail(14), Act::Serve]).await;
    let mut client = HealthClient::new(keyless(&named(policy()), channel(server.address)));
    let reply = client.check(check()).await.unwrap();
    assert_eq!(served(&reply), 3);
    assert_eq!(reply.into_inner().status, 1);

    let bodies = server.bodies();
    assert_eq!(bodies.len(), 3);
    assert!(bodies.iter().all(|body| *body == bodies[0]), "{bodies:?}");
    assert_eq!(bodies[0], [0, 0, 0, 0, 0], "an empty message");
}

#[tokio::test]
async fn c_2_the_table_decides_which_statuses_are_retried() {
    let retried = [4, 8, 10, 14];
    for code in 1..=16 {
        let server = Server::start(vec![Act::fail(code), Act::Serve]).await;
        let mut client = HealthClient::new(keyless(&named(policy()), channel(server.address)));
        let reply = client.check(check()).await;
        assert_eq!(reply.is_ok(), retried.contains(&code), "{code}");
        if let Err(status) = reply {
            assert_eq!(status.code(), Code::from(i32::from(code)));
            assert_eq!(
                outcome(&status),
                (1, Some(StopReason::NotRetryable)),
                "{code}"
            );
        }
    }
}

#[tokio::test]
async fn c_5_a_method_that_is_not_declared_needs_a_key() {
    let undeclared = Policy::grpc_unary()
        .base(Duration::from_millis(1))
        .cap(Duration::from_millis(2));
    let deps = named(undeclared);

    let server = Server::start(vec![Act::fail(14), Act::Serve]).await;
    let mut client = HealthClient::new(keyless(&deps, channel(server.address)));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(outcome(&status), (1, Some(StopReason::NotIdempotent)));
    assert_eq!(server.requests().len(), 1);

    let server = Server::start(vec![Act::fail(14), Act::Serve]).await;
    let mut client = HealthClient::new(full(&deps, channel(server.address)));
    assert_eq!(served(&client.check(check()).await.unwrap()), 2);
    let keys = server.header("idempotency-key");
    assert_eq!(keys[0].as_deref().map(str::len), Some(36));
    assert_eq!(keys[0], keys[1]);

    // A key of the caller's own, in the metadata.
    let server = Server::start(vec![Act::fail(14), Act::Serve]).await;
    let mut client = HealthClient::new(keyless(&deps, channel(server.address)));
    let mut request = Request::new(check());
    let key = MetadataValue::from_static("transfer-17");
    request.metadata_mut().insert("idempotency-key", key);
    assert_eq!(served(&client.check(request).await.unwrap()), 2);
    let key = Some("transfer-17".to_owned());
    assert_eq!(server.header("idempotency-key"), [key.clone(), key]);
}

#[tokio::test]
async fn k_1_a_declared_method_gets_no_key_where_all_policies_declare_it() {
    let keys = async |deps: &Deps| {
        let server = Server::start(vec![Act::fail(14), Act::Serve, Act::Serve]).await;
        let mut client = HealthClient::new(full(deps, channel(server.address)));
        assert_eq!(served(&client.check(check()).await.unwrap()), 2);
        client.watch(check()).await.unwrap();
        let keys = server.header("idempotency-key").into_iter();
        keys.map(|key| key.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(keys(&named(policy())).await, [false, false, true]);

    let other = Policy::grpc_unary().build().unwrap();
    let deps = Dependencies::builder(policy().build().unwrap())
        .policy_for("other", other)
        .named("ledger")
        .build();
    assert_eq!(keys(&deps).await, [true, true, true]);
}

#[tokio::test]
async fn c_5_a_declared_service_declares_all_of_its_methods() {
    let policy = policy().idempotent_methods(["grpc.health.v1.Health"]);
    let server = Server::start(vec![Act::fail(14), Act::Serve]).await;
    let mut client = HealthClient::new(keyless(&named(policy), channel(server.address)));
    let mut stream = client.watch(check()).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().status, 1);
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn c_2_a_status_in_trailers_after_an_empty_body_is_waited_for_in_a_unary_method() {
    let server = Server::start(vec![Act::late(14, &[]), Act::Serve]).await;
    let deps = named(policy().unary_methods([CHECK]));
    let mut client = HealthClient::new(keyless(&deps, channel(server.address)));
    let reply = client.check(check()).await.unwrap();
    assert_eq!(served(&reply), 2);
    assert_eq!(server.requests().len(), 2);
    let status = deps.get("ledger").status();
    assert_eq!((status.originals, status.retries), (1, 1));
}

#[tokio::test]
async fn c_2_late_trailers_are_the_breakers_to_know_too() {
    let server = Server::start(vec![Act::late(14, &[]); 3]).await;
    let deps = named(policy().unary_methods([CHECK]).consecutive_failures(2));
    let mut client = HealthClient::new(keyless(&deps, channel(server.address)));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let status = client.check(check()).await.unwrap_err();
    assert!(Refused::find(&status).is_some(), "{status:?}");
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn c_2_a_stream_is_never_delayed_for_its_first_message() {
    let gate = Arc::new(Notify::new());
    let server = Server::start(vec![Act::ServeWhen(gate.clone())]).await;
    let mut client = HealthClient::new(full(&named(policy()), channel(server.address)));
    // The head is here while the server waits for us.
    let mut stream = client.watch(check()).await.unwrap().into_inner();
    gate.notify_one();
    assert_eq!(stream.message().await.unwrap().unwrap().status, 1);
    assert!(stream.message().await.unwrap().is_none());
    let trailers = stream.trailers().await.unwrap().unwrap();
    assert_eq!(trailers.get("x-last").unwrap(), "word");
}

#[tokio::test]
async fn c_2_a_streams_late_failure_is_the_callers() {
    let gate = Arc::new(Notify::new());
    let late = Act::LateFail {
        code: 14,
        with: &[],
        gate: Some(gate.clone()),
    };
    let server = Server::start(vec![late, Act::Serve]).await;
    let deps = named(policy().idempotent_methods([WATCH]));
    let mut client = HealthClient::new(full(&deps, channel(server.address)));
    let mut stream = client.watch(check()).await.unwrap().into_inner();
    gate.notify_one();
    let status = stream.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn c_2_a_status_after_a_message_is_not_retried() {
    // It may have had an effect that the message tells of, and the message is the caller's.
    let server = Server::start(vec![Act::MessageThenFail(14), Act::Serve]).await;
    let deps = named(policy().unary_methods([CHECK, WATCH]));
    let mut client = HealthClient::new(full(&deps, channel(server.address)));
    let mut stream = client.watch(check()).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().status, 1);
    let status = stream.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn c_1_an_http_status_of_a_proxy_between_is_retried() {
    let server = Server::start(vec![Act::Http(503), Act::Serve]).await;
    let mut client = HealthClient::new(keyless(&named(policy()), channel(server.address)));
    assert_eq!(served(&client.check(check()).await.unwrap()), 2);

    let server = Server::start(vec![Act::Http(403), Act::Serve]).await;
    let mut client = HealthClient::new(keyless(&named(policy()), channel(server.address)));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert_eq!(server.requests().len(), 1);
}

// ---- what the server asks for

/// A policy whose own wait never fits into the call, by a draw that is known.
fn slow() -> Deps {
    Dependencies::builder(slow_policy().build().unwrap())
        .named("ledger")
        .seed(7)
        .build()
}

#[tokio::test]
async fn ra_8_pushback_decides_alone_when_to_call_again() {
    // Without a word from the server there is no second attempt.
    let server = Server::start(vec![Act::fail(14), Act::Serve]).await;
    let mut client = HealthClient::new(keyless(&slow(), channel(server.address)));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(outcome(&status), (1, Some(StopReason::Deadline)));

    for pushback in ["0", "1"] {
        let with: &[_] = Box::leak(Box::new([("grpc-retry-pushback-ms", pushback)]));
        for act in [Act::fail_with(14, with), Act::late(14, with)] {
            let server = Server::start(vec![act, Act::Serve]).await;
            let deps = unary(slow_policy());
            let mut client = HealthClient::new(keyless(&deps, channel(server.address)));
            assert_eq!(served(&client.check(check()).await.unwrap()), 2);
        }
    }
}

fn slow_policy() -> PolicyBuilder {
    policy()
        .base(Duration::from_secs(3600))
        .cap(Duration::from_secs(3600))
}

fn unary(policy: PolicyBuilder) -> Deps {
    named(policy.unary_methods([CHECK]))
}

#[tokio::test]
async fn s_3_details_that_are_no_base64_do_no_harm() {
    let with = &[
        ("grpc-status-details-bin", "{}.."),
        ("grpc-retry-pushback-ms", "-1"),
    ];
    let server = Server::start(vec![Act::fail_with(14, with)]).await;
    let mut client = HealthClient::new(full(&unary(policy()), channel(server.address)));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.details(), b"");
    assert_eq!(outcome(&status), (1, Some(StopReason::Pushback)));
}

#[tokio::test]
async fn ra_8_pushback_below_zero_or_unreadable_stops() {
    for pushback in ["-1", "soon", ""] {
        let with: &[_] = Box::leak(Box::new([("grpc-retry-pushback-ms", pushback)]));
        for act in [Act::fail_with(14, with), Act::late(14, with)] {
            let server = Server::start(vec![act.clone(), Act::Serve]).await;
            let deps = unary(policy());
            let mut client = HealthClient::new(full(&deps, channel(server.address)));
            let status = client.check(check()).await.unwrap_err();
            assert_eq!(status.code(), Code::Unavailable, "{pushback:?}");
            assert_eq!(server.requests().len(), 1, "{pushback:?}");
            if matches!(act, Act::Fail { .. }) {
                assert_eq!(outcome(&status), (1, Some(StopReason::Pushback)));
            }
        }
    }
}

#[tokio::test]
async fn ra_8_pushback_beyond_the_deadline_returns_at_once_and_never_lifts_the_bound() {
    let with = &[("grpc-retry-pushback-ms", "3600000")];
    let server = Server::start(vec![Act::fail_with(14, with)]).await;
    let mut client = HealthClient::new(keyless(&named(policy()), channel(server.address)));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(outcome(&status), (1, Some(StopReason::Deadline)));
    let asked = status.metadata().get("grpc-retry-pushback-ms").unwrap();
    assert_eq!(asked, "3600000", "the status is what the server said");

    let with = &[("grpc-retry-pushback-ms", "0")];
    let server = Server::start(vec![Act::fail_with(14, with)]).await;
    let mut client = HealthClient::new(keyless(&named(policy()), channel(server.address)));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(outcome(&status), (4, Some(StopReason::Exhausted)));
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test]
async fn ra_8_attempts_are_numbered_from_the_second_on() {
    let server = Server::start(vec![Act::fail(14), Act::fail(14), Act::Serve]).await;
    let mut client = HealthClient::new(full(&named(policy()), channel(server.address)));
    client.check(check()).await.unwrap();
    let previous = server.header("grpc-previous-rpc-attempts");
    assert_eq!(previous, [None, Some("1".into()), Some("2".into())]);
}

#[tokio::test]
async fn d_1_the_timeout_is_shortened_to_what_remains() {
    let server = Server::start(vec![Act::fail(14), Act::fail(14), Act::Serve]).await;
    let mut client = HealthClient::new(full(&named(policy()), channel(server.address)));
    let mut request = Request::new(check());
    request.set_timeout(Duration::from_secs(10));
    client.check(request).await.unwrap();
    let micros = |value: Option<String>| -> u64 {
        let value = value.expect("a grpc-timeout");
        value.strip_suffix('u').expect(&value).parse().unwrap()
    };
    let given: Vec<u64> = server
        .header("grpc-timeout")
        .into_iter()
        .map(micros)
        .collect();
    assert_eq!(given[0], 10_000_000);
    assert!(given[0] > given[1] && given[1] > given[2], "{given:?}");
}

// ---- time

#[tokio::test]
async fn d_1_a_call_without_an_answer_ends_by_its_deadline() {
    let server = Server::start(vec![Act::Stall]).await;
    let deps = named(policy().total_timeout(Duration::from_millis(80)));
    let mut client = HealthClient::new(full(&deps, channel(server.address)));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(outcome(&status), (1, Some(StopReason::Deadline)));
    let source = std::error::Error::source(&status).and_then(std::error::Error::source);
    let elapsed: &Elapsed = source.unwrap().downcast_ref().unwrap();
    assert!(elapsed.is_whole_call());
    assert_eq!(status.message(), elapsed.to_string());
}

#[tokio::test]
async fn d_1_the_callers_own_timeout_is_a_deadline() {
    // The channel keeps time too; whichever is first, the code is the same.
    let server = Server::start(vec![Act::Stall]).await;
    let mut client = HealthClient::new(full(&named(policy()), channel(server.address)));
    let mut request = Request::new(check());
    request.set_timeout(Duration::from_millis(80));
    let status = client.check(request).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    assert_eq!(outcome(&status), (1, Some(StopReason::Deadline)));
}

#[tokio::test]
async fn c_3_a_timeout_of_the_channels_is_retried() {
    let server = Server::start(vec![Act::Stall, Act::Serve]).await;
    let impatient = endpoint(server.address).timeout(Duration::from_millis(150));
    let deps = named(policy());
    let mut client = HealthClient::new(keyless(&deps, impatient.connect_lazy()));
    assert!(served(&client.check(check()).await.unwrap()) >= 2);

    let server = Server::start(vec![Act::Stall]).await;
    let impatient = endpoint(server.address).timeout(Duration::from_millis(20));
    let mut client = HealthClient::new(keyless(&deps, impatient.connect_lazy()));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(outcome(&status), (4, Some(StopReason::Exhausted)));
    assert_eq!(verdict(&status).cause, Cause::Timeout);
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn d_3_an_attempt_that_takes_too_long_is_retried() {
    let server = Server::start(vec![Act::Stall, Act::Serve]).await;
    let deps = named(policy().attempt_timeout(Duration::from_millis(150)));
    let mut client = HealthClient::new(keyless(&deps, channel(server.address)));
    assert!(served(&client.check(check()).await.unwrap()) >= 2);
}

// ---- connections

/// A server that begins to listen only before the second attempt.
struct Rising {
    address: SocketAddr,
    socket: Arc<Mutex<Option<TcpSocket>>>,
    up: Arc<Mutex<Option<Server>>>,
}

impl Rising {
    fn new() -> Self {
        let (socket, address) = server::deaf();
        Self {
            address,
            socket: Arc::new(Mutex::new(Some(socket))),
            up: Arc::default(),
        }
    }

    fn hook(&self) -> impl Fn(HttpRequest<Body>, Attempt) -> Prepared + Clone + use<> {
        let (socket, up) = (self.socket.clone(), self.up.clone());
        move |request, _| {
            if let Some(socket) = socket.lock().unwrap().take() {
                let listener = socket.listen(8).unwrap();
                *up.lock().unwrap() = Some(Server::on(listener, vec![Act::Serve]));
            }
            std::future::ready(Ok(request))
        }
    }

    fn bodies(&self) -> Vec<Vec<u8>> {
        self.up.lock().unwrap().as_ref().unwrap().bodies()
    }
}

type Prepared = std::future::Ready<Result<HttpRequest<Body>, BoxError>>;

#[tokio::test]
async fn c_4_a_server_that_comes_up_between_two_attempts_is_reached() {
    let server = Rising::new();
    // No method is declared, and there is no key: it was never sent.
    let deps = named(Policy::grpc_unary().base(Duration::from_millis(1)));
    let stack = ServiceBuilder::new()
        .layer(StatusLayer::new())
        .layer(RetryLayer::new(deps).with_prepare(server.hook()))
        .service(channel(server.address));
    let mut client = HealthClient::new(stack);
    let reply = client.check(check()).await.unwrap();
    assert_eq!(served(&reply), 2);
    assert_eq!(server.bodies().len(), 1);
}

#[tokio::test]
async fn c_3_a_refused_connection_is_unavailable_with_its_reason() {
    let (_socket, address) = server::deaf();
    let mut client = HealthClient::new(keyless(&named(policy()), channel(address)));
    let status = client.watch(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(outcome(&status), (4, Some(StopReason::Exhausted)));
    let verdict = verdict(&status);
    assert_eq!(
        (verdict.cause, verdict.retry, verdict.never_sent),
        (Cause::Connect, Retryable::Yes, true)
    );
}

#[tokio::test]
async fn c_3_a_name_that_does_not_resolve_is_looked_up_twice_at_most() {
    let endpoint = Endpoint::from_static("http://nowhere.invalid:50051");
    let mut client = HealthClient::new(keyless(&named(policy()), endpoint.connect_lazy()));
    let status = client.watch(check()).await.unwrap_err();
    assert_eq!(verdict(&status).cause, Cause::Dns);
    assert_eq!(outcome(&status), (2, Some(StopReason::Exhausted)));
}

#[tokio::test]
async fn c_4_what_was_surely_not_processed_is_repeated_for_any_method() {
    for act in [HandAct::Reset(Reason::REFUSED_STREAM), HandAct::GoAway] {
        let server = ByHand::start(vec![act]).await;
        let mut client = HealthClient::new(keyless(&named(policy()), channel(server.address)));
        let mut stream = client.watch(check()).await.unwrap().into_inner();
        assert!(stream.message().await.unwrap().is_none());
        assert_eq!(server.requests(), 2, "{act:?}");
    }
    let server = ByHand::start(vec![HandAct::Reset(Reason::REFUSED_STREAM); 9]).await;
    let mut client = HealthClient::new(keyless(&named(policy()), channel(server.address)));
    let status = client.watch(check()).await.unwrap_err();
    assert_eq!(outcome(&status), (4, Some(StopReason::Exhausted)));
    assert_eq!(server.requests(), 4, "the bound on attempts holds");
}

#[tokio::test]
async fn c_4_what_may_have_been_processed_is_repeated_only_if_declared_or_keyed() {
    let acts = [
        (HandAct::Reset(Reason::INTERNAL_ERROR), Cause::Protocol),
        (HandAct::Reset(Reason::CANCEL), Cause::Protocol),
        (HandAct::Close, Cause::Reset),
    ];
    for (act, cause) in acts {
        let server = ByHand::start(vec![act]).await;
        let mut client = HealthClient::new(keyless(&named(policy()), channel(server.address)));
        let status = client.watch(check()).await.unwrap_err();
        assert_eq!(server.requests(), 1, "{act:?}");
        assert_eq!(outcome(&status), (1, Some(StopReason::NotIdempotent)));
        let verdict = verdict(&status);
        assert_eq!((verdict.cause, verdict.never_sent), (cause, false));
        assert_eq!(verdict.health, Health::Failure);

        let server = ByHand::start(vec![act]).await;
        let mut client = HealthClient::new(full(&named(policy()), channel(server.address)));
        let mut stream = client.watch(check()).await.unwrap().into_inner();
        assert!(stream.message().await.unwrap().is_none());
        assert_eq!(server.requests(), 2, "{act:?}");
    }
}

// ---- TLS

fn pem(identity: &authority::Identity) -> Identity {
    Identity::from_pem(identity.certificate.pem(), identity.key.serialize_pem())
}

async fn tls_server(identity: &authority::Identity) -> (SocketAddr, Arc<AtomicUsize>) {
    let (_, health) = tonic_health::server::health_reporter();
    let (incoming, address, connections) = server::incoming().await;
    let router = tonic::transport::Server::builder()
        .tls_config(ServerTlsConfig::new().identity(pem(identity)))
        .unwrap()
        .add_service(health);
    tokio::spawn(router.serve_with_incoming(incoming));
    (address, connections)
}

fn tls(address: SocketAddr, authority: &Authority) -> Endpoint {
    let config = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authority.certificate.pem()))
        .timeout(Duration::from_secs(10));
    Endpoint::from_shared(format!("https://{address}"))
        .unwrap()
        .tls_config(config)
        .unwrap()
}

#[tokio::test]
async fn c_3_a_good_certificate_is_no_obstacle() {
    let authority = Authority::new();
    let (address, connections) = tls_server(&authority.issue("127.0.0.1", false)).await;
    let channel = tls(address, &authority).connect_lazy();
    let mut client = HealthClient::new(full(&named(policy()), channel));
    let reply = client.check(check()).await.unwrap();
    assert_eq!((served(&reply), reply.into_inner().status), (1, 1));
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn c_3_a_bad_certificate_surfaces_at_once() {
    let authority = Authority::new();
    let bad = [
        ("self-signed", authority::Identity::self_signed("127.0.0.1")),
        (
            "unknown authority",
            Authority::new().issue("127.0.0.1", false),
        ),
        ("expired", authority.issue("127.0.0.1", true)),
        ("another's name", authority.issue("other.example", false)),
    ];
    for (what, identity) in bad {
        let (address, connections) = tls_server(&identity).await;
        let channel = tls(address, &authority).connect_lazy();
        let mut client = HealthClient::new(full(&named(policy()), channel));
        let status = client.check(check()).await.unwrap_err();
        assert_eq!(
            outcome(&status),
            (1, Some(StopReason::NotRetryable)),
            "{what}: {status:?}"
        );
        let verdict = verdict(&status);
        assert_eq!(
            (verdict.cause, verdict.retry),
            (Cause::Certificate, Retryable::Never),
            "{what}"
        );
        assert_eq!(connections.load(Ordering::SeqCst), 1, "{what}");
    }
}

#[tokio::test]
async fn c_3_a_handshake_that_stalls_is_retried_for_any_method() {
    let (mut stalling, address, connections) = server::incoming().await;
    // Connections are accepted, and nothing is said.
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Some(stream) = tokio_stream::StreamExt::next(&mut stalling).await {
            kept.push(stream);
        }
    });
    let authority = Authority::new();
    let config = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authority.certificate.pem()))
        .timeout(Duration::from_millis(20));
    let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
    let channel = endpoint.tls_config(config).unwrap().connect_lazy();
    let mut client = HealthClient::new(keyless(&named(policy()), channel));
    let status = client.watch(check()).await.unwrap_err();
    assert_eq!(outcome(&status), (4, Some(StopReason::Exhausted)));
    let verdict = verdict(&status);
    assert_eq!(
        (verdict.cause, verdict.retry, verdict.never_sent),
        (Cause::Timeout, Retryable::Yes, true)
    );
    assert_eq!(status.code(), Code::Unavailable, "there was no connection");
    // The server may not have seen them all yet.
    assert!(connections.load(Ordering::SeqCst) <= 4);
}

#[tokio::test]
async fn c_3_a_channel_that_can_not_work_is_never_retried() {
    // A server that speaks TLS, and not HTTP/2.
    let authority = Authority::new();
    let identity = authority.issue("127.0.0.1", false);
    let (address, connections) = server::tls_without_http2(identity).await;
    let not_http2 = tls(address, &authority).connect_lazy();
    // A channel that was not told how to speak TLS.
    let not_tls = Endpoint::from_shared(format!("https://{address}")).unwrap();
    for channel in [not_http2, not_tls.connect_lazy()] {
        let mut client = HealthClient::new(full(&named(policy()), channel));
        let status = client.check(check()).await.unwrap_err();
        assert_eq!(verdict(&status).cause, Cause::Configuration, "{status:?}");
        assert_eq!(outcome(&status), (1, Some(StopReason::NotRetryable)));
    }
    assert_eq!(connections.load(Ordering::SeqCst), 2);
}

// ---- refusals

#[tokio::test]
async fn cb_2_a_refusal_is_unavailable_with_its_reason_in_the_source() {
    let server = Server::start(vec![Act::fail(14)]).await;
    let deps = named(policy().consecutive_failures(2));
    let mut client = HealthClient::new(full(&deps, channel(server.address)));
    // The last real answer, though a breaker stopped the retries.
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(status.message(), "by the script");
    assert_eq!(outcome(&status), (2, Some(StopReason::Breaker)));
    assert!(Refused::find(&status).is_none());

    let status = client.check(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let refused = Refused::find(&status).expect("a refusal in the source");
    assert_eq!(refused.kind(), Refusal::Breaker);
    assert_eq!(refused.dependency(), "ledger");
    assert!(refused.retry_after().is_some());
    assert_eq!(status.message(), refused.to_string());
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn ra_9_a_server_that_asked_for_patience_refuses_the_next_call_too() {
    let with = &[("grpc-retry-pushback-ms", "3600000")];
    let server = Server::start(vec![Act::fail_with(8, with), Act::Serve]).await;
    let mut client = HealthClient::new(full(&named(policy()), channel(server.address)));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let kind = Refused::find(&status).map(Refused::kind);
    assert_eq!(kind, Some(Refusal::RetryAfter));
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn d_5_one_call_can_do_without_retries() {
    let server = Server::start(vec![Act::fail(14), Act::Serve]).await;
    let mut client = HealthClient::new(full(&named(policy()), channel(server.address)));
    let mut request = Request::new(check());
    request.extensions_mut().insert(RetryOverride::off());
    let status = client.check(request).await.unwrap_err();
    assert_eq!(outcome(&status), (1, Some(StopReason::Exhausted)));
}

#[tokio::test]
async fn g_6_a_tonic_server_refuses_a_storm_of_inbound_retries() {
    let (_, health) = tonic_health::server::health_reporter();
    let (incoming, address, _) = server::incoming().await;
    let starved = policy().budget_floor(0).budget_ratio(0.0);
    let deps = Dependencies::new(starved.build().unwrap());
    let router = tonic::transport::Server::builder()
        .layer(
            ServiceBuilder::new()
                .layer(InboundBudgetLayer::new(deps.clone()))
                .layer(ProblemLayer::new())
                .layer(CircuitBreakerLayer::new(deps)),
        )
        .add_service(health);
    tokio::spawn(router.serve_with_incoming(incoming));

    // Our own client does as it is told.
    let mut client = HealthClient::new(full(&named(policy()), channel(address)));
    client.check(check()).await.unwrap();
    let mut retry = Request::new(check());
    let previous = MetadataValue::from(1);
    retry
        .metadata_mut()
        .insert("grpc-previous-rpc-attempts", previous);
    let status = client.check(retry).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(outcome(&status), (1, Some(StopReason::Pushback)));
}

// ---- credentials and interceptors

#[tokio::test]
async fn s_1_an_expired_token_is_refreshed_once() {
    let server = Server::start(vec![Act::fail(16), Act::Serve, Act::fail(16)]).await;
    let tokens = Arc::new(AtomicUsize::new(0));
    let asked = tokens.clone();
    let token = BearerToken::new(move || {
        let number = asked.fetch_add(1, Ordering::SeqCst);
        async move { Token::new(&format!("t{number}")) }
    });
    let deps = named(policy());
    let stack = ServiceBuilder::new()
        .layer(StatusLayer::new())
        .layer(RetryLayer::new(deps.clone()).with_refresh(token.clone()))
        .layer(PeekLayer::new(deps))
        .service(channel(server.address));
    let mut client = HealthClient::new(stack);
    let request = async || {
        let mut request = Request::new(check());
        let current = token.current().await.unwrap();
        let current = MetadataValue::try_from(current.as_bytes()).unwrap();
        request.metadata_mut().insert("authorization", current);
        request
    };
    assert_eq!(served(&client.check(request().await).await.unwrap()), 2);
    let sent = server.header("authorization");
    assert_eq!(sent, [Some("Bearer t0".into()), Some("Bearer t1".into())]);

    // A server that refuses the new one too gets no third.
    let status = client.check(request().await).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    assert_eq!(outcome(&status), (2, Some(StopReason::Exhausted)));
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test]
async fn s_1_without_a_hook_an_unauthenticated_call_is_not_repeated() {
    let server = Server::start(vec![Act::fail(16), Act::Serve]).await;
    let mut client = HealthClient::new(full(&named(policy()), channel(server.address)));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(outcome(&status), (1, Some(StopReason::NotRetryable)));
}

/// D-4: what tonic and a caller put on a request is on every attempt.
#[tokio::test(start_paused = true)]
async fn d_4_extensions_are_on_every_attempt() {
    for more in [false, true] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let server = {
            let seen = Arc::clone(&seen);
            service_fn(move |request: HttpRequest<Body>| {
                let found = request.extensions();
                let method = found
                    .get::<GrpcMethod<'static>>()
                    .map(|m| m.method().to_owned());
                let mut seen = seen.lock().unwrap();
                seen.push((method, found.get::<u8>().copied()));
                let status = if seen.len() < 3 { 503 } else { 200 };
                let response = HttpResponse::builder().status(status).body(Body::empty());
                async move { Ok::<_, BoxError>(response.unwrap()) }
            })
        };
        let deps = named(policy());
        let mut client = ServiceBuilder::new()
            .layer(RetryBudgetLayer::new(deps.clone()))
            .layer(RetryLayer::new(deps))
            .service(server);
        let mut request = HttpRequest::put(format!("http://a.example/{CHECK}"))
            .body(Body::empty())
            .unwrap();
        request
            .extensions_mut()
            .insert(GrpcMethod::new("Health", "Check"));
        if more {
            request.extensions_mut().insert(7_u8);
        }
        client.ready().await.unwrap().call(request).await.unwrap();
        let expected = (Some("Check".to_owned()), more.then_some(7_u8));
        assert_eq!(*seen.lock().unwrap(), vec![expected; 3]);
    }
}

#[tokio::test]
async fn c_2_an_interceptor_below_is_asked_for_each_attempt() {
    let server = Server::start(vec![Act::fail(14), Act::Serve]).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let interceptor = move |mut request: Request<()>| {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        match number {
            0 => Err(Status::unavailable("no token yet")),
            _ => {
                let number = MetadataValue::from(number);
                request.metadata_mut().insert("x-intercepted", number);
                Ok(request)
            }
        }
    };
    let inner = InterceptorLayer::new(interceptor).layer(channel(server.address));
    let mut client = HealthClient::new(keyless(&named(policy()), inner));
    assert_eq!(served(&client.check(check()).await.unwrap()), 3);
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    let seen = server.header("x-intercepted");
    assert_eq!(seen, [Some("1".into()), Some("2".into())]);
}

#[tokio::test]
async fn c_2_a_status_of_an_interceptor_is_the_callers() {
    let refuse = |_: Request<()>| Err::<Request<()>, _>(Status::permission_denied("not you"));
    let (_socket, address) = server::deaf();
    let inner = InterceptorLayer::new(refuse).layer(channel(address));
    let mut below = HealthClient::new(keyless(&named(policy()), inner));
    let status = below.check(check()).await.unwrap_err();
    assert_eq!(status.message(), "not you");
    assert_eq!(outcome(&status), (1, Some(StopReason::NotRetryable)));

    let stack = full(&named(policy()), channel(address));
    let mut above = HealthClient::with_interceptor(stack, refuse);
    let status = above.check(check()).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::PermissionDenied, "not you")
    );
}

#[tokio::test]
async fn c_3_a_status_that_a_layer_returns_as_an_error_is_judged_by_its_code() {
    let calls = Arc::new(AtomicUsize::new(0));
    for (code, attempts) in [(Code::Unavailable, 4), (Code::InvalidArgument, 1)] {
        let calls = calls.clone();
        calls.store(0, Ordering::SeqCst);
        let counted = calls.clone();
        let failing = service_fn(move |_: HttpRequest<Body>| {
            counted.fetch_add(1, Ordering::SeqCst);
            let mut status = Status::new(code, "said by a layer");
            let metadata = status.metadata_mut();
            metadata.insert("x-kept", MetadataValue::from_static("yes"));
            std::future::ready(Err::<HttpResponse<Body>, _>(status))
        });
        let mut client = HealthClient::new(keyless(&named(policy()), failing));
        let status = client.check(check()).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (code, "said by a layer"));
        assert_eq!(status.metadata().get("x-kept").unwrap(), "yes");
        assert_eq!(outcome(&status).0, attempts);
        assert_eq!(calls.load(Ordering::SeqCst), attempts as usize);
    }
}

#[tokio::test]
async fn d_7_a_readiness_error_is_a_status_too() {
    #[derive(Clone)]
    struct NeverReady;
    impl Service<HttpRequest<Body>> for NeverReady {
        type Response = HttpResponse<Body>;
        type Error = Refused;
        type Future = std::future::Ready<Result<HttpResponse<Body>, Refused>>;

        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Refused>> {
            std::task::Poll::Ready(Err(Refused::new(Refusal::Breaker, "ledger", None)))
        }

        fn call(&mut self, _: HttpRequest<Body>) -> Self::Future {
            unreachable!()
        }
    }
    let mut service = StatusLayer::new().layer(NeverReady);
    let status = std::future::poll_fn(|cx| service.poll_ready(cx))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(Refused::find(&status).is_some());
}

// ---- requests that stream

/// Messages as they are.
#[derive(Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}

async fn upload(
    stack: Stack<BufferedBody<Body>>,
    messages: impl Stream<Item = Vec<u8>> + Send + 'static,
) -> Result<Response<Vec<u8>>, Status> {
    let mut client = Grpc::new(stack);
    client.ready().await?;
    let path = PathAndQuery::from_static("/ledger.v1.Ledger/Import");
    client
        .client_streaming(Request::new(messages), path, Raw)
        .await
}

/// As they are on the wire.
fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
    let mut wire = Vec::new();
    for message in messages {
        wire.push(0);
        wire.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        wire.extend(message);
    }
    wire
}

#[tokio::test]
async fn c_2_a_streamed_request_is_replayed_from_tape_under_the_cap() {
    // With the five bytes before each of two messages, that is the cap to the byte.
    let messages = vec![vec![7; 40_000], vec![9; 64 * 1024 - 40_000 - 10]];
    let server = Server::start(vec![Act::fail(14), Act::fail(14), Act::Serve]).await;
    let stack = full(&named(policy()), channel(server.address));
    let reply = upload(stack, tokio_stream::iter(messages.clone())).await;
    assert_eq!(served(&reply.unwrap()), 3);
    let bodies = server.bodies();
    assert_eq!(bodies.len(), 3);
    let wire = framed(&messages);
    assert_eq!(wire.len(), 64 * 1024);
    assert!(bodies.iter().all(|body| *body == wire));
}

#[tokio::test]
async fn c_2_a_streamed_request_over_the_cap_goes_through_once() {
    let messages = vec![vec![7; 40_000], vec![9; 64 * 1024 - 40_000 - 9]];
    let server = Server::start(vec![Act::fail(14), Act::Serve]).await;
    let deps = named(policy());
    let stack = full(&deps, channel(server.address));
    let status = upload(stack.clone(), tokio_stream::iter(messages.clone()))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(outcome(&status), (1, Some(StopReason::NotReplayable)));
    assert_eq!(server.bodies(), [framed(&messages)]);

    upload(stack, tokio_stream::iter(messages)).await.unwrap();
    assert_eq!(server.requests().len(), 2);
}

/// A server that is too busy to read says so at once, which is when a retry matters.
#[tokio::test]
async fn c_2_an_answer_before_the_end_of_a_request_that_is_at_hand_is_retried() {
    // The transport has taken a message and waits until it may send it. It knows that it has to wait
    // from the second call on.
    let script = || vec![Act::EarlyEnd(3), Act::EarlyEnd(14), Act::Serve];
    let server = Server::start(script()).await;
    let mut client = HealthClient::new(full(&named(policy()), channel(server.address)));
    client.check(check()).await.unwrap_err();
    assert_eq!(served(&client.check(check()).await.unwrap()), 2);
    assert_eq!(server.bodies()[2], framed(&[vec![]]));

    let server = Server::start(script()).await;
    let stack = full(&named(policy()), channel(server.address));
    let messages = vec![vec![7; 40_000], vec![9; 20_000]];
    let upload = || upload(stack.clone(), tokio_stream::iter(messages.clone()));
    upload().await.unwrap_err();
    assert_eq!(served(&upload().await.unwrap()), 2);
    assert_eq!(server.bodies()[2], framed(&messages));
}

#[tokio::test]
async fn c_2_an_answer_before_the_end_of_a_request_that_is_awaited_is_not_retried() {
    let (send, messages) = tokio::sync::mpsc::unbounded_channel();
    send.send(vec![1]).unwrap();
    let server = Server::start(vec![Act::EarlyFail(14), Act::Serve]).await;
    let stack = full(&named(policy()), channel(server.address));
    let messages = tokio_stream::wrappers::UnboundedReceiverStream::new(messages);
    let status = upload(stack, messages).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(outcome(&status), (1, Some(StopReason::NotReplayable)));
    assert_eq!(server.requests().len(), 1);
    drop(send);
}

#[tokio::test]
async fn c_4_a_streamed_request_that_was_never_read_is_sent_as_it_is() {
    // However long it is: nothing of it was asked for while there was no connection.
    let server = Rising::new();
    let deps = named(policy());
    let stack = BoxCloneService::new(
        ServiceBuilder::new()
            .layer(StatusLayer::new())
            .layer(RetryLayer::new(deps.clone()).with_prepare(server.hook()))
            .layer(PeekLayer::new(deps))
            .service(channel(server.address)),
    );
    let messages = vec![vec![5; 100_000]; 3];
    let reply = upload(stack, tokio_stream::iter(messages.clone())).await;
    assert_eq!(served(&reply.unwrap()), 2);
    assert_eq!(server.bodies(), [framed(&messages)]);
}
