//! The examples of the idempotency extension's specification, each made by a server.

use serde_json::{Value, from_slice, json};
use tower_reprise::forrst::arguments_hash;

use super::{DAY, Shop, ask};

fn example(name: &str) -> Value {
    from_slice(&crate::envelopes::vector(name)).unwrap()
}

/// I-8, I-11: the first request and its repeat get what the specification shows, to the letter.
#[tokio::test]
async fn i_8_i_11_processed_and_cached_as_the_examples_have_it() {
    let shop = Shop::new();
    let app = shop.app();
    let request = example("idempotency-01-request-with-idempotency.json");
    let (status, reply) = ask(&app, &request).await;
    assert_eq!(status, 200);
    assert_eq!(
        reply,
        example("idempotency-02-first-response-processed.json")
    );

    shop.pass(DAY / 2);
    let mut again = request.clone();
    again["id"] = "req_002".into();
    let (status, reply) = ask(&app, &again).await;
    assert_eq!(status, 200);
    assert_eq!(reply, example("idempotency-03-retry-response-cached.json"));
    assert_eq!(shop.runs(), 1);
}

/// I-7: other arguments, and the hash of the first ones, which the example only hints at.
#[tokio::test]
async fn i_7_a_conflict_as_the_example_has_it() {
    let shop = Shop::new();
    let app = shop.app();
    let request = example("idempotency-01-request-with-idempotency.json");
    ask(&app, &request).await;
    let mut other = request.clone();
    other["id"] = "req_003".into();
    other["call"]["arguments"]["amount"] = 101.into();
    let (status, reply) = ask(&app, &other).await;
    let mut expected = example("idempotency-04-conflict-error.json");
    let hash = &mut expected["errors"][0]["details"]["original_arguments_hash"];
    assert_eq!(*hash, "sha256:abc123...");
    *hash = arguments_hash(&request["call"]["arguments"]).into();
    assert_eq!((status, reply), (422, expected));
    assert_eq!(shop.runs(), 1);
}

/// I-6: the example has no extension; the table above it says that there is one.
#[tokio::test]
async fn i_6_processing_as_the_example_has_it() {
    let shop = Shop::held();
    let app = shop.app();
    let request = example("idempotency-01-request-with-idempotency.json");
    let first = tokio::spawn({
        let (app, request) = (app.clone(), request.clone());
        async move { ask(&app, &request).await }
    });
    while shop.runs() == 0 {
        tokio::task::yield_now().await;
    }
    let mut second = request.clone();
    second["id"] = "req_004".into();
    let (status, mut reply) = ask(&app, &second).await;
    let data = json!({
        "key": "charge_order456_v1",
        "status": "processing",
        "original_request_id": "req_001",
    });
    let extension = json!([{"urn": super::URN, "data": data}]);
    let told = reply.as_object_mut().unwrap().remove("extensions");
    assert_eq!(told, Some(extension));
    assert_eq!(reply, example("idempotency-05-processing-error.json"));
    assert_eq!(status, 409);

    shop.gate.add_permits(1);
    let (status, reply) = first.await.unwrap();
    assert_eq!(status, 200);
    assert_eq!(
        reply,
        example("idempotency-02-first-response-processed.json")
    );
    assert_eq!(shop.runs(), 1);
}

/// K-1: a call without an id has none in its reply, though the first one had.
#[tokio::test]
async fn k_1_a_call_without_an_id_gets_none() {
    let shop = Shop::new();
    let app = shop.app();
    let mut request = super::call("req_1", "k", &json!({}));
    ask(&app, &request).await;
    request.as_object_mut().unwrap().remove("id");
    let (_, reply) = ask(&app, &request).await;
    assert_eq!(super::data(&reply)["status"], "cached");
    assert_eq!(super::data(&reply)["original_request_id"], "req_1");
    assert_eq!(reply["id"], Value::Null);
}

/// K-1: "three retries of the same operation": each has its own id, and all have one key.
#[tokio::test]
async fn k_1_ids_are_of_attempts_and_keys_of_operations() {
    let shop = Shop::new();
    let app = shop.app();
    for (attempt, expected) in [(1, "processed"), (2, "cached"), (3, "cached")] {
        let id = format!("req_00{attempt}");
        let (_, reply) = ask(&app, &super::call(&id, "idem_abc", &json!({"n": 1}))).await;
        assert_eq!(reply["id"], id);
        assert_eq!(super::data(&reply)["status"], expected);
        assert_eq!(super::data(&reply)["original_request_id"], "req_001");
    }
    assert_eq!(shop.runs(), 1);
}

/// The extension as the retry extension's specification shows it, without a version or arguments.
#[tokio::test]
async fn i_8_the_key_of_the_retry_extensions_example() {
    let shop = Shop::new();
    let app = shop.app();
    let mut request = example("retry-06-with-idempotency.json");
    request["call"] = json!({"function": "orders.create"});
    for expected in ["processed", "cached"] {
        let (_, reply) = ask(&app, &request).await;
        assert_eq!(super::data(&reply)["key"], "order_123");
        assert_eq!(super::data(&reply)["status"], expected);
    }
}
