//! One idempotency key for all attempts of a call, and an id for each.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use proptest::prelude::*;
use serde_json::{Value, from_slice, json};
use tower::{ServiceBuilder, service_fn};
use tower_reprise::{
    Dependencies, IdempotencyKey, IdempotencyKeyLayer, Policy, RetryLayer,
    forrst::{EnvelopeKeyLayer, FreshId},
};

use crate::{
    envelopes::{any_value, unknown, with},
    support::call,
};

const URN: &str = "urn:forrst:ext:idempotency";

fn post(body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let body = body.into();
    Request::post("http://api.example/forrst")
        .header("content-type", "application/json")
        .header("content-length", body.len())
        .body(Full::new(body))
        .unwrap()
}

fn envelope() -> Value {
    json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": "req_001",
        "call": {"function": "f", "version": "1", "arguments": {"amount": 1.5}},
        "context": {"x": 1},
    })
}

/// The headers' key and the body of each attempt that a call makes, if all but the third fail.
async fn sent(request: Request<Full<Bytes>>) -> Vec<(Option<String>, Bytes)> {
    let deps = Dependencies::new(Policy::http().build().unwrap());
    let seen: Arc<Mutex<Vec<_>>> = Arc::default();
    let server = {
        let seen = Arc::clone(&seen);
        service_fn(move |request: Request<Full<Bytes>>| {
            let seen = Arc::clone(&seen);
            async move {
                let headers = request.headers().clone();
                let text = |name| headers.get(name).map(|v| v.to_str().unwrap().to_owned());
                let body = request.into_body().collect().await.unwrap().to_bytes();
                assert_eq!(text("content-length"), Some(body.len().to_string()));
                let mut seen = seen.lock().unwrap();
                seen.push((text("idempotency-key"), body));
                let status = if seen.len() < 3 { 503 } else { 200 };
                let reply = Response::builder()
                    .status(status)
                    .body(Full::<Bytes>::default());
                Ok::<_, Infallible>(reply.unwrap())
            }
        })
    };
    let mut client = ServiceBuilder::new()
        .layer(EnvelopeKeyLayer::new())
        .layer(IdempotencyKeyLayer::new())
        .layer(RetryLayer::new(deps).with_prepare(FreshId))
        .service(server);
    call(&mut client, request).await.unwrap();
    std::mem::take(&mut *seen.lock().unwrap())
}

fn keys_in(envelope: &Value) -> Vec<&str> {
    let extensions = envelope["extensions"].as_array().into_iter().flatten();
    extensions
        .filter(|extension| extension["urn"] == URN)
        .map(|extension| extension["options"]["key"].as_str().unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn k_1_one_key_for_all_attempts_and_an_id_for_each() {
    let attempts = sent(post(envelope().to_string())).await;
    let mut ids = Vec::new();
    for (header, body) in &attempts {
        let mut found: Value = from_slice(body).unwrap();
        assert_eq!(keys_in(&found), [header.as_deref().unwrap()]);
        assert_eq!(header, &attempts[0].0);
        ids.push(found["id"].as_str().unwrap().to_owned());
        // All else is as it was.
        found["id"] = json!("req_001");
        found.as_object_mut().unwrap().remove("extensions");
        assert_eq!(found, envelope());
    }
    assert_eq!(ids.len(), 3);
    assert_eq!(ids[0], "req_001", "the first is the caller's");
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    assert_eq!(attempts[0].0.as_ref().unwrap().len(), 36);
}

#[tokio::test(start_paused = true)]
async fn k_2_a_key_of_the_callers_is_kept_wherever_it_is() {
    // In the envelope, in either spelling.
    for urn in [URN, "urn:cline:forrst:ext:idempotency"] {
        let mut keyed = envelope();
        keyed["extensions"] = json!([{"urn": urn, "options": {"key": "order_7"}}]);
        let attempts = sent(post(keyed.to_string())).await;
        assert_eq!(attempts.len(), 3);
        for (header, body) in attempts {
            assert_eq!(header.as_deref(), Some("order_7"));
            let mut found: Value = from_slice(&body).unwrap();
            found["id"] = json!("req_001");
            assert_eq!(found, keyed);
        }
    }
    // In the header, or in the request's extensions.
    let mut in_header = post(envelope().to_string());
    let key = "\"order_8\"".parse().unwrap();
    in_header.headers_mut().insert("idempotency-key", key);
    let mut in_extension = post(envelope().to_string());
    let key = IdempotencyKey::new("order_8").unwrap();
    in_extension.extensions_mut().insert(key);
    for request in [in_header, in_extension] {
        for (_, body) in sent(request).await {
            assert_eq!(keys_in(&from_slice(&body).unwrap()), ["order_8"]);
        }
    }
    // One in each is the caller's affair.
    let mut keyed = envelope();
    keyed["extensions"] = json!([{"urn": URN, "options": {"key": "a"}}]);
    let mut request = post(keyed.to_string());
    let headers = request.headers_mut();
    headers.insert("idempotency-key", "b".parse().unwrap());
    for (header, body) in sent(request).await {
        assert_eq!(header.as_deref(), Some("b"));
        assert_eq!(keys_in(&from_slice(&body).unwrap()), ["a"]);
    }
}

/// A key that no header can hold stays in the envelope.
#[tokio::test(start_paused = true)]
async fn k_2_a_key_that_is_no_header_is_the_envelopes_alone() {
    let mut keyed = envelope();
    keyed["extensions"] = json!([{"urn": URN, "options": {"key": "bestellung für 7"}}]);
    for (header, body) in sent(post(keyed.to_string())).await {
        assert_eq!(header.unwrap().len(), 36);
        assert_eq!(keys_in(&from_slice(&body).unwrap()), ["bestellung für 7"]);
    }
}

#[tokio::test(start_paused = true)]
async fn s_3_what_is_no_envelope_is_sent_as_it_is() {
    let long = format!(
        r#"{{"call":{{"function":"f","arguments":"{}"}}}}"#,
        "x".repeat(70_000)
    );
    let digested = {
        let mut request = post(envelope().to_string());
        let headers = request.headers_mut();
        headers.insert("content-digest", "sha-256=:aaaa:".parse().unwrap());
        request
    };
    let html = {
        let mut request = post(envelope().to_string());
        let headers = request.headers_mut();
        headers.insert("content-type", "text/html".parse().unwrap());
        request
    };
    for request in [
        post("{}"),
        post("not json"),
        post(r#"{"call":{"function":"f"},"extensions":{}}"#),
        post(long),
        digested,
        html,
    ] {
        let before = request.body().clone().collect().await.unwrap().to_bytes();
        let attempts = sent(request).await;
        assert_eq!(attempts.len(), 3);
        for (header, body) in attempts {
            assert!(header.is_some());
            assert_eq!(body, before);
        }
    }
}

fn attempts_of(body: Vec<u8>) -> Vec<(Option<String>, Bytes)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.unwrap().block_on(sent(post(body)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// C-6: what nobody knows is in every attempt, and so is the key.
    #[test]
    fn c_6_unknown_members_are_in_every_attempt(more in unknown(), arguments in any_value()) {
        let mut envelope = with(envelope(), &more);
        envelope["call"] = with(envelope["call"].clone(), &more);
        envelope["call"]["arguments"] = arguments;
        let other = with(json!({"urn": "urn:acme:audit"}), &more);
        envelope["extensions"] = json!([other]);
        for (header, body) in attempts_of(envelope.to_string().into_bytes()) {
            let mut found: Value = from_slice(&body).unwrap();
            let key = found["extensions"].as_array_mut().unwrap().pop().unwrap();
            assert_eq!(key, json!({"urn": URN, "options": {"key": header}}));
            found["id"] = envelope["id"].clone();
            assert_eq!(found, envelope);
        }
    }

    /// S-3: no body makes a client panic, and what is no envelope is sent as it is.
    #[test]
    fn s_3_any_bytes_are_sent(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let attempts = attempts_of(body.clone());
        assert_eq!(attempts.len(), 3);
        assert!(attempts.iter().all(|(_, sent)| *sent == body));
    }
}
