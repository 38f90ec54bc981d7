//! Connections: refused, unresolved, reset, gone away.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use h2::Reason;
use http::Request as HttpRequest;
use tokio::net::TcpSocket;
use tonic::{Code, body::Body, transport::Endpoint};
use tonic_health::pb::health_client::HealthClient;
use tower::ServiceBuilder;
use tower_reprise::{
    Policy, RetryLayer,
    call::{Attempt, Cause, Health, Retryable, StopReason},
    error::BoxError,
    stacks::tonic::StatusLayer,
};

use crate::{
    client::{channel, check, full, keyless, named, outcome, policy, served, verdict},
    support::{
        grpc::{Act, ByHand, HandAct, Server},
        ports,
    },
};

/// A server that begins to listen only before the second attempt.
pub(crate) struct Rising {
    pub(crate) address: SocketAddr,
    pub(crate) socket: Arc<Mutex<Option<TcpSocket>>>,
    pub(crate) up: Arc<Mutex<Option<Server>>>,
}

impl Rising {
    pub(crate) fn new() -> Self {
        let (socket, address) = ports::deaf();
        Self {
            address,
            socket: Arc::new(Mutex::new(Some(socket))),
            up: Arc::default(),
        }
    }

    pub(crate) fn hook(&self) -> impl Fn(HttpRequest<Body>, Attempt) -> Prepared + Clone + use<> {
        let (socket, up) = (self.socket.clone(), self.up.clone());
        move |request, _| {
            if let Some(socket) = socket.lock().unwrap().take() {
                let listener = socket.listen(8).unwrap();
                *up.lock().unwrap() = Some(Server::on(listener, vec![Act::Serve]));
            }
            std::future::ready(Ok(request))
        }
    }

    pub(crate) fn bodies(&self) -> Vec<Vec<u8>> {
        self.up.lock().unwrap().as_ref().unwrap().bodies()
    }
}

pub(crate) type Prepared = std::future::Ready<Result<HttpRequest<Body>, BoxError>>;

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
    let (_socket, address) = ports::deaf();
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
        let declared = policy().idempotent_methods(["grpc.health.v1.Health"]);
        let mut client = HealthClient::new(full(&named(declared), channel(server.address)));
        let mut stream = client.watch(check()).await.unwrap().into_inner();
        assert!(stream.message().await.unwrap().is_none());
        assert_eq!(server.requests(), 2, "{act:?}");
    }
}
