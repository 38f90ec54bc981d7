//! The stack as a whole, and each layer alone.

use tower::{ServiceBuilder, ServiceExt};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, IdempotencyKeyLayer, RetryAfterLayer, RetryBudgetLayer,
    RetryLayer, RetryOutcome,
    call::{Attempt, StopReason},
    error::{Refusal, Refused},
};

use crate::{
    client::{get, outcome, plain, post, send, send_keyless, stack, text},
    support::{
        deps,
        http1::{Act, Server, reply},
        quick,
    },
};

#[tokio::test]
async fn c_1_the_stack_mends_a_503() {
    let server = Server::start(vec![reply(503, ""), reply(200, "")]).await;
    let deps = deps(quick());
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
    let response = send(get(&server.uri())).await.unwrap();
    assert!(RetryOutcome::of(&response).is_none());
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn k_1_a_retried_post_carries_the_same_key_and_body() {
    let server = Server::start(vec![reply(503, ""), reply(502, ""), reply(200, "")]).await;
    let response = send(post(&server.uri())).await.unwrap();
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
    let response = send_keyless(post(&server.uri())).await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(outcome(&response), (1, Some(StopReason::NotIdempotent)));
    assert_eq!(server.requests().len(), 1);
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
    let policy = quick().budget_floor(2).budget_ratio(0.0);
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
        .layer(RetryLayer::new(deps(quick())))
        .service(plain());
    let response = client.oneshot(get(&server.uri())).await.unwrap();
    assert_eq!(outcome(&response), (3, None));
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn ra_9_the_retry_after_layer_works_alone() {
    let server = Server::start(vec![reply(503, "retry-after: 3600\r\n")]).await;
    let client = ServiceBuilder::new()
        .layer(RetryAfterLayer::new(deps(quick())))
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
    let policy = quick().consecutive_failures(2);
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
