//! Refusals by layers, and overrides.

use std::time::Duration;

use tonic::{Code, Request, metadata::MetadataValue};
use tonic_health::pb::health_client::HealthClient;
use tower::ServiceBuilder;
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, InboundBudgetLayer, ProblemLayer, RetryOverride,
    call::StopReason,
    error::{Refusal, Refused},
};

use crate::{
    client::{channel, check, full, named, outcome, policy},
    support::{
        grpc,
        grpc::{Act, Server},
    },
};

#[tokio::test]
async fn cb_2_a_refusal_is_unavailable_with_its_reason_in_the_source() {
    let server = Server::start(vec![Act::fail(14)]).await;
    let policy = policy().consecutive_failures(2);
    let deps = named(policy.cooldown(Duration::from_secs(9), Duration::from_secs(9)));
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
    let with = &[("retry-after", "3600")];
    let server = Server::start(vec![Act::fail_with(8, with), Act::Serve]).await;
    let mut client = HealthClient::new(full(&named(policy()), channel(server.address)));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let kind = Refused::find(&status).map(Refused::kind);
    assert_eq!(kind, Some(Refusal::RetryAfter));
    assert_eq!(server.requests().len(), 1);

    // A pushback is for its own call.
    let with = &[("grpc-retry-pushback-ms", "3600000")];
    let server = Server::start(vec![Act::fail_with(8, with), Act::Serve]).await;
    let mut client = HealthClient::new(full(&named(policy()), channel(server.address)));
    client.check(check()).await.unwrap_err();
    client.check(check()).await.unwrap();
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
    let (incoming, address, _) = grpc::incoming().await;
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
