//! Statuses, wherever they come.

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;
use tonic::{Code, Request, metadata::MetadataValue};
use tonic_health::pb::health_client::HealthClient;
use tower::ServiceBuilder;
use tower_reprise::{
    Dependencies, Policy, RetryOverride, call::StopReason, error::Refused, stacks,
};

use crate::{
    client::{CHECK, Deps, WATCH, channel, check, full, keyless, named, outcome, policy, served},
    support::{
        grpc::{Act, Server},
        telemetry::{Spans, keep_tests_apart},
    },
};

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
        .cap(Duration::from_millis(2))
        .honours_keys()
        .unary_methods([CHECK]);
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
async fn k_1_a_method_that_its_policy_declares_idempotent_gets_no_key() {
    let keys = async |deps: &Deps| {
        let server = Server::start(vec![Act::fail(14), Act::Serve, Act::Serve]).await;
        let mut client = HealthClient::new(full(deps, channel(server.address)));
        assert_eq!(served(&client.check(check()).await.unwrap()), 2);
        client.watch(check()).await.unwrap();
        let keys = server.header("idempotency-key").into_iter();
        keys.map(|key| key.is_some()).collect::<Vec<_>>()
    };
    let policy = || policy().unary_methods(["grpc.health.v1.Health"]);
    assert_eq!(keys(&named(policy())).await, [false, false, true]);

    let other = Policy::grpc_unary().build().unwrap();
    let deps = Dependencies::builder(policy().build().unwrap())
        .policy_for("other", other)
        .named("ledger")
        .build();
    assert_eq!(keys(&deps).await, [false, false, true], "another's policy");
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
async fn c_10_a_late_status_is_waited_for_in_every_method_of_the_unary_profile() {
    let server = Server::start(vec![Act::late(14, &[]), Act::Serve]).await;
    let mut client = HealthClient::new(keyless(&named(policy()), channel(server.address)));
    assert_eq!(served(&client.check(check()).await.unwrap()), 2);

    // A call that says that it is not retried may stream.
    let gate = Arc::new(Notify::new());
    let server = Server::start(vec![Act::ServeWhen(gate.clone())]).await;
    let mut client = HealthClient::new(full(&named(policy()), channel(server.address)));
    let mut request = Request::new(check());
    request.extensions_mut().insert(RetryOverride::off());
    let mut stream = client.watch(request).await.unwrap().into_inner();
    gate.notify_one();
    assert_eq!(stream.message().await.unwrap().unwrap().status, 1);
}

#[tokio::test]
async fn c_2_late_trailers_are_the_breakers_to_know_too() {
    let server = Server::start(vec![Act::late(14, &[]); 3]).await;
    let policy = policy().unary_methods([CHECK]).consecutive_failures(2);
    let deps = named(policy.cooldown(Duration::from_secs(9), Duration::from_secs(9)));
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
    let deps = named(policy().unary_methods([CHECK]));
    let mut client = HealthClient::new(full(&deps, channel(server.address)));
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
    let deps = named(policy().idempotent_methods([WATCH]).unary_methods([CHECK]));
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

/// O-5: a failure that is in the trailers is in the span.
#[tokio::test]
async fn o_5_attempts_of_tonic_are_spans_with_names_of_rpc() {
    let (spans, _guard) = Spans::listen();
    keep_tests_apart();
    let server = Server::start(vec![Act::fail(14), Act::late(14, &[]), Act::Serve]).await;
    let deps = named(policy().unary_methods([CHECK]));
    let channel = ServiceBuilder::new()
        .layer(stacks::tonic::StatusLayer::new())
        .layer(stacks::traced(deps, ()))
        .service(channel(server.address));
    let mut client = HealthClient::new(channel);
    client.check(check()).await.unwrap();
    assert_eq!(spans.field("rpc.system"), ["grpc"; 3]);
    assert_eq!(spans.field("rpc.service"), ["grpc.health.v1.Health"; 3]);
    assert_eq!(spans.field("rpc.method"), ["Check"; 3]);
    assert_eq!(spans.field("server.address"), ["ledger"; 3]);
    let errors = ["UNAVAILABLE", "UNAVAILABLE", ""];
    assert_eq!(spans.field("error.type"), errors);
    assert_eq!(spans.field("rpc.grpc.status_code"), ["14", "14", ""]);
    assert_eq!(spans.field("http.request.resend_count"), ["", "1", "2"]);
}
