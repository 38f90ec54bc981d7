//! A plain HTTP server's guidance about calling again, and a client's obedience to it.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower_reprise::{
    call::StopReason,
    forrst::{Retry, RetryGuidanceLayer},
};

use crate::{
    client::{patient, run},
    guidance::{body, envelope, guided, header, json_reply, wait},
};

type Reply = Response<Full<Bytes>>;

fn with(mut reply: Reply, headers: &[(&'static str, &str)]) -> Reply {
    for (name, value) in headers {
        reply.headers_mut().insert(*name, value.parse().unwrap());
    }
    reply
}

fn problem(status: u16, members: &Value) -> Reply {
    let mut document = json!({"type": "about:blank", "status": status});
    let more = members.as_object().unwrap().clone();
    document.as_object_mut().unwrap().extend(more);
    let kind = ("content-type", "Application/Problem+JSON; charset=utf-8");
    with(json_reply(status, document.to_string()), &[kind])
}

/// The member of the problem, `Retry-After` and `x-should-retry`.
async fn told(layer: RetryGuidanceLayer, reply: Reply) -> (Value, Option<String>, Option<String>) {
    let reply = guided(layer, reply).await;
    let headers = ["retry-after", "x-should-retry"].map(|name| header(&reply, name));
    let [after, should] = headers;
    (body(reply).await["retry"].clone(), after, should)
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// RA-6: a limit that was reached is the wait, if it may be why the call failed.
#[tokio::test]
async fn ra_6_the_reset_of_a_limit_in_headers_is_the_wait() {
    let reached = [("ratelimit", r#""minute";r=0;t=45"#)];
    let older = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "45")];
    let left = [("ratelimit", r#""minute";r=7;t=45"#)];
    for (status, headers, after) in [
        (429, &reached[..], Some("45")),
        (503, &reached, Some("45")),
        (429, &older, Some("45")),
        (429, &left, Some("1")),
        (500, &reached, None),
        (200, &reached, None),
    ] {
        let reply = Response::builder().status(status);
        let reply = with(reply.body(Full::from("busy")).unwrap(), headers);
        let reply = guided(RetryGuidanceLayer::new(), reply).await;
        assert_eq!(header(&reply, "retry-after").as_deref(), after, "{status}");
    }
    // An explicit `Retry-After` stays.
    let said = [reached[0], ("retry-after", "9")];
    let reply = with(json_reply(429, "{}"), &said);
    let reply = guided(RetryGuidanceLayer::new(), reply).await;
    assert_eq!(header(&reply, "retry-after"), text("9"));
    // And an envelope says the same.
    let reply = json_reply(429, envelope(&["RATE_LIMITED"], json!([])).to_string());
    let reply = guided(RetryGuidanceLayer::new(), with(reply, &reached)).await;
    assert_eq!(header(&reply, "retry-after"), text("45"));
    let said = body(reply).await;
    assert_eq!(said["extensions"][0]["data"], wait("fixed", 45, 3));
}

/// C-6: a problem document has the guidance as a member, by its code or else by its status.
#[tokio::test]
async fn c_6_a_problem_document_says_it_in_a_member() {
    let layer = RetryGuidanceLayer::new;
    let never = json!({"allowed": false});
    let second =
        json!({"allowed": true, "strategy": "fixed", "after": {"value": 1, "unit": "second"}});
    for (status, code, retry, after, should) in [
        (
            500,
            json!("INTERNAL_ERROR"),
            wait("exponential", 1, 3),
            Some("1"),
            None,
        ),
        (
            429,
            json!("RATE_LIMITED"),
            wait("fixed", 60, 3),
            Some("60"),
            None,
        ),
        (404, json!("NOT_FOUND"), never.clone(), None, Some("false")),
        (503, json!("STRANGE"), second.clone(), Some("1"), None),
        (503, Value::Null, second, Some("1"), None),
        (500, json!("STRANGE"), Value::Null, None, None),
        (500, Value::Null, Value::Null, None, None),
    ] {
        let expected = (retry, after.and_then(text), should.and_then(text));
        let reply = problem(status, &json!({ "code": code }));
        assert_eq!(told(layer(), reply).await, expected, "{status} {code}");
    }
    // Headers, the handler's own guidance and the layer's settings take precedence over the table.
    let unavailable = || problem(503, &json!({"code": "UNAVAILABLE"}));
    for (headers, expected) in [
        (
            ("retry-after", "20"),
            (wait("fixed", 20, 5), text("20"), None),
        ),
        (
            ("ratelimit", r#""minute";r=0;t=45"#),
            (wait("fixed", 45, 5), text("45"), None),
        ),
        (
            ("x-should-retry", "false"),
            (never.clone(), None, text("false")),
        ),
        (
            ("idempotent-replayed", "true"),
            (never.clone(), None, text("false")),
        ),
    ] {
        let reply = with(unavailable(), &[headers]);
        assert_eq!(told(layer(), reply).await, expected, "{headers:?}");
    }
    let mut reply = unavailable();
    let own = Retry::fixed(Duration::from_secs(7)).max_attempts(2);
    reply.extensions_mut().insert(own);
    let expected = (wait("fixed", 7, 2), text("7"), None);
    assert_eq!(told(layer(), reply).await, expected);
    let own = wait("fixed", 8, 2);
    let reply = problem(503, &json!({"code": "NOT_FOUND", "retry": own}));
    assert_eq!(told(layer(), reply).await, (own, text("8"), None));
    let silent = layer().silent("UNAVAILABLE").http_retry_after(None);
    let nothing = (Value::Null, None, None);
    assert_eq!(told(silent, unavailable()).await, nothing);
}

/// C-6: a handler's own guidance counts in replies that have no document, too.
#[tokio::test]
async fn c_6_a_handler_knows_better_in_any_reply() {
    for (retry, after, should) in [
        (Retry::fixed(Duration::from_millis(1500)), text("2"), None),
        (Retry::never(), None, text("false")),
        (Retry::immediate(), None, None),
    ] {
        let mut reply = Response::new(Full::from("busy"));
        *reply.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
        reply.extensions_mut().insert(retry);
        let reply = guided(RetryGuidanceLayer::new(), reply).await;
        assert_eq!(header(&reply, "retry-after"), after);
        assert_eq!(header(&reply, "x-should-retry"), should);
    }
}

/// S-3: what is no object stays as it is, to the byte.
#[tokio::test]
async fn s_3_what_is_no_problem_document_is_not_changed() {
    let kind = ("content-type", "application/problem+json");
    for text in ["", "7", "[]", "{", r#"{"code":7}"#, r#"{"retry":"no"}"#] {
        let reply = with(json_reply(429, text), &[kind]);
        let reply = guided(RetryGuidanceLayer::new(), reply).await;
        assert_eq!(
            header(&reply, "retry-after").as_deref(),
            Some("1"),
            "{text}"
        );
        let read = reply.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(read, text);
    }
    // Nor is JSON of another kind.
    let text = r#"{"status":503,"code":"UNAVAILABLE"}"#;
    let reply = guided(RetryGuidanceLayer::new(), json_reply(503, text)).await;
    let read = reply.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(read, text);
}

/// RA-6: our client does what our server says in a problem document.
#[tokio::test(start_paused = true)]
async fn ra_6_the_member_of_a_problem_document_is_obeyed() {
    for (status, code, waits, why) in [
        (
            503,
            "UNAVAILABLE",
            &[1, 2, 4, 8, 16][..],
            StopReason::Exhausted,
        ),
        (429, "RATE_LIMITED", &[60, 60, 60], StopReason::Exhausted),
        (500, "DEPENDENCY_ERROR", &[2, 4, 8], StopReason::Exhausted),
        (503, "STOCKTAKING", &[20, 20], StopReason::Exhausted),
        // R-4.
        (400, "STOCKTAKING", &[], StopReason::NotRetryable),
        (503, "NOT_FOUND", &[], StopReason::Pushback),
    ] {
        let twice = Retry::fixed(Duration::from_secs(20)).max_attempts(2);
        let layer = RetryGuidanceLayer::new().code("STOCKTAKING", twice);
        let reply = guided(layer, problem(status, &json!({ "code": code }))).await;
        let (head, body) = reply.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let mut reply = Response::from_parts(head, Full::new(body));
        // The body alone.
        reply.headers_mut().remove("retry-after");
        reply.headers_mut().remove("x-should-retry");
        let called = run(patient(), |_| reply.clone()).await;
        assert_eq!(called.seconds(), waits, "{code}");
        assert_eq!(called.stop_reason, Some(why), "{code}");
    }
    // A success that has a member of that name is one.
    for status in [json!("done"), json!(200), Value::Null] {
        let document = json!({"status": status, "retry": {"allowed": true}}).to_string();
        let called = run(patient(), |_| json_reply(200, document.clone())).await;
        assert_eq!(
            (called.waits, called.stop_reason),
            (vec![], None),
            "{status}"
        );
    }
}

/// RA-6: nor does one of plain HTTP whose layer keeps it.
#[tokio::test(start_paused = true)]
async fn ra_6_a_reply_that_an_idempotency_layer_keeps_says_so() {
    use tower::{Layer, ServiceExt};
    use tower_reprise::{
        IdempotencyLayer,
        server::{dialect::Scope, idempotency::ServerErrors},
        store::{CrashPolicy, MemoryStore},
    };

    for (kept, errors) in [
        (true, ServerErrors::KeepAll),
        (false, ServerErrors::ReleaseAll),
    ] {
        let layer = IdempotencyLayer::builder(MemoryStore::new())
            .scope(Scope::new(|_| Some("ada")))
            .crash_policy(CrashPolicy::Unknown)
            .server_errors(errors)
            .build()
            .unwrap();
        let handler = tower::service_fn(|_: http::Request<Full<Bytes>>| async {
            Ok::<_, std::convert::Infallible>(problem(503, &json!({ "code": "UNAVAILABLE" })))
        });
        let server = RetryGuidanceLayer::new().layer(layer.layer(handler));
        let request = http::Request::post("/").header("idempotency-key", "1");
        let reply = server
            .oneshot(request.body(Full::default()).unwrap())
            .await
            .unwrap();
        let stop = reply.headers().get("x-should-retry").is_some();
        assert_eq!(
            (stop, reply.headers().contains_key("retry-after")),
            (kept, !kept)
        );
        let body = reply.into_body().collect().await.unwrap().to_bytes();
        let document: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(document["retry"]["allowed"], !kept);
    }
}
