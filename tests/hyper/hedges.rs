//! Second attempts over a network.

use std::time::Duration;

use http_body_util::BodyExt;
use tower::{Layer, ServiceExt};
use tower_reprise::{HedgeLayer, dependency::BreakerState, stacks};

use crate::{
    client::{get, http2, plain, post, text},
    support::{deps, quick, stragglers::Stragglers},
};

const CALLS: usize = 60;
const STRAGGLERS: usize = 6;

/// A straggler is overtaken and cancelled at the server, over HTTP/1 and HTTP/2, however busy the
/// machine is: other calls may be late too then.
#[tokio::test]
async fn h_1_stragglers_are_overtaken_and_cancelled_over_a_network() {
    for client in [plain(), http2()] {
        let server = Stragglers::start().await;
        let delay = Duration::from_millis(20);
        let policy = quick().send_attempt_count().hedge_delay(delay, delay);
        let deps = deps(policy.hedge_quantile(0.75));
        let dependency = deps.get(&server.address.to_string());
        (0..2000).for_each(|_| dependency.deposit());
        let client = stacks::client(deps.clone()).layer(client);
        for i in 0..CALLS {
            let mut request = get(&server.uri());
            if i % (CALLS / STRAGGLERS) == 0 {
                request.headers_mut().insert("x-straggler", i.into());
            }
            let response = client.clone().oneshot(request).await.unwrap();
            assert_eq!(response.status(), 200);
            let body = response.into_body().collect().await.unwrap();
            assert_eq!(body.to_bytes(), "ok");
        }
        server.cancelled(STRAGGLERS as u32).await;
        let status = dependency.status();
        assert!(status.retries >= STRAGGLERS as u64, "{status:?}");
        assert_eq!(status.originals, 2000 + CALLS as u64);
        assert!(server.requests() <= CALLS as u64 + status.retries);
        assert_eq!(status.breaker, BreakerState::Closed);
    }
}

/// H-2: a POST that may not be repeated is waited for, however long it takes.
#[tokio::test]
async fn h_2_a_keyless_post_is_sent_once_over_a_network() {
    let server = Stragglers::start().await;
    let delay = Duration::from_millis(1);
    let policy = quick().send_attempt_count().hedge_delay(delay, delay);
    let deps = deps(policy);
    (0..2000).for_each(|_| deps.get(&server.address.to_string()).deposit());
    let client = HedgeLayer::new(deps).layer(plain());
    let mut request = post(&server.uri());
    request.headers_mut().insert("x-straggler", 1.into());
    let call = client.clone().oneshot(request);
    let late = tokio::time::timeout(Duration::from_millis(200), call).await;
    assert!(late.is_err(), "it still waits");
    server.cancelled(1).await;
    assert_eq!(server.requests(), 1);
    let response = client.oneshot(get(&server.uri())).await.unwrap();
    assert_eq!(text(response).await, "ok");
}
