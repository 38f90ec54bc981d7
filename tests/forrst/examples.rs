//! The examples of the specifications on both sides: our server says what the retry extension's
//! show, and our client does what they ask for.

use axum::{Router, body::Body, routing::post};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, from_slice};
use tower::ServiceExt;
use tower_reprise::{call::StopReason, forrst::RetryGuidanceLayer};

use crate::{
    client::{patient, run},
    envelopes::vector,
    support::codes::FINAL,
};

fn example(name: &str) -> Value {
    from_slice(&vector(name)).unwrap()
}

/// Returns a server's reply if its handler fails like this.
async fn says(status: u16, envelope: &Value) -> Value {
    let body = envelope.to_string();
    let status = StatusCode::from_u16(status).unwrap();
    let handler = async move || (status, [("content-type", "application/json")], body);
    let app = Router::new()
        .route("/forrst", post(handler))
        .layer(RetryGuidanceLayer::new());
    let request = Request::post("/forrst").body(Body::empty()).unwrap();
    let reply = app.oneshot(request).await.unwrap();
    assert_eq!(reply.status(), status);
    let body = axum::body::to_bytes(reply.into_body(), 10_000).await;
    from_slice(&body.unwrap()).unwrap()
}

/// C-6: a handler says what went wrong, and the server the rest, to the letter.
#[tokio::test]
async fn c_6_our_server_says_what_the_examples_show() {
    for (name, status) in [
        ("retry-02", 503),
        ("retry-03", 429),
        ("retry-04", 504),
        ("retry-05", 400),
    ] {
        let shown = example(name);
        let mut failed = shown.clone();
        failed.as_object_mut().unwrap().remove("extensions");
        assert_eq!(says(status, &failed).await, shown, "{name}");
    }
}

/// C-6: the extension of every error that is not to be retried.
#[tokio::test]
async fn c_6_our_server_says_no_as_the_example_shows() {
    for code in &FINAL[..6] {
        let mut failed = example("retry-05");
        failed["errors"][0]["code"] = (*code).into();
        failed.as_object_mut().unwrap().remove("extensions");
        let said = says(400, &failed).await;
        assert_eq!(said["extensions"][0], example("retry-01"), "{code}");
    }
}

/// RA-6: the reset of the limit is the wait. The example leaves out how often, which the table has.
#[tokio::test]
async fn ra_6_our_server_says_when_a_limit_is_lifted_as_the_example_shows() {
    let shown = example("retry-07");
    let mut failed = example("retry-03");
    failed["extensions"] = shown["extensions"].clone();
    failed["extensions"].as_array_mut().unwrap().pop();
    let mut said = says(429, &failed).await;
    let retry = said["extensions"][1]["data"].as_object_mut().unwrap();
    assert_eq!(retry.remove("max_attempts"), Some(3.into()));
    assert_eq!(said["extensions"], shown["extensions"]);
}

/// RA-6, C-7: what the examples ask for is done, and no more.
#[tokio::test(start_paused = true)]
async fn ra_6_our_client_does_what_the_examples_ask_for() {
    for (name, status, waits, why) in [
        (
            "retry-02",
            503,
            &[1, 2, 4, 8, 16][..],
            StopReason::Exhausted,
        ),
        ("retry-03", 429, &[60, 60, 60], StopReason::Exhausted),
        ("retry-04", 504, &[0], StopReason::Exhausted),
        ("retry-05", 400, &[], StopReason::Pushback),
        ("idempotency-04", 422, &[], StopReason::NotRetryable),
        ("idempotency-05", 409, &[1, 1, 1], StopReason::Exhausted),
        ("replay-04", 400, &[], StopReason::NotRetryable),
    ] {
        let called = run(patient(), |_| replied(status, name)).await;
        assert_eq!(called.seconds(), waits, "{name}");
        assert_eq!(called.stop_reason, Some(why), "{name}");
    }
    for (name, status) in [
        ("idempotency-02", 200),
        ("idempotency-03", 200),
        ("replay-02", 202),
        ("replay-03", 200),
    ] {
        let called = run(patient(), |_| replied(status, name)).await;
        assert_eq!((called.waits, called.stop_reason), (vec![], None), "{name}");
    }
}

fn replied(status: u16, name: &str) -> Response<Full<Bytes>> {
    Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .body(Full::from(vector(name)))
        .unwrap()
}
