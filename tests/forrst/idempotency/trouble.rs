//! Calls that are wrong, and stores that fail.

use std::time::Duration;

use axum::body::Body;
use http_body_util::StreamBody;
use serde_json::{Value, from_slice, json};
use tower_reprise::store::{MemoryStore, StoreErrorKind};

use super::{Shop, URN, ask, call, code, data, post, send};
use crate::support::flaky::{ALWAYS, Fault, Flaky, Verb};

/// I-5: what is wrong is told with its place, in an envelope, and nothing is executed or stored.
#[tokio::test]
async fn i_5_what_is_wrong_is_told_with_its_place() {
    let extensions =
        |text: &str| format!(r#"{{"id":"req_1","call":{{"function":"f"}},"extensions":{text}}}"#);
    let options = |text: &str| extensions(&format!(r#"[{{"urn":"{URN}","options":{text}}}]"#));
    let with_nul = |id: &str, call: &str| {
        format!(
            r#"{{{id},"call":{{{call}}},"extensions":[{{"urn":"{URN}","options":{{"key":"k"}}}}]}}"#
        )
    };
    let longest = "k".repeat(65);
    let id = "i".repeat(256);
    for (text, at, id) in [
        (String::new(), "forrst envelope: EOF", None),
        ("7".into(), "forrst envelope: ", None),
        ("[]".into(), "forrst envelope: ", None),
        (
            r#"{"id":"req_1"}"#.into(),
            "missing field `call`",
            Some("req_1"),
        ),
        (
            r#"{"id":"req_1","call":{}}"#.into(),
            "call: missing field `function`",
            Some("req_1"),
        ),
        (r#"{"id":7,"call":{"function":"f"}}"#.into(), "id: ", None),
        (
            r#"{"id":"req_1","call":{"function":"f"}} x"#.into(),
            "trailing",
            None,
        ),
        (
            r#"{"id":"req_1","protocol":{"name":"soap","version":"1"},"call":{"function":"f"}}"#
                .into(),
            r#"protocol.name: is "soap", allowed: "forrst""#,
            Some("req_1"),
        ),
        (extensions("{}"), "extensions: ", Some("req_1")),
        (extensions("[7]"), "extensions[0]: ", Some("req_1")),
        (
            extensions(r#"[{"options":{}}]"#),
            "extensions[0]: missing field `urn`",
            Some("req_1"),
        ),
        (
            extensions(&format!(r#"[{{"urn":"{URN}"}}]"#)),
            "extensions[0].options: is missing",
            Some("req_1"),
        ),
        (
            options("null"),
            "extensions[0].options: is missing",
            Some("req_1"),
        ),
        (options("[]"), "extensions[0].options", Some("req_1")),
        (
            options("{}"),
            "extensions[0].options: missing field `key`",
            Some("req_1"),
        ),
        (
            options(r#"{"key":7}"#),
            "extensions[0].options.key: ",
            Some("req_1"),
        ),
        (
            options(r#"{"key":""}"#),
            "extensions[0].options.key: allowed: 1 to 64",
            Some("req_1"),
        ),
        (
            options(r#"{"key":"a\u0000"}"#),
            "extensions[0].options.key: allowed: 1 to 64",
            Some("req_1"),
        ),
        (
            options(r#"{"key":"schlüssel"}"#),
            "extensions[0].options.key: allowed: 1 to 64",
            Some("req_1"),
        ),
        (
            options(&format!(r#"{{"key":"{longest}"}}"#)),
            "extensions[0].options.key: allowed: 1 to 64",
            Some("req_1"),
        ),
        (
            options(r#"{"key":"k","ttl":24}"#),
            "extensions[0].options.ttl: ",
            Some("req_1"),
        ),
        (
            options(r#"{"key":"k","ttl":{"value":-1,"unit":"day"}}"#),
            "extensions[0].options.ttl.value: ",
            Some("req_1"),
        ),
        (
            options(r#"{"key":"k","ttl":{"value":1,"unit":"year"}}"#),
            "extensions[0].options.ttl.unit: ",
            Some("req_1"),
        ),
        (
            with_nul(r#""id":"a\u0000""#, r#""function":"f""#),
            "id: has a NUL",
            Some("a\0"),
        ),
        (
            with_nul(r#""id":"req_1""#, r#""function":"f\u0000""#),
            "call.function: has a NUL",
            Some("req_1"),
        ),
        (
            with_nul(r#""id":"req_1""#, r#""function":"f","version":"1\u0000""#),
            "call.version: has a NUL",
            Some("req_1"),
        ),
        (
            call(&id, "k", &json!({})).to_string(),
            "id: is too long, allowed: up to 255 bytes",
            Some(&*id),
        ),
    ] {
        let shop = Shop::new();
        let store = MemoryStore::new();
        let app = shop.app_with(shop.builder(store.clone()));
        let (status, reply) = send(&app, post(text.clone())).await;
        let headers = reply.headers();
        assert_eq!(headers["content-type"], "application/json", "{text}");
        assert_eq!(headers["cache-control"], "no-store", "{text}");
        let reply: Value = from_slice(reply.body()).unwrap();
        assert_eq!((status, code(&reply)), (400, "VALIDATION_ERROR"), "{text}");
        assert_eq!(reply["protocol"]["name"], "forrst");
        assert_eq!(
            (&reply["result"], reply["id"].as_str()),
            (&Value::Null, id),
            "{text}"
        );
        let message = reply["errors"][0]["message"].as_str().unwrap();
        assert!(message.contains(at), "{message}, not {at}");
        assert!(message.len() < 600, "{message}");
        assert_eq!((shop.runs(), store.len()), (0, 0), "{text}");
    }
}

/// I-5: keys may be longer where the server says so.
#[tokio::test]
async fn i_5_the_longest_key_can_be_configured() {
    let shop = Shop::new();
    let app = shop.app_with(shop.builder(MemoryStore::new()).max_key_len(255));
    let key = " ~".repeat(127);
    let (status, reply) = ask(&app, &call("req_1", &key, &json!({}))).await;
    assert_eq!((status, &data(&reply)["key"]), (200, &json!(key)));
}

/// I-17: too large, or broken off: nothing is claimed.
#[tokio::test]
async fn i_17_a_body_that_can_not_be_read() {
    let shop = Shop::new();
    let store = MemoryStore::new();
    let app = shop.app_with(shop.builder(store.clone()).request_limit(100));
    let (status, reply) = ask(&app, &call("req_1", "k", &json!("x".repeat(100)))).await;
    assert_eq!((status, code(&reply)), (413, "VALIDATION_ERROR"));
    let broken = [Err::<http_body::Frame<bytes::Bytes>, _>(
        std::io::Error::other("gone"),
    )];
    let broken = Body::new(StreamBody::new(tokio_stream::iter(broken)));
    let (status, reply) = send(&app, post(broken)).await;
    let reply: Value = from_slice(reply.body()).unwrap();
    assert_eq!((status, code(&reply)), (400, "VALIDATION_ERROR"));
    assert_eq!((shop.runs(), store.len()), (0, 0));
}

/// I-21: fail closed, unless told otherwise.
#[tokio::test(start_paused = true)]
async fn i_21_a_store_that_is_down() {
    let shop = Shop::new();
    let store = Flaky::default();
    store.go_down();
    let app = shop.app_with(shop.builder(store.clone()));
    let (status, reply) = send(&app, post(call("req_1", "k", &json!({})).to_string())).await;
    assert_eq!(reply.headers()["retry-after"], "1");
    let reply: Value = from_slice(reply.body()).unwrap();
    assert_eq!((status, code(&reply)), (503, "UNAVAILABLE"));
    assert_eq!(
        (&reply["id"], data(&reply)),
        (&json!("req_1"), &Value::Null)
    );
    let after = &reply["errors"][0]["details"]["retry_after"];
    assert_eq!(*after, json!({"value": 1, "unit": "second"}));
    assert_eq!(shop.runs(), 0);

    let app = shop.app_with(shop.builder(store).fail_open());
    let (status, reply) = ask(&app, &call("req_1", "k", &json!({}))).await;
    assert_eq!((status, data(&reply), shop.runs()), (200, &Value::Null, 1));
}

/// I-22: a completion that fails takes nothing from the first caller, and repeats are held off.
#[tokio::test(start_paused = true)]
async fn i_22_a_completion_that_fails() {
    let shop = Shop::new();
    let store = Flaky::default();
    let unavailable = Fault::Error(StoreErrorKind::Unavailable);
    store.fail(Verb::Complete, unavailable, ALWAYS);
    let app = shop.app_with(shop.builder(store));
    let (status, reply) = ask(&app, &call("req_1", "k", &json!({}))).await;
    assert_eq!(
        (status, &data(&reply)["status"]),
        (200, &json!("processed"))
    );
    let (status, reply) = ask(&app, &call("req_2", "k", &json!({}))).await;
    assert_eq!((status, code(&reply)), (409, "IDEMPOTENCY_PROCESSING"));
    assert_eq!(shop.runs(), 1);
}

/// I-6, C-7: a client of this crate comes back for the reply, with a new id and the same key.
#[cfg(feature = "axum")]
#[tokio::test(start_paused = true)]
async fn i_6_c_7_a_client_comes_back_for_the_reply() {
    use tower::{ServiceBuilder, ServiceExt};
    use tower_reprise::{
        Dependencies, IdempotencyKeyLayer, PeekLayer, Policy, RetryLayer,
        classify::Codes,
        forrst::{EnvelopeKeyLayer, FreshId},
    };

    let shop = Shop::held();
    let app = shop.app();
    let first = tokio::spawn({
        let app = app.clone();
        async move { ask(&app, &call("req_1", "k", &json!({}))).await }
    });
    while shop.runs() == 0 {
        tokio::task::yield_now().await;
    }
    let gate = std::sync::Arc::clone(&shop.gate);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        gate.add_permits(1);
    });
    let deps = Dependencies::new(Policy::http().codes(Codes::forrst()).build().unwrap());
    let client = ServiceBuilder::new()
        .layer(EnvelopeKeyLayer::new())
        .layer(IdempotencyKeyLayer::new())
        .layer(RetryLayer::new(deps.clone()).with_prepare(FreshId))
        .layer(PeekLayer::new(deps))
        .service(app);
    let request = post(call("req_2", "k", &json!({})).to_string());
    let reply = client.oneshot(request).await.unwrap().into_body();
    let reply = axum::body::to_bytes(Body::new(reply), usize::MAX)
        .await
        .unwrap();
    let reply: Value = from_slice(&reply).unwrap();
    assert_eq!(data(&reply)["status"], "cached");
    assert_eq!(data(&reply)["original_request_id"], "req_1");
    assert_ne!(reply["id"], "req_2");
    assert_eq!(data(&first.await.unwrap().1)["status"], "processed");
    assert_eq!(shop.runs(), 1);
}
