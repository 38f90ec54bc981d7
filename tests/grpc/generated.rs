//! Generated clients over a real tonic server.

use std::net::SocketAddr;

use tonic::Code;
use tonic_health::{
    ServingStatus,
    pb::{HealthCheckRequest, health_client::HealthClient},
};
use tower::{Layer, ServiceBuilder};
use tower_reprise::{
    CircuitBreakerLayer, IdempotencyKeyLayer, PeekLayer, RetryAfterLayer, RetryBudgetLayer,
    RetryLayer,
    call::StopReason,
    stacks::{self, tonic::StatusLayer},
};

use crate::{
    client::{channel, check, named, outcome, policy},
    support::grpc,
};

/// tonic's health service, over however many connections.
async fn health_server() -> (tonic_health::server::HealthReporter, SocketAddr) {
    let (reporter, health) = tonic_health::server::health_reporter();
    let (incoming, address, _) = grpc::incoming().await;
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
