//! Second attempts of a tonic client.

use std::time::Duration;

use tonic_health::pb::health_client::HealthClient;

use crate::{
    client::{channel, check, full, named, policy},
    support::grpc::{Act, Server},
};

#[tokio::test]
async fn h_1_a_call_that_stalls_is_overtaken_under_a_generated_client() {
    let delay = Duration::from_millis(20);
    let server = Server::start(vec![Act::Stall, Act::Serve]).await;
    let deps = named(policy().hedge_delay(delay, delay));
    (0..2000).for_each(|_| deps.get("ledger").deposit());
    let mut client = HealthClient::new(full(&deps, channel(server.address)));
    let reply = client.check(check()).await.unwrap();
    assert_eq!(reply.into_inner().status, 1);
    let attempts = server.header("grpc-previous-rpc-attempts");
    assert_eq!(attempts, [None, Some("1".to_owned())]);
    assert_eq!(deps.get("ledger").status().retries, 1);
}

/// H-2: a method that is not declared is sent once, whatever it takes.
#[tokio::test]
async fn h_2_an_undeclared_method_is_not_hedged() {
    let delay = Duration::from_millis(1);
    let server = Server::start(vec![Act::Stall]).await;
    let deps = named(policy().hedge_delay(delay, delay));
    (0..2000).for_each(|_| deps.get("ledger").deposit());
    let mut client = HealthClient::new(full(&deps, channel(server.address)));
    let watched = tokio::time::timeout(Duration::from_millis(200), client.watch(check())).await;
    assert!(watched.is_err(), "it still waits");
    assert_eq!(server.requests().len(), 1);
}
