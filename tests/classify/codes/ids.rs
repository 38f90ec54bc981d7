//! A detected replay is tried once more with a fresh request id.

use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::Full;
use tower_http::request_id::RequestId;
use tower_reprise::{Policy, call::StopReason, classify::Codes};

use super::{Reply, get, json, run};

fn replay() -> Reply {
    json(409, r#"{"code":"REPLAY_DETECTED"}"#)
}

fn pay() -> Request<Full<Bytes>> {
    Request::post("http://bank.example/pay")
        .header("x-request-id", "r-1")
        .extension(RequestId::new(HeaderValue::from_static("r-1")))
        .body(Full::from("1 EUR"))
        .unwrap()
}

fn all_differ(ids: &[Option<String>]) {
    for (n, id) in ids.iter().enumerate() {
        assert!(id.is_some() && !ids[..n].contains(id), "{ids:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn c_6_replay_detected_is_tried_once_more_with_a_fresh_id() {
    let called = run(Policy::bank(), pay(), |_| replay()).await;
    assert_eq!(called.outcome(), (2, Some(StopReason::Exhausted)));
    let ids = called.header("x-request-id");
    assert_eq!(ids[0].as_deref(), Some("r-1"));
    all_differ(&ids);
    let known = called.requests[1].extensions().get::<RequestId>().unwrap();
    let known = known.header_value().to_str().unwrap();
    assert_eq!(Some(known), ids[1].as_deref(), "the extension agrees");
    let keys = called.header("idempotency-key");
    assert!(keys[0].is_some() && keys[0] == keys[1], "K-1: {keys:?}");
    assert_eq!(called.body().await, r#"{"code":"REPLAY_DETECTED"}"#);
}

#[tokio::test(start_paused = true)]
async fn c_6_attempts_after_a_replay_do_not_go_back_to_the_old_id() {
    let called = run(Policy::bank(), pay(), |n| match n {
        0 => replay(),
        1 | 2 => json(503, "{}"),
        _ => json(200, "{}"),
    });
    let called = called.await;
    assert_eq!(called.outcome(), (4, None));
    assert!(!called.header("x-request-id")[1..].contains(&Some("r-1".into())));
}

#[tokio::test(start_paused = true)]
async fn c_6_without_a_replay_the_id_stays() {
    let called = run(Policy::bank(), pay(), |_| json(503, "{}")).await;
    assert_eq!(called.header("x-request-id"), vec![Some("r-1".into()); 4]);
}

#[tokio::test(start_paused = true)]
async fn c_6_replay_detected_once_is_once_in_a_call() {
    // 425 is retried once too, which is no reason to begin to count anew.
    let called = run(Policy::bank(), pay(), |n| match n {
        1 => json(425, "{}"),
        _ => replay(),
    });
    assert_eq!(called.await.outcome(), (3, Some(StopReason::Exhausted)));
}

#[tokio::test(start_paused = true)]
async fn c_6_the_id_is_in_the_header_that_the_policy_names() {
    let policy = Policy::http()
        .codes(Codes::standard().fresh_id("STALE"))
        .request_id_header("x-nonce".parse().unwrap());
    let called = run(policy, get(), |_| json(400, r#"{"code":"STALE"}"#)).await;
    let ids = called.header("x-nonce");
    assert_eq!((ids.len(), &ids[0]), (2, &None));
    assert!(ids[1].is_some());
    assert_eq!(called.header("x-request-id"), [None, None]);
}
