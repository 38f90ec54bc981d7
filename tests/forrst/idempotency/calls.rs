//! Which calls are the same call, and whose.

use std::sync::Arc;

use axum::body::Body;
use http::Request;
use proptest::prelude::*;
use serde_json::{Value, from_slice, json, to_string};
use tokio::runtime::Builder;
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    forrst::canonical,
    store::{CrashPolicy, MemoryStore},
};

use super::{Shop, URN, ask, call, code, data, post, send};

/// Section 0: both spellings are read, the first is written.
#[tokio::test]
async fn section_0_both_spellings_of_the_urn_are_one_extension() {
    let shop = Shop::new();
    let app = shop.app();
    let mut request = call("req_1", "k", &json!({}));
    request["extensions"][0]["urn"] = "urn:cline:forrst:ext:idempotency".into();
    let (_, first) = ask(&app, &request).await;
    assert_eq!(data(&first)["status"], "processed");
    let (_, again) = ask(&app, &call("req_2", "k", &json!({}))).await;
    assert_eq!(data(&again)["status"], "cached");
    assert_eq!(shop.runs(), 1);

    request["extensions"]
        .as_array_mut()
        .unwrap()
        .push(json!({"urn": URN, "options": {"key": "k"}}));
    let (status, reply) = ask(&app, &request).await;
    assert_eq!((status, code(&reply)), (400, "VALIDATION_ERROR"));
}

/// I-19: a key belongs to a function, its version, a tenant and a namespace.
#[tokio::test]
async fn i_19_each_has_keys_of_its_own() {
    let shop = Shop::new();
    let store = Arc::new(MemoryStore::new());
    let app = shop.app_with(shop.builder(Arc::clone(&store)));
    let request = call("req_1", "k", &json!({}));
    let mut function = request.clone();
    function["call"]["function"] = "payments.refund".into();
    let mut version = request.clone();
    version["call"]["version"] = "1.0.1".into();
    let mut none = request.clone();
    none["call"].as_object_mut().unwrap().remove("version");
    let mut key = request.clone();
    key["extensions"][0]["options"]["key"] = "K".into();
    for (n, request) in (1..).zip([&request, &function, &version, &none, &key]) {
        assert_eq!(data(&ask(&app, request).await.1)["status"], "processed");
        assert_eq!(shop.runs(), n);
    }
    let mut other = post(request.to_string());
    other
        .headers_mut()
        .insert("x-tenant", "bank".parse().unwrap());
    let reply: Value = from_slice(send(&app, other).await.1.body()).unwrap();
    assert_eq!(data(&reply)["status"], "processed", "another tenant");
    let elsewhere = shop.app_with(shop.builder(store).namespace("v2"));
    let (_, reply) = ask(&elsewhere, &request).await;
    assert_eq!(data(&reply)["status"], "processed", "another namespace");
    assert_eq!(shop.runs(), 7);
}

/// I-20: nobody has keys, unless there is a scope for nobody.
#[tokio::test]
async fn i_20_a_key_of_nobody_is_forbidden() {
    let shop = Shop::new();
    let nobody = || {
        let mut request = post(call("req_1", "k", &json!({})).to_string());
        request.headers_mut().remove("x-tenant");
        request
    };
    let (status, reply) = send(&shop.app(), nobody()).await;
    let reply: Value = from_slice(reply.body()).unwrap();
    assert_eq!((status, code(&reply)), (403, "FORBIDDEN"));
    assert_eq!((&reply["id"], shop.runs()), (&json!("req_1"), 0));

    let app = shop.app_with(
        shop.builder(MemoryStore::new())
            .scope(Scope::anonymous("nobody")),
    );
    assert_eq!(send(&app, nobody()).await.0, 200);
}

/// I-2: what has no key is passed on as it came, as often as it comes.
#[tokio::test]
async fn i_2_calls_without_the_extension_are_passed_on() {
    let shop = Shop::new();
    let app = shop.app();
    let text = r#"{ "id":"req_1", "call": {"function":"f", "arguments": 1.50e0}, "x": [ ],
        "extensions": [{"urn":"urn:acme:audit","options":{}}] }"#;
    for n in 1..3 {
        let (status, reply) = send(&app, post(text)).await;
        let reply: Value = from_slice(reply.body()).unwrap();
        assert_eq!((status, data(&reply)), (200, &Value::Null));
        assert_eq!(shop.runs(), n);
        assert_eq!(*shop.seen.lock().unwrap(), text);
    }
    // Nor is anything read that can't be a call.
    for method in ["GET", "OPTIONS"] {
        let mut request = post(Body::empty());
        *request.method_mut() = method.parse().unwrap();
        assert_eq!(send(&app, request).await.0, 200, "{method}");
    }
    assert_eq!(shop.runs(), 4);
}

/// I-2: a call is protected whatever its content type and its method say.
#[tokio::test]
async fn i_2_a_key_does_not_go_unseen() {
    for (method, content_type) in [
        ("POST", Some("text/plain")),
        ("POST", None),
        ("PUT", Some("x")),
    ] {
        let shop = Shop::new();
        let app = shop.app();
        for expected in ["processed", "cached"] {
            let mut request = Request::builder()
                .method(method)
                .uri("/forrst")
                .header("x-tenant", "a");
            if let Some(content_type) = content_type {
                request = request.header("content-type", content_type);
            }
            let body = call("req_1", "k", &json!({})).to_string();
            let (_, reply) = send(&app, request.body(body.into()).unwrap()).await;
            let reply: Value = from_slice(reply.body()).unwrap();
            assert_eq!(
                data(&reply)["status"],
                expected,
                "{method} {content_type:?}"
            );
        }
        assert_eq!(shop.runs(), 1);
    }
}

/// I-6: of many at once one is executed, on many threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i_6_one_of_many_is_executed() {
    let shop = Shop::held();
    let app = shop.app();
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..32 {
        let app = app.clone();
        calls.spawn(
            async move { ask(&app, &call(&format!("req_{n}"), "k", &json!({"a": 1}))).await },
        );
    }
    for _ in 0..31 {
        let (status, reply) = calls.join_next().await.unwrap().unwrap();
        assert_eq!((status, code(&reply)), (409, "IDEMPOTENCY_PROCESSING"));
    }
    shop.gate.add_permits(1);
    let (status, reply) = calls.join_next().await.unwrap().unwrap();
    assert_eq!(
        (status, &data(&reply)["status"]),
        (200, &json!("processed"))
    );
    assert_eq!(shop.runs(), 1);
}

/// I-6: one that may wait gets the reply instead.
#[tokio::test(start_paused = true)]
async fn i_6_who_waits_gets_the_reply() {
    let shop = Shop::held();
    let second = std::time::Duration::from_secs(1);
    let app = shop.app_with(shop.builder(MemoryStore::new()).wait(10 * second));
    let asked = |id: &str| {
        let (app, request) = (app.clone(), call(id, "k", &json!({})));
        tokio::spawn(async move { ask(&app, &request).await.1 })
    };
    let first = asked("req_1");
    while shop.runs() == 0 {
        tokio::task::yield_now().await;
    }
    let second_one = asked("req_2");
    tokio::time::sleep(2 * second).await;
    shop.gate.add_permits(1);
    assert_eq!(data(&first.await.unwrap())["status"], "processed");
    let reply = second_one.await.unwrap();
    assert_eq!(
        (&data(&reply)["status"], &reply["id"]),
        (&json!("cached"), &json!("req_2"))
    );
    assert_eq!(shop.runs(), 1);
}

/// I-14: an orphan is executed again, and is then the original.
#[tokio::test(start_paused = true)]
async fn i_14_who_takes_over_is_the_original() {
    let shop = Shop::new();
    let app = shop.app();
    shop.replies(|_, _| panic!("on demand"));
    let (status, reply) = ask(&app, &call("req_1", "k", &json!({}))).await;
    assert_eq!((status, code(&reply)), (500, "INTERNAL_ERROR"));
    assert_eq!(reply["id"], "req_1");
    *shop.reply.lock().unwrap() = None;
    let (_, reply) = ask(&app, &call("req_2", "k", &json!({}))).await;
    assert_eq!(data(&reply)["original_request_id"], "req_1");
    tokio::time::advance(std::time::Duration::from_secs(31)).await;
    ask(&app, &call("req_3", "k", &json!({}))).await;
    let (_, reply) = ask(&app, &call("req_4", "k", &json!({}))).await;
    assert_eq!(data(&reply)["original_request_id"], "req_3");

    // Unless nobody may.
    let careful = tower_reprise::IdempotencyLayer::builder(MemoryStore::new())
        .with_dialect(shop.dialect())
        .scope(Scope::new(|_| Some("shop")))
        .crash_policy(CrashPolicy::Unknown);
    let app = shop.app_with(careful);
    shop.replies(|_, _| panic!("on demand"));
    ask(&app, &call("req_1", "k", &json!({}))).await;
    tokio::time::advance(std::time::Duration::from_secs(31)).await;
    let (status, reply) = ask(&app, &call("req_2", "k", &json!({}))).await;
    assert_eq!((status, code(&reply)), (409, "IDEMPOTENCY_OUTCOME_UNKNOWN"));
    let details = &reply["errors"][0]["details"];
    assert_eq!(
        *details,
        json!({"key": "k", "original_request_id": "req_1"})
    );
}

fn arguments() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-(1_i64 << 53)..1 << 53).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((any::<String>(), inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// The same value in other words: other order, other numerals, other escapes, other blanks.
fn reworded(value: &Value, seed: &mut u64, out: &mut String) {
    let mut below = |bound: usize| {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(*seed >> 33).unwrap() % bound
    };
    out.push_str(["", " ", "\n\t"][below(3)]);
    match value {
        Value::Number(number) => out.push_str(&match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => match below(4) {
                0 => format!("{whole}.000"),
                1 => format!("{whole}e0"),
                2 => format!("{whole}00E-2"),
                _ => whole.to_string(),
            },
            (None, Some(float)) => match below(2) {
                0 => format!("{float:e}"),
                _ => to_string(&float).unwrap(),
            },
            (None, None) => number.to_string(),
        }),
        Value::String(text) => reworded_text(text, below(2) == 0, out),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                reworded(item, seed, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            let first = below(members.len().max(1));
            members.rotate_left(first);
            if below(2) == 0 {
                members.reverse();
            }
            out.push('{');
            for (index, (name, value)) in members.into_iter().enumerate() {
                out.push_str(if index > 0 { " , " } else { "" });
                reworded_text(name, index % 2 == 0, out);
                out.push(':');
                reworded(value, seed, out);
            }
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
    out.push(' ');
}

fn reworded_text(text: &str, escaped: bool, out: &mut String) {
    match escaped {
        true => {
            let units = text.encode_utf16().map(|unit| format!("\\u{unit:04x}"));
            out.push_str(&format!("\"{}\"", units.collect::<String>()));
        }
        false => out.push_str(&to_string(text).unwrap()),
    }
}

fn with_arguments(arguments: &str) -> String {
    let envelope = call("req_1", "k", &json!("HERE"));
    envelope.to_string().replace("\"HERE\"", arguments)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// I-7: arguments in other words are the same arguments, and other arguments are not.
    #[test]
    fn i_7_arguments_in_other_words_are_no_conflict(
        first in arguments(),
        other in arguments(),
        mut seed in any::<u64>(),
    ) {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let shop = Shop::new();
            let app = shop.app();
            let (status, _) = send(&app, post(with_arguments(&first.to_string()))).await;
            assert_eq!(status, 200);
            let mut words = String::new();
            reworded(&first, &mut seed, &mut words);
            let (status, reply) = send(&app, post(with_arguments(&words))).await;
            let reply: Value = from_slice(reply.body()).unwrap();
            assert_eq!((status, &data(&reply)["status"]), (200, &json!("cached")), "{words}");

            let same = canonical(&first) == canonical(&other);
            let (status, _) = send(&app, post(with_arguments(&other.to_string()))).await;
            assert_eq!(status, if same { 200 } else { 422 });
            assert_eq!(shop.runs(), 1);
        });
    }
}
