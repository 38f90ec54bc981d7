//! A server's guidance about calling again.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Channel, Full, StreamBody};
use serde_json::{Value, from_slice, json};
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_reprise::{
    forrst::{Retry, RetryGuidanceLayer},
    http::BufferedBody,
};

use crate::support::{codes::FINAL, pieces::Untouchable};

pub(crate) type Reply<B> = Response<BufferedBody<B>>;

/// Returns a reply after it has passed the layer.
pub(crate) async fn guided<B>(layer: RetryGuidanceLayer, reply: Response<B>) -> Reply<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut reply = Some(reply);
    let handler = service_fn(move |_: Request<()>| {
        let reply = reply.take().unwrap();
        async { Ok::<_, Infallible>(reply) }
    });
    let server = ServiceBuilder::new().layer(layer).service(handler);
    server.oneshot(Request::new(())).await.unwrap()
}

pub(crate) fn json_reply(status: u16, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let body = body.into();
    Response::builder()
        .status(status)
        .header("content-type", "application/json; charset=utf-8")
        .header("content-length", body.len())
        .body(Full::new(body))
        .unwrap()
}

pub(crate) fn envelope(codes: &[&str], extensions: Value) -> Value {
    let errors: Vec<_> = codes.iter().map(|code| json!({"code": code})).collect();
    let mut envelope = json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": "req_1",
        "result": null,
        "errors": errors,
    });
    envelope["extensions"] = extensions;
    envelope
}

fn failed(code: &str) -> Response<Full<Bytes>> {
    json_reply(500, envelope(&[code], json!([])).to_string())
}

pub(crate) fn header<B>(reply: &Response<B>, name: &str) -> Option<String> {
    let value = reply.headers().get(name)?;
    Some(value.to_str().unwrap().to_owned())
}

/// The body, whose size was told rightly.
pub(crate) async fn body<B>(reply: Reply<B>) -> Value
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Debug,
{
    let told = header(&reply, "content-length").map(|length| length.parse().unwrap());
    let hint = reply.body().size_hint().exact();
    let body = reply.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(hint, Some(body.len() as u64));
    assert_eq!(told.unwrap_or(body.len()), body.len());
    from_slice(&body).unwrap()
}

fn retry_of(envelope: &Value) -> Option<&Value> {
    let extensions = envelope["extensions"].as_array()?;
    let mut found = extensions
        .iter()
        .filter(|extension| extension["urn"] == "urn:forrst:ext:retry");
    let first = found.next()?;
    assert_eq!(found.next(), None, "twice");
    Some(&first["data"])
}

/// The guidance in the reply, and its `Retry-After`.
async fn guidance(
    layer: RetryGuidanceLayer,
    reply: Response<Full<Bytes>>,
) -> (Option<Value>, Option<String>) {
    let reply = guided(layer, reply).await;
    let after = header(&reply, "retry-after");
    (retry_of(&body(reply).await).cloned(), after)
}

pub(crate) fn wait(strategy: &str, seconds: u64, times: u64) -> Value {
    json!({
        "allowed": true,
        "strategy": strategy,
        "after": {"value": seconds, "unit": "second"},
        "max_attempts": times,
    })
}

#[tokio::test]
async fn c_6_guidance_by_the_table() {
    let immediate = json!({"allowed": true, "strategy": "immediate", "max_attempts": 1});
    for (code, retry, after) in [
        ("RATE_LIMITED", wait("fixed", 60, 3), Some("60")),
        ("UNAVAILABLE", wait("exponential", 1, 5), Some("1")),
        ("DEADLINE_EXCEEDED", immediate, None),
        ("INTERNAL_ERROR", wait("exponential", 1, 3), Some("1")),
        ("DEPENDENCY_ERROR", wait("exponential", 2, 3), Some("2")),
        ("IDEMPOTENCY_PROCESSING", wait("fixed", 1, 3), Some("1")),
        ("SERVER_MAINTENANCE", wait("fixed", 60, 1), Some("60")),
        ("FUNCTION_MAINTENANCE", wait("fixed", 60, 1), Some("60")),
        ("FUNCTION_DISABLED", wait("fixed", 30, 2), Some("30")),
    ] {
        let told = guidance(RetryGuidanceLayer::new(), failed(code)).await;
        assert_eq!(told, (Some(retry), after.map(str::to_owned)), "{code}");
    }
    for code in FINAL {
        let told = guidance(RetryGuidanceLayer::new(), failed(code)).await;
        assert_eq!(told, (Some(json!({"allowed": false})), None), "{code}");
    }
    let told = guidance(RetryGuidanceLayer::new(), failed("NEVER_HEARD_OF")).await;
    assert_eq!(told, (None, None));
}

#[tokio::test]
async fn c_6_all_else_in_a_reply_stays() {
    let reply = envelope(
        &["UNAVAILABLE"],
        json!([{"urn": "urn:x", "data": {"y": 1}}]),
    );
    let mut expected = reply.clone();
    let more = json!({"urn": "urn:forrst:ext:retry", "data": wait("exponential", 1, 5)});
    expected["extensions"].as_array_mut().unwrap().push(more);
    let reply = guided(
        RetryGuidanceLayer::new(),
        json_reply(503, reply.to_string()),
    )
    .await;
    assert_eq!(reply.status(), 503);
    assert_eq!(body(reply).await, expected);
}

#[tokio::test]
async fn c_6_a_success_gets_none() {
    for text in [
        r#"{"protocol":{"name":"forrst","version":"0.1.0"},"id":"1","result":{"a": 1}}"#,
        r#"{"protocol":{"name":"forrst","version":"0.1.0"},"result":1,"errors":[]}"#,
        r#"{"protocol":{"name":"forrst","version":"0.1.0"},"result":1,"errors":null}"#,
    ] {
        let reply = guided(RetryGuidanceLayer::new(), json_reply(200, text)).await;
        assert_eq!(header(&reply, "retry-after"), None);
        let body = reply.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, text);
    }
}

#[tokio::test]
async fn c_6_a_failure_with_a_good_status_is_told_in_its_body_alone() {
    let reply = json_reply(200, envelope(&["UNAVAILABLE"], json!(null)).to_string());
    let told = guidance(RetryGuidanceLayer::new(), reply).await;
    assert_eq!(told, (Some(wait("exponential", 1, 5)), None));
}

#[tokio::test]
async fn c_6_who_knows_better_is_heard_first() {
    let layer = RetryGuidanceLayer::new;
    // The handler, in the envelope, in either spelling.
    for urn in ["urn:forrst:ext:retry", "urn:cline:forrst:ext:retry"] {
        let own = json!([{"urn": urn, "data": wait("fixed", 7, 9)}]);
        let text = envelope(&["UNAVAILABLE"], own).to_string();
        let reply = guided(layer(), json_reply(503, text.clone())).await;
        assert_eq!(header(&reply, "retry-after").as_deref(), Some("7"));
        let body = reply.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, text);
    }
    // The handler, in its response.
    let mut reply = failed("NOT_FOUND");
    let own = Retry::fixed(Duration::from_millis(1500)).max_attempts(4);
    reply.extensions_mut().insert(own);
    let told = guidance(layer(), reply).await;
    assert_eq!(told, (Some(wait("fixed", 2, 4)), Some("2".into())));
    // A store, which has the failure, or keeps it from now on.
    for status in ["cached", "processed"] {
        let stored = json!([{"urn": "urn:forrst:ext:idempotency", "data": {"status": status}}]);
        let reply = json_reply(500, envelope(&["INTERNAL_ERROR"], stored).to_string());
        let told = guidance(layer(), reply).await;
        assert_eq!(told, (Some(json!({"allowed": false})), None), "{status}");
    }
    // A header.
    let mut reply = failed("UNAVAILABLE");
    reply.headers_mut().insert("retry-after", 120.into());
    let told = guidance(layer(), reply).await;
    assert_eq!(told, (Some(wait("fixed", 120, 5)), Some("120".into())));
    // The settings of the layer.
    let layer = layer()
        .code("BUSY", Retry::immediate())
        .code("UNAVAILABLE", Retry::never())
        .silent("INTERNAL_ERROR");
    let immediate = json!({"allowed": true, "strategy": "immediate"});
    for (code, expected) in [
        ("BUSY", Some(immediate)),
        ("UNAVAILABLE", Some(json!({"allowed": false}))),
        ("INTERNAL_ERROR", None),
    ] {
        let told = guidance(layer.clone(), failed(code)).await;
        assert_eq!(told, (expected, None), "{code}");
    }
}

#[tokio::test]
async fn ra_6_the_reset_of_a_limit_is_the_wait() {
    let limit = |remaining: u64| {
        let reset = json!({"value": 45, "unit": "second"});
        let data = json!({"limit": 100, "remaining": remaining, "reset": reset});
        json!([{"urn": "urn:forrst:ext:rate-limit", "data": data}])
    };
    for (code, remaining, expected, after) in [
        ("RATE_LIMITED", 0, wait("fixed", 45, 3), "45"),
        ("RATE_LIMITED", 2, wait("fixed", 45, 3), "45"),
        ("UNAVAILABLE", 0, wait("fixed", 45, 5), "45"),
        // A limit that was not reached has nothing to do with it.
        ("UNAVAILABLE", 50, wait("exponential", 1, 5), "1"),
    ] {
        let reply = json_reply(429, envelope(&[code], limit(remaining)).to_string());
        let told = guidance(RetryGuidanceLayer::new(), reply).await;
        assert_eq!(told, (Some(expected), Some(after.into())), "{code}");
    }
    let reply = json_reply(400, envelope(&["NOT_FOUND"], limit(0)).to_string());
    let told = guidance(RetryGuidanceLayer::new(), reply).await;
    assert_eq!(told, (Some(json!({"allowed": false})), None));
}

#[tokio::test]
async fn c_6_of_several_errors_one_that_is_final_decides() {
    for (codes, expected) in [
        (["UNAVAILABLE", "NOT_FOUND"], json!({"allowed": false})),
        (["STRANGE", "UNAVAILABLE"], wait("exponential", 1, 5)),
        (["RATE_LIMITED", "UNAVAILABLE"], wait("fixed", 60, 3)),
    ] {
        let reply = json_reply(500, envelope(&codes, json!([])).to_string());
        let told = guidance(RetryGuidanceLayer::new(), reply).await.0;
        assert_eq!(told, Some(expected), "{codes:?}");
    }
}

#[tokio::test]
async fn ra_1_other_busy_replies_say_when_to_come_back() {
    let reply = |status: u16| {
        let builder = Response::builder().status(status);
        builder.body(Full::new(Bytes::from("busy"))).unwrap()
    };
    for (status, after) in [(429, Some("1")), (503, Some("1")), (500, None), (200, None)] {
        let told = guided(RetryGuidanceLayer::new(), reply(status)).await;
        assert_eq!(header(&told, "retry-after").as_deref(), after, "{status}");
    }
    let five = RetryGuidanceLayer::new().http_retry_after(Duration::from_millis(4100));
    let told = guided(five.clone(), reply(503)).await;
    assert_eq!(header(&told, "retry-after").as_deref(), Some("5"));
    let told = guided(RetryGuidanceLayer::new().http_retry_after(None), reply(503)).await;
    assert_eq!(header(&told, "retry-after"), None);
    // Never against what was said.
    for (name, value) in [("retry-after", "9"), ("x-should-retry", "false")] {
        let mut said = reply(429);
        said.headers_mut().insert(name, value.parse().unwrap());
        let before = said.headers().clone();
        assert_eq!(guided(five.clone(), said).await.headers(), &before);
    }
    // JSON of another kind is one of them.
    let other = json_reply(429, r#"{"errors":[{"code":"UNAVAILABLE"}]}"#);
    let told = guided(RetryGuidanceLayer::new(), other.clone()).await;
    assert_eq!(header(&told, "retry-after").as_deref(), Some("1"));
    assert_eq!(retry_of(&body(told).await), None);
    // Unless it is said to be forrst.
    let told = guidance(RetryGuidanceLayer::new().any_errors(), other)
        .await
        .0;
    assert_eq!(told, Some(wait("exponential", 1, 5)));
}

#[tokio::test]
async fn s_3_what_can_not_be_changed_is_not_read() {
    for (name, value) in [
        ("content-type", "text/html"),
        ("content-type", "application/grpc+proto"),
        ("content-encoding", "gzip"),
        (
            "content-digest",
            "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:",
        ),
    ] {
        let mut reply = Response::new(Untouchable(None));
        let headers = reply.headers_mut();
        headers.insert("content-type", "application/json".parse().unwrap());
        headers.insert(name, value.parse().unwrap());
        guided(RetryGuidanceLayer::new(), reply).await;
    }
}

#[tokio::test]
async fn s_3_what_is_too_long_passes_whole() {
    let text = envelope(&["UNAVAILABLE"], json!([])).to_string();
    let room = text.len();
    let layer = |limit| {
        RetryGuidanceLayer::new()
            .limit(limit)
            .http_retry_after(None)
    };
    let told = guidance(layer(room), json_reply(503, text.clone())).await.0;
    assert!(told.is_some());
    // Whether its length is known at first or not.
    let reply = guided(layer(room - 1), json_reply(503, text.clone())).await;
    assert_eq!(retry_of(&body(reply).await), None);
    let pieces = [&text[..100], &text[100..]].map(|piece| Bytes::copy_from_slice(piece.as_bytes()));
    let frames = pieces.map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
    let stream = StreamBody::new(tokio_stream::iter(frames));
    let reply = json_reply(503, "").map(|_| stream);
    let reply = guided(layer(room - 1), reply).await;
    let passed = reply.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(passed, text);
}

#[tokio::test(start_paused = true)]
async fn s_3_what_is_too_slow_passes_whole_and_what_is_in_time_keeps_its_trailers() {
    for late in [false, true] {
        let text = envelope(&["UNAVAILABLE"], json!([])).to_string();
        let (mut sender, channel) = Channel::<Bytes, Infallible>::new(4);
        let (first, rest) = text.split_at(20);
        let [first, rest] = [first, rest].map(|text| Bytes::copy_from_slice(text.as_bytes()));
        tokio::spawn(async move {
            sender.send_data(first).await.unwrap();
            tokio::time::sleep(Duration::from_millis(if late { 900 } else { 100 })).await;
            sender.send_data(rest).await.unwrap();
            let mut trailers = HeaderMap::new();
            trailers.insert("x-sum", 7.into());
            sender.send_trailers(trailers).await.unwrap();
        });
        let mut reply = json_reply(503, "").map(|_| channel);
        reply.headers_mut().remove("content-length");
        let began = Instant::now();
        let reply = guided(RetryGuidanceLayer::new(), reply).await;
        let waited = Duration::from_millis(if late { 250 } else { 100 });
        assert_eq!(began.elapsed(), waited);
        let collected = reply.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["x-sum"], "7");
        let body: Value = from_slice(&collected.to_bytes()).unwrap();
        assert_eq!(retry_of(&body).is_some(), !late);
    }
}

#[tokio::test]
async fn s_3_a_body_that_breaks_breaks_as_it_did() {
    let frames = [
        Ok(Frame::data(Bytes::from_static(b"{\"errors\":"))),
        Err("broken"),
    ];
    let stream = StreamBody::new(tokio_stream::iter(frames));
    let reply = json_reply(503, "").map(|_| stream);
    let mut body = guided(RetryGuidanceLayer::new(), reply).await.into_body();
    let first = body.frame().await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "{\"errors\":");
    assert_eq!(body.frame().await.unwrap().unwrap_err(), "broken");
}
