//! The replies that are kept, their retention, and their replay.

use std::time::Duration;

use axum::body::Body;
use http::Response;
use serde_json::{Value, from_slice, json};
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    forrst::{Forrst, RetryGuidanceLayer},
    server::idempotency::{Execution, HandlerOutcome, ServerErrors},
    store::{IdempotencyStore, MemoryStore},
};

use super::{DAY, Shop, ask, call, code, data, post, replied, send};

const HOUR: Duration = Duration::from_secs(60 * 60);

fn failed(status: u16, codes: &[&str], id: &Value) -> Response<Body> {
    let errors: Vec<_> = codes.iter().map(|code| json!({"code": code})).collect();
    replied(status, &json!({"id": id, "result": null, "errors": errors}))
}

/// Returns the number of executions of a request that fails like this and is sent twice.
async fn executions(errors: ServerErrors, status: u16, codes: &'static [&'static str]) -> usize {
    let shop = Shop::new();
    let app = shop.app_with(shop.builder(MemoryStore::new()).server_errors(errors));
    shop.replies(move |_, id| failed(status, codes, &id));
    for id in ["req_1", "req_2"] {
        let (told, reply) = ask(&app, &call(id, "k", &json!({}))).await;
        assert_eq!((told, code(&reply)), (status, codes[0]));
        assert_eq!(reply["id"], id);
        let expected = match (id, shop.runs()) {
            ("req_1", _) => data(&reply)["status"] == "processed" || data(&reply).is_null(),
            (_, 1) => data(&reply)["status"] == "cached",
            _ => data(&reply).is_null(),
        };
        assert!(expected, "{codes:?} {id}: {reply}");
    }
    shop.runs()
}

/// I-11, I-12: what was executed is kept, and what was not is executed again, by status or by code.
#[tokio::test]
async fn i_11_i_12_failures_are_kept_if_something_was_executed() {
    let keep = ServerErrors::Keep;
    for (status, codes, runs) in [
        (200, &["INTERNAL_ERROR"][..], 1),
        (500, &["INTERNAL_ERROR"], 1),
        (500, &["DEPENDENCY_ERROR"], 1),
        (504, &["DEADLINE_EXCEEDED"], 1),
        (400, &["INVALID_ARGUMENTS"], 1),
        (404, &["NOT_FOUND"], 1),
        (403, &["FORBIDDEN"], 1),
        (409, &["CANCELLED"], 1),
        (422, &["VALIDATION_ERROR"], 1),
        (400, &["OUT_OF_STOCK"], 1),
        (200, &["UNAVAILABLE", "INTERNAL_ERROR"], 1),
        (200, &["UNAVAILABLE"], 2),
        (503, &["UNAVAILABLE"], 2),
        (503, &["INTERNAL_ERROR"], 2),
        (200, &["RATE_LIMITED"], 2),
        (429, &["RATE_LIMITED"], 2),
        (200, &["UNAUTHORIZED"], 2),
        (401, &["UNAUTHORIZED"], 2),
        (200, &["SERVER_MAINTENANCE"], 2),
        (200, &["FUNCTION_MAINTENANCE"], 2),
        (200, &["FUNCTION_DISABLED"], 2),
        (409, &["IDEMPOTENCY_PROCESSING"], 2),
        (200, &["UNAVAILABLE", "RATE_LIMITED"], 2),
    ] {
        let executed = executions(keep, status, codes).await;
        assert_eq!(executed, runs, "{status} {codes:?}");
    }
}

/// I-13: the policy for failures, and the handler's own word.
#[tokio::test]
async fn i_13_who_knows_better_decides() {
    for (errors, status, codes, runs) in [
        (ServerErrors::KeepAll, 503, &["UNAVAILABLE"][..], 1),
        (ServerErrors::KeepAll, 200, &["SERVER_MAINTENANCE"], 1),
        (ServerErrors::KeepAll, 200, &["RATE_LIMITED"], 2),
        (ServerErrors::ReleaseAll, 200, &["INTERNAL_ERROR"], 2),
        (ServerErrors::ReleaseAll, 200, &["DEPENDENCY_ERROR"], 2),
        (ServerErrors::ReleaseAll, 200, &["DEADLINE_EXCEEDED"], 2),
        (ServerErrors::ReleaseAll, 200, &["NOT_FOUND"], 1),
    ] {
        let executed = executions(errors, status, codes).await;
        assert_eq!(executed, runs, "{errors:?} {status} {codes:?}");
    }
    for (outcome, code, runs) in [
        (HandlerOutcome::Committed, "UNAVAILABLE", 1),
        (HandlerOutcome::NoEffect, "NOT_FOUND", 2),
    ] {
        let shop = Shop::new();
        let app = shop.app();
        shop.replies(move |_, id| {
            let mut reply = failed(200, &[code], &id);
            reply.extensions_mut().insert(outcome);
            reply
        });
        for _ in 0..2 {
            ask(&app, &call("req_1", "k", &json!({}))).await;
        }
        assert_eq!(shop.runs(), runs, "{outcome:?}");
    }
}

/// I-11, R-6: a ttl is at least 24 hours and at most what the server allows; without one, it is
/// the server's.
#[tokio::test(start_paused = true)]
async fn i_11_a_requested_ttl_is_kept_within_bounds() {
    let month = 30 * DAY;
    for (ttl, retention, dialect, expected) in [
        (Value::Null, DAY, Forrst::new(), DAY),
        (Value::Null, 2 * month, Forrst::new(), 2 * month),
        (
            json!({"value": 1, "unit": "second"}),
            DAY,
            Forrst::new(),
            DAY,
        ),
        (
            json!({"value": 0, "unit": "day"}),
            3 * DAY,
            Forrst::new(),
            DAY,
        ),
        (
            json!({"value": 36, "unit": "hour"}),
            DAY,
            Forrst::new(),
            36 * HOUR,
        ),
        (
            json!({"value": 30, "unit": "day"}),
            DAY,
            Forrst::new(),
            7 * DAY,
        ),
        (
            json!({"value": 9e99, "unit": "day"}),
            DAY,
            Forrst::new().longest_ttl(month),
            month,
        ),
        (
            json!({"value": 30, "unit": "day"}),
            20 * DAY,
            Forrst::new(),
            20 * DAY,
        ),
    ] {
        let shop = Shop::new();
        let started = *shop.now.lock().unwrap();
        let layer = tower_reprise::IdempotencyLayer::builder(MemoryStore::new())
            .with_dialect(dialect.clock(move || started))
            .scope(Scope::new(|_| Some("shop")))
            .crash_policy(tower_reprise::store::CrashPolicy::Reexecute)
            .retention(retention);
        let app = shop.app_with(layer);
        let mut request = call("req_1", "k", &json!({}));
        request["extensions"][0]["options"]["ttl"] = ttl.clone();
        let (_, reply) = ask(&app, &request).await;
        let expires = data(&reply)["expires_at"].as_str().unwrap();
        let expires = humantime(expires).duration_since(started).unwrap();
        assert_eq!(expires, expected, "{ttl}");

        let minute = Duration::from_secs(60);
        tokio::time::advance(expected - minute).await;
        assert_eq!(
            data(&ask(&app, &request).await.1)["status"],
            "cached",
            "{ttl}"
        );
        tokio::time::advance(2 * minute).await;
        assert_eq!(
            data(&ask(&app, &request).await.1)["status"],
            "processed",
            "{ttl}"
        );
    }
    for days in [0, 366] {
        let dialect = Forrst::new().longest_ttl(days * DAY);
        let layer = tower_reprise::IdempotencyLayer::builder(MemoryStore::new())
            .with_dialect(dialect)
            .scope(Scope::new(|_| Some("shop")))
            .crash_policy(tower_reprise::store::CrashPolicy::Reexecute);
        let error = layer.build().unwrap_err().to_string();
        assert!(error.starts_with("forrst.longest_ttl is "), "{error}");
        assert!(error.ends_with("allowed: 24h (R-6) to 365 days"), "{error}");
    }
}

/// The time that a text of a known shape means.
fn humantime(text: &str) -> std::time::SystemTime {
    let number = |range: std::ops::Range<usize>| text[range].parse::<i64>().unwrap();
    assert_eq!((text.len(), &text[10..11], &text[19..]), (20, "T", "Z"));
    // Days from 1970, by the rule that a year begins with March.
    let (year, month) = match number(5..7) {
        month @ 1..3 => (number(0..4) - 1, month + 9),
        month => (number(0..4), month - 3),
    };
    let days =
        365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + number(8..10)
            - 1
            - 719_468;
    let seconds = ((days * 24 + number(11..13)) * 60 + number(14..16)) * 60 + number(17..19);
    std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.unsigned_abs())
}

/// I-8: what other extensions and unknown members say is the same in every reply, byte for byte.
#[tokio::test]
async fn i_8_all_else_in_a_reply_survives() {
    let shop = Shop::new();
    let app = shop.app();
    let text = |id: &Value| {
        format!(
            r#"{{"x":1.50,"id":{id},"result":{{"n":123456789012345678901234567890}},
            "meta":{{"a": 1}},"extensions":[{{"urn":"urn:forrst:ext:rate-limit","data":{{"limit":1e2}}}},
            {{"urn":"urn:cline:forrst:ext:idempotency","data":{{"status":"mine"}}}},{{"urn":"urn:x","y":[]}}]}}"#
        )
    };
    shop.replies(move |_, id| {
        let reply = Response::builder().header("content-type", "application/json");
        let reply = reply.header("x-shop", "1").header("set-cookie", "a=b");
        reply.body(text(&id).into()).unwrap()
    });
    for (id, status) in [("req_1", "processed"), ("req_2", "cached")] {
        let (_, reply) = send(&app, post(call(id, "k", &json!({})).to_string())).await;
        let text = str::from_utf8(reply.body()).unwrap();
        for part in [
            r#""x":1.50"#,
            r#"{"n":123456789012345678901234567890}"#,
            r#"{"a": 1}"#,
            r#"{"urn":"urn:forrst:ext:rate-limit","data":{"limit":1e2}}"#,
            r#"{"urn":"urn:x","y":[]}"#,
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let envelope: Value = from_slice(reply.body()).unwrap();
        assert_eq!(
            (&envelope["id"], &data(&envelope)["status"]),
            (&json!(id), &json!(status))
        );
        assert_eq!(envelope["extensions"].as_array().unwrap().len(), 3);
        assert_eq!(reply.headers()["x-shop"], "1");
        let cached = status == "cached";
        assert_eq!(reply.headers().contains_key("idempotent-replayed"), cached);
        assert_eq!(reply.headers().contains_key("set-cookie"), !cached);
    }
}

/// I-8: a reply that is not an envelope, or that can't be changed, is replayed as it is.
#[tokio::test]
async fn i_8_what_is_no_envelope_stays_as_it_is() {
    for (name, value, text) in [
        ("content-type", "text/plain", "paid"),
        ("content-type", "application/json", "[1, 2]"),
        ("content-type", "application/json", r#"{"a": 1.0}"#),
        ("content-type", "application/json", r#"{"result": 1"#),
        ("content-digest", "sha-256=:x:", r#"{"result": 1}"#),
        ("content-encoding", "gzip", r#"{"result": 1}"#),
    ] {
        let shop = Shop::new();
        let app = shop.app();
        shop.replies(move |_, _| {
            let reply = Response::builder().header("content-type", "application/json");
            let mut reply = reply.body(Body::from(text)).unwrap();
            reply.headers_mut().insert(name, value.parse().unwrap());
            reply
        });
        for id in ["req_1", "req_2"] {
            let (status, reply) = send(&app, post(call(id, "k", &json!({})).to_string())).await;
            assert_eq!((status, &reply.body()[..]), (200, text.as_bytes()));
        }
        assert_eq!(shop.runs(), 1);
    }
}

/// I-8: a handler that stores its reply itself, with its effect, leaves the rest to the layer.
#[tokio::test]
async fn i_8_a_reply_that_its_handler_stored_is_dressed_as_well() {
    let shop = Shop::new();
    let store = MemoryStore::new();
    let app = shop.app_with(shop.builder(store.clone()));
    shop.replies(move |head, id| {
        let execution: &Execution = head.extensions().get().unwrap();
        assert_eq!(execution.retention(), DAY);
        let envelope = json!({"id": id, "result": 7}).to_string();
        let reply = Response::builder().header("content-type", "application/json");
        let reply = reply.body(envelope).unwrap();
        let stored = execution.stored(&reply).unwrap();
        let (key, token) = (execution.key(), execution.token());
        let stored = store.complete(key, token, stored, execution.retention());
        let mut stored = tokio_test::task::spawn(stored);
        assert!(stored.poll().is_ready());
        reply.map(Body::from)
    });
    ask(&app, &call("req_1", "k", &json!({}))).await;
    let (_, reply) = ask(&app, &call("req_2", "k", &json!({}))).await;
    let told = json!({"key": "k", "status": "cached", "original_request_id": "req_1"});
    assert_eq!(
        (&reply["id"], &reply["result"]),
        (&json!("req_2"), &json!(7))
    );
    assert_eq!(*data(&reply), told);
    assert_eq!(shop.runs(), 1);
}

/// I-18: a reply too large to keep goes to the first caller, and is not made again.
#[tokio::test]
async fn i_18_a_reply_too_large_to_keep() {
    let shop = Shop::new();
    let app = shop.app_with(shop.builder(MemoryStore::new()).response_limit(20));
    assert_eq!(ask(&app, &call("req_1", "k", &json!({}))).await.0, 200);
    let (status, reply) = ask(&app, &call("req_2", "k", &json!({}))).await;
    assert_eq!(
        (status, code(&reply)),
        (409, "IDEMPOTENCY_REPLY_NOT_RETAINED")
    );
    let details = &reply["errors"][0]["details"];
    assert_eq!(
        *details,
        json!({"key": "k", "original_request_id": "req_1"})
    );
    assert_eq!(shop.runs(), 1);
}

/// RA-6, C-7: a failure that is kept does not invite a retry, which would get it again.
#[tokio::test(start_paused = true)]
async fn ra_6_c_7_what_is_kept_is_not_to_be_asked_for_again() {
    for (code, allowed) in [
        ("INTERNAL_ERROR", false),
        ("DEADLINE_EXCEEDED", false),
        ("UNAVAILABLE", true),
        ("RATE_LIMITED", true),
    ] {
        let shop = Shop::new();
        let app = shop.app().layer(RetryGuidanceLayer::new());
        shop.replies(move |_, id| {
            let errors = json!([{ "code": code }]);
            let protocol = json!({"name": "forrst", "version": "0.1.0"});
            replied(
                500,
                &json!({ "protocol": protocol, "id": id, "result": null, "errors": errors }),
            )
        });
        for runs in 1..=2 {
            let (_, reply) = ask(&app, &call("req_1", "key", &json!({}))).await;
            let extensions = reply["extensions"].as_array().unwrap();
            let retry = extensions
                .iter()
                .find(|e| e["urn"] == "urn:forrst:ext:retry");
            assert_eq!(retry.unwrap()["data"]["allowed"], allowed, "{code}");
            assert_eq!(shop.runs(), if allowed { runs } else { 1 }, "{code}");
        }
        // A call without a key is executed each time.
        let mut keyless = call("req_2", "key", &json!({}));
        keyless["extensions"] = json!([]);
        let (_, reply) = ask(&app, &keyless).await;
        assert_eq!(reply["extensions"][0]["data"]["allowed"], true, "{code}");
    }
}
