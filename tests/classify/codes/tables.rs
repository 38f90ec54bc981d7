//! The tables of codes: retried, once, with a fresh id, never.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::Full;
use tower::{ServiceBuilder, service_fn};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, PeekLayer, Policy,
    call::{ErrorRecord, Health, StopReason},
    classify::Codes,
};

use super::{attempts, forrst, get, json, policy, run};
use crate::support::{call, codes::FINAL};

#[tokio::test(start_paused = true)]
async fn c_6_forrst_codes_are_retried_as_often_as_their_table_says() {
    for (code, times) in [
        ("RATE_LIMITED", 3),
        ("UNAVAILABLE", 5),
        ("DEADLINE_EXCEEDED", 1),
        ("INTERNAL_ERROR", 3),
        ("DEPENDENCY_ERROR", 3),
        ("IDEMPOTENCY_PROCESSING", 3),
        ("SERVER_MAINTENANCE", 1),
        ("FUNCTION_MAINTENANCE", 1),
        ("FUNCTION_DISABLED", 2),
    ] {
        // Whatever the status is, a successful one included.
        for status in [200, 400, 409, 500, 503] {
            let made = attempts(Codes::forrst(), || json(status, forrst(code))).await;
            assert_eq!(made, 1 + times, "{code} with {status}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c_6_forrst_codes_that_another_call_does_not_mend_are_final() {
    for code in FINAL {
        for status in [200, 400, 429, 503] {
            let called = run(policy(Codes::forrst()), get(), |_| {
                json(status, forrst(code))
            });
            let outcome = called.await.outcome();
            assert_eq!(
                outcome,
                (1, Some(StopReason::NotRetryable)),
                "{code}, {status}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c_6_the_banks_table() {
    let bank = |status, code| async move {
        let body = format!(r#"{{"code":"{code}","details":[]}}"#);
        attempts(Codes::bank(), || json(status, body.clone())).await
    };
    for code in [
        "RESOURCE_EXHAUSTED",
        "PROVIDER_UNAVAILABLE",
        "DATABASE_UNAVAILABLE",
        "UPSTREAM_UNAVAILABLE",
    ] {
        assert_eq!(bank(400, code).await, 6, "{code}");
    }
    for code in [
        "INVALID_ARGUMENT",
        "WALLET_NOT_FOUND",
        "PAYMENT_ORDER_NOT_FOUND",
        "WALLET_ALREADY_EXISTS",
        "RBAC_DENY",
        "IDEMPOTENCY_KEY_IN_USE_WITH_DIFFERENT_PARAMS",
        "SIGNATURE_INVALID",
        "TIMESTAMP_SKEW_EXCEEDED",
        "INTERNAL",
    ] {
        assert_eq!(bank(503, code).await, 1, "{code}");
    }
    let preset = Policy::bank().build().unwrap();
    assert_eq!(
        preset.rules().codes,
        Codes::bank(),
        "the bank's policy has it"
    );
}

#[tokio::test(start_paused = true)]
async fn c_6_an_unknown_code_leaves_it_to_the_status() {
    for codes in [Codes::forrst, Codes::bank] {
        for (status, made) in [(200, 1), (400, 1), (409, 1), (429, 6), (503, 6)] {
            let found = attempts(codes(), || json(status, forrst("SOMETHING_ELSE"))).await;
            assert_eq!(found, made, "{status}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c_6_a_table_of_ones_own() {
    let codes = || {
        Codes::standard()
            .retry("BUSY")
            .at_most("LOCKED", 2)
            .never("FRAUD")
            .retry("20429")
    };
    let with = |status, body: &'static str| attempts(codes(), move || json(status, body));
    assert_eq!(with(400, r#"{"code":"BUSY"}"#).await, 6);
    assert_eq!(with(400, r#"{"code":"LOCKED"}"#).await, 3);
    assert_eq!(with(503, r#"{"code":"FRAUD"}"#).await, 1);
    assert_eq!(with(400, r#"{"code":20429}"#).await, 6, "a number");
    // The last word on a code counts.
    let changed = attempts(codes().never("BUSY"), || json(503, r#"{"code":"BUSY"}"#));
    assert_eq!(changed.await, 1);
}

// ---- C-7

#[tokio::test(start_paused = true)]
async fn c_7_what_an_idempotency_store_answered_is_final() {
    for (value, made) in [("true", 1), ("TRUE", 1), ("false", 4), ("", 4)] {
        for body in ["{}", r#"{"code":"UNAVAILABLE"}"#] {
            let policy = Policy::http().codes(Codes::forrst());
            let called = run(policy, get(), |_| {
                let mut reply = json(503, body);
                let value = HeaderValue::from_static(value);
                reply.headers_mut().insert("idempotent-replayed", value);
                reply
            });
            assert_eq!(called.await.outcome().0, made, "{value} {body}");
        }
    }
}

fn cached(urn: &str, status: &str) -> String {
    format!(
        r#"{{"errors":[{{"code":"UNAVAILABLE"}}],"extensions":[{{"urn":"urn:forrst:ext:retry","data":{{"allowed":true}}}},{{"urn":"{urn}","data":{{"key":"k","status":"{status}"}}}}]}}"#
    )
}

#[tokio::test(start_paused = true)]
async fn c_7_what_forrst_says_is_cached_is_final() {
    let ours = "urn:forrst:ext:idempotency";
    for (urn, status, made) in [
        (ours, "cached", 1),
        ("urn:cline:forrst:ext:idempotency", "cached", 1),
        (ours, "processed", 6),
        (ours, "processing", 6),
        ("urn:forrst:ext:other", "cached", 6),
    ] {
        for http in [200, 503] {
            let found = attempts(Codes::forrst(), || json(http, cached(urn, status))).await;
            assert_eq!(found, made, "{urn} {status} {http}");
        }
    }
    let result = r#"{"result":{"ok":1},"extensions":[{"urn":"urn:forrst:ext:idempotency","data":{"status":"cached"}}]}"#;
    let called = run(policy(Codes::forrst()), get(), |_| json(200, result)).await;
    assert_eq!(called.outcome(), (1, None), "a success is one");
}

// ---- what a code says of the dependency

#[tokio::test(start_paused = true)]
async fn c_8_a_code_says_how_its_dependency_is() {
    for (code, status, health) in [
        ("UNAVAILABLE", 200, Health::Failure),
        ("NOT_FOUND", 500, Health::Success),
        ("RATE_LIMITED", 503, Health::Neutral),
        ("SOMETHING_ELSE", 500, Health::Failure),
        ("SOMETHING_ELSE", 200, Health::Success),
    ] {
        let policy = Policy::http()
            .consecutive_failures(5)
            .codes(Codes::forrst());
        let deps = Dependencies::new(policy.build().unwrap());
        let mut client = ServiceBuilder::new()
            .layer(CircuitBreakerLayer::new(deps.clone()))
            .layer(PeekLayer::new(deps.clone()))
            .service(service_fn(move |_: Request<Full<Bytes>>| async move {
                Ok::<_, Infallible>(json(status, forrst(code)))
            }));
        let mut refused = false;
        for _ in 0..30 {
            refused |= call(&mut client, get()).await.is_err();
        }
        assert_eq!(refused, health == Health::Failure, "{code} {status}");
    }
}

/// C-6: the id of an error that the bank recorded is there for an escalation.
#[tokio::test(start_paused = true)]
async fn c_6_the_id_of_a_recorded_error_is_beside_the_outcome() {
    for (details, id) in [
        (
            r#"[{"reason":"ERROR_RECORDED","metadata":{"id":"err_7"}}]"#,
            Some("err_7"),
        ),
        (
            r#"[{"type":"ERROR_RECORDED","error_id":"err_7"}]"#,
            Some("err_7"),
        ),
        (r#"{"ERROR_RECORDED":"err_7"}"#, Some("err_7")),
        (r#"{"ERROR_RECORDED":{"errorId":"err_7"}}"#, Some("err_7")),
        (r#""see ERROR_RECORDED id=err_7, please""#, Some("err_7")),
        (r#"[{"reason":"ERROR_RECORDED"}]"#, None),
        (r#"{"ERROR_RECORDED":"two words"}"#, None),
        (r#"[{"reason":"OTHER","id":"err_7"}]"#, None),
    ] {
        let body = format!(r#"{{"code":"INTERNAL","message":"no","details":{details}}}"#);
        let called = run(policy(Codes::bank()), get(), |_| json(500, body.clone())).await;
        assert_eq!(called.outcome(), (1, Some(StopReason::NotRetryable)));
        let response = called.result.unwrap();
        let found = ErrorRecord::of(&response).map(ErrorRecord::id);
        assert_eq!(found, id, "{details}");
    }
}
