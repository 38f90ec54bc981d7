//! The places where a code is looked for, and the 409 of an operation in progress.

use http::{HeaderValue, Response};
use http_body_util::{BodyExt, Full};
use tower_reprise::{Policy, call::StopReason, classify::Codes};

use super::{attempts, forrst, get, json, run, said};

#[tokio::test(start_paused = true)]
async fn c_6_every_place_that_apis_put_codes() {
    let codes = || Codes::standard().retry("X");
    for body in [
        r#"{"errors":[{"code":"X"}]}"#,
        r#"{"error":{"code":429,"status":"X","message":"google.rpc"}}"#,
        r#"{"error":{"code":"X"}}"#,
        r#"{"code":"X"}"#,
        r#"{"type":"X","title":"RFC 9457"}"#,
        // One that is not in the table does not hide one that is.
        r#"{"code":"Y","type":"X"}"#,
    ] {
        assert_eq!(attempts(codes(), || json(400, body)).await, 6, "{body}");
    }
    for body in [
        "",
        "X",
        r#""X""#,
        "[]",
        "null",
        r#"{"code":["X"]}"#,
        r#"{"code":null}"#,
        r#"{"errors":["X"]}"#,
        r#"{"errors":[]}"#,
        r#"{"code":"X""#,
        r#"{"code":"x"}"#,
        "\u{feff}{}",
    ] {
        assert_eq!(attempts(codes(), || json(400, body)).await, 1, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn c_6_a_pointer_of_ones_own_is_looked_at_first() {
    let codes = || Codes::standard().retry("BUSY").never("FRAUD");
    let body = r#"{"fault":{"a/b":"FRAUD"},"code":"BUSY"}"#;
    assert_eq!(attempts(codes(), || json(503, body)).await, 6);
    let pointed = codes().pointer("/nowhere").pointer("/fault/a~1b");
    assert_eq!(attempts(pointed, || json(503, body)).await, 1);
}

#[tokio::test(start_paused = true)]
async fn s_3_a_body_that_is_nested_too_deep_tells_nothing() {
    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    let body = format!(r#"{{"code":"X","deep":{deep}}}"#);
    let codes = Codes::standard().retry("X");
    assert_eq!(attempts(codes, || json(400, body.clone())).await, 1);
}

#[tokio::test(start_paused = true)]
async fn c_6_content_types() {
    let body = r#"{"code":"X"}"#;
    let codes = || Codes::standard().retry("X");
    for kind in [
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/problem+json",
        "application/vnd.api+JSON",
    ] {
        let made = attempts(codes(), || said(400, kind, body)).await;
        assert_eq!(made, 6, "{kind}");
        let made = attempts(codes(), || said(200, kind, body)).await;
        assert_eq!(made, 1, "{kind}: a success is nobody's business");
    }
    for kind in ["text/html", "text/json", "application/jsonp", ""] {
        let made = attempts(codes(), || said(400, kind, body)).await;
        assert_eq!(made, 1, "{kind}");
    }
    let declared = || codes().content_type("text/json");
    for (status, kind, made) in [
        (200, "text/json", 6),
        (200, "TEXT/json;q=1", 6),
        (400, "text/json", 6),
        (200, "application/json", 1),
        (400, "application/json", 6),
    ] {
        let found = attempts(declared(), || said(status, kind, body)).await;
        assert_eq!(found, made, "{status} {kind}");
    }
    let none = || {
        Response::builder()
            .status(400)
            .body(Full::from(body).boxed_unsync())
    };
    assert_eq!(attempts(codes(), || none().unwrap()).await, 1);
}

#[tokio::test(start_paused = true)]
async fn c_6_a_body_that_is_encoded_is_not_looked_at() {
    for (encoding, made) in [
        ("gzip", 1),
        ("br, gzip", 1),
        ("identity", 6),
        ("Identity", 6),
    ] {
        let found = attempts(Codes::standard().retry("X"), || {
            let mut reply = json(400, r#"{"code":"X"}"#);
            let encoding = HeaderValue::from_static(encoding);
            reply.headers_mut().insert("content-encoding", encoding);
            reply
        });
        assert_eq!(found.await, made, "{encoding}");
    }
}

// ---- 409

#[tokio::test(start_paused = true)]
async fn c_6_a_409_is_retried_while_the_first_request_is_processed() {
    let ours = "urn:tower-reprise:problem:idempotency-processing";
    for body in [
        forrst("IDEMPOTENCY_PROCESSING"),
        r#"{"code":"IDEMPOTENCY_PROCESSING"}"#.to_owned(),
        format!(r#"{{"type":"{ours}","title":"Still processing","status":409}}"#),
    ] {
        // No table was asked for.
        let policy = || Policy::http().max_retries(5);
        let called = run(policy(), get(), |n| match n {
            0 | 1 => said(409, "application/problem+json", body.clone()),
            _ => json(201, "{}"),
        });
        let called = called.await;
        assert_eq!(called.outcome(), (3, None), "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn c_1_no_other_409_is_retried() {
    for reply in [
        || {
            json(
                409,
                r#"{"type":"urn:tower-reprise:problem:idempotency-mismatch"}"#,
            )
        },
        || json(409, r#"{"code":"CONFLICT"}"#),
        || json(409, ""),
        || said(409, "text/plain", "IDEMPOTENCY_PROCESSING"),
        // The same words with another status are not the rule's business.
        || json(422, r#"{"code":"IDEMPOTENCY_PROCESSING"}"#),
    ] {
        let called = run(Policy::http(), get(), |_| reply()).await;
        assert_eq!(called.outcome(), (1, Some(StopReason::NotRetryable)));
    }
}
