//! The outcomes of replayed calls, and their notifications.

use tower_reprise::{
    delivery::dead_letter::DeadLetters,
    forrst::{Response, Retry, RetryGuidanceLayer},
};

use super::*;

const HOOK: &str = "https://shop.example/hook";

fn with_callback(id: &str, key: &str, more: &Value) -> Value {
    let mut options = json!({ "callback": { "url": HOOK } });
    let members = options.as_object_mut().unwrap();
    members.extend(more.as_object().unwrap().clone());
    asking(id, Some(key), options)
}

#[tokio::test(start_paused = true)]
async fn j_11_an_envelope_with_errors_is_a_failure_whatever_its_status() {
    for (code, status, calls, attempts) in [
        ("INVALID_ARGUMENTS", 200, 1, 1),
        ("INVALID_ARGUMENTS", 400, 1, 1),
        ("NEVER_HEARD_OF", 200, 1, 1),
        ("RATE_LIMITED", 429, 3, 3),
        ("FUNCTION_DISABLED", 200, 3, 3),
        // Each attempt is an execution, although the first may have had an effect.
        ("INTERNAL_ERROR", 500, 3, 3),
        ("DEPENDENCY_ERROR", 200, 3, 3),
    ] {
        let shop = Shop::closed();
        (0..3).for_each(|_| shop.handler.fails(status, code));
        let id = shop.queue(&order("1", "1")).await;
        let worker = shop.work();
        shop.replay.maintenance().off();
        assert_eq!(shop.ended(&id).await, Status::Failed, "{code}");
        assert_eq!(shop.handler.seen().len(), calls, "{code}");
        let (_, reply) = shop
            .function("ada", "status", json!({ "replay_id": id }))
            .await;
        assert_eq!(reply["result"]["errors"][0]["code"], code);
        assert_eq!(reply["result"]["attempts"], attempts, "{code}");
        drop(worker);
    }
}

#[tokio::test(start_paused = true)]
async fn j_4_what_another_path_does_is_not_done_again() {
    let shop = Shop::closed();
    let id = shop.queue(&order("1", "1")).await;
    // Its caller did not wait, and calls a server that is not in maintenance.
    shop.handler.takes(10 * SECOND, 200, json!({ "result": 7 }));
    let direct = of("ada").body(Body::from(order("2", "1").to_string()));
    let direct = tokio::spawn(shop.inner.clone().oneshot(direct.unwrap()));
    tokio::time::sleep(SECOND).await;
    let worker = shop.work();
    shop.replay.maintenance().off();
    tokio::time::sleep(5 * SECOND).await;
    let status = shop.entry(&id).await.status;
    assert!(!status.is_over(), "it is waited for");
    assert_eq!(shop.ended(&id).await, Status::Completed);
    assert_eq!(shop.entry(&id).await.attempts, 1, "the others were none");
    let (_, reply) = shop
        .function("ada", "status", json!({ "replay_id": id }))
        .await;
    assert_eq!(reply["result"]["result"], 7);
    assert_eq!(direct.await.unwrap().unwrap().status(), 200);
    assert_eq!(shop.handler.seen().len(), 1);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn j_4_a_call_without_a_key_gets_one() {
    let shop = Shop::closed();
    let id = shop.queue(&asking("1", None, json!({}))).await;
    (0..2).for_each(|_| shop.handler.fails(429, "RATE_LIMITED"));
    let worker = shop.work();
    shop.replay.maintenance().off();
    assert_eq!(shop.ended(&id).await, Status::Completed);
    let seen = shop.handler.seen();
    assert_eq!((seen.len(), &seen[0]), (3, &seen[2]), "the same each time");
    let call: Value = from_slice(&seen[0]).unwrap();
    let key = call["extensions"][1]["options"]["key"].as_str().unwrap();
    assert_eq!(format!("rpl_{key}"), id);
    drop(worker);
}

/// Under a key of its own, whether or not it came with one; all else stays as it was.
#[tokio::test(start_paused = true)]
async fn q_3_a_redriven_call_is_executed_once() {
    for key in [Some("1"), None] {
        let shop = Shop::closed();
        let id = shop.queue(&asking("1", key, json!({}))).await;
        let entry = shop.entry(&id).await.id;
        (0..2).for_each(|_| shop.handler.fails(400, "INVALID_ARGUMENTS"));
        let worker = shop.work();
        shop.replay.maintenance().off();
        let letters = DeadLetters::new(shop.store.clone());
        for expected in [Status::Failed, Status::Failed, Status::Completed] {
            letters.redrive(entry).await.unwrap();
            assert_eq!(shop.ended(&id).await, expected);
        }
        let calls: Vec<Value> = shop
            .handler
            .seen()
            .iter()
            .map(|call| from_slice(call).unwrap())
            .collect();
        let first = key.map_or(entry.to_string(), ToOwned::to_owned);
        let keys = [first, format!("{entry}-1"), format!("{entry}-2")];
        assert_eq!(calls.len(), keys.len());
        for (call, key) in calls.iter().zip(keys) {
            let options = json!({ "key": key });
            let extension = json!({ "urn": "urn:forrst:ext:idempotency", "options": options });
            let extensions = call["extensions"].as_array().unwrap();
            assert_eq!(extensions.len(), 2);
            assert_eq!(extensions[1], extension);
            assert_eq!(call["call"], calls[0]["call"]);
        }
        drop(worker);
    }
}

#[tokio::test(start_paused = true)]
async fn j_3_who_asks_again_gets_what_the_replay_got() {
    let shop = Shop::closed();
    let id = shop.queue(&order("req_1", "1")).await;
    let worker = shop.work();
    shop.replay.maintenance().off();
    assert_eq!(shop.ended(&id).await, Status::Completed);
    shop.replay.maintenance().on(None);
    let (status, reply) = shop.call(&order("req_2", "1")).await;
    assert_eq!((status, &reply["id"]), (200, &json!("req_2")));
    assert_eq!(reply["result"]["order_id"], "ord_xyz");
    let data = data_of(&reply);
    assert_eq!(
        (&data["status"], &data["replay_id"]),
        (&json!("completed"), &json!(id))
    );
    assert_eq!(data["attempts"], 1);
    // 003: the result is not of this request.
    let extensions = reply["extensions"].as_array().unwrap();
    let mut stored = extensions.iter().filter(|e| e["urn"] == IDEMPOTENCY);
    let stored = (&stored.next().unwrap()["data"], stored.next());
    assert_eq!(stored.1, None);
    assert_eq!(stored.0["status"], "cached");
    assert_eq!(stored.0["original_request_id"], "req_1");
    assert_eq!(stored.0["cached_at"], data["replayed_at"]);
    let mut nameless = order("", "1");
    nameless.as_object_mut().unwrap().remove("id");
    assert_eq!(shop.call(&nameless).await.1["id"], Value::Null);
    assert_eq!(shop.handler.seen().len(), 1);
    drop(worker);
}

/// J-3: in maintenance or not, the id is that of the replay.
#[tokio::test(start_paused = true)]
async fn j_3_who_asks_again_when_the_service_is_back_is_told_of_the_replay() {
    let shop = Shop::closed();
    let done = shop.queue(&order("req_1", "1")).await;
    let failed = shop.queue(&order("req_2", "2")).await;
    let worker = shop.work();
    shop.handler
        .will(200, json!({ "result": { "order_id": "ord_xyz" } }));
    shop.handler.fails(400, "INVALID_ARGUMENTS");
    shop.replay.maintenance().off();
    assert_eq!(shop.ended(&failed).await, Status::Failed);
    let (status, reply) = shop.call(&order("req_3", "1")).await;
    assert_eq!((status, &reply["id"]), (200, &json!("req_3")));
    assert_eq!(reply["result"]["order_id"], "ord_xyz");
    let data = data_of(&reply);
    let told = (&data["status"], &data["replay_id"]);
    assert_eq!(told, (&json!("completed"), &json!(done)));
    let (status, reply) = shop.call(&order("req_4", "2")).await;
    assert_eq!((status, code_of(&reply)), (400, "INVALID_ARGUMENTS"));
    let data = data_of(&reply);
    let told = (&data["status"], &data["replay_id"]);
    assert_eq!(told, (&json!("failed"), &json!(failed)));
    assert_eq!(shop.handler.seen().len(), 2);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn j_6_w_8_failures_and_expiry_have_their_events() {
    let shop = Shop::closed();
    let minute = json!({ "ttl": { "value": 60, "unit": "second" } });
    let expiring = shop.queue(&with_callback("req_1", "1", &minute)).await;
    let worker = shop.work();
    assert_eq!(shop.ended(&expiring).await, Status::Expired);
    while shop.events().await.is_empty() {
        tokio::time::sleep(SECOND).await;
    }
    let event = &shop.events().await[0];
    assert_eq!(event["event"], "replay.expired");
    let data = event["data"].as_object().unwrap();
    let mut names: Vec<_> = data.keys().map(String::as_str).collect();
    names.sort_unstable();
    let expected = [
        "function",
        "original_request_id",
        "queued_at",
        "replay_id",
        "status",
    ];
    assert_eq!(names, expected);
    assert_eq!(
        (&data["replay_id"], &data["status"]),
        (&json!(expiring), &json!("expired"))
    );

    let failing = shop.queue(&with_callback("req_2", "2", &json!({}))).await;
    shop.handler.fails(404, "NOT_FOUND");
    shop.replay.maintenance().off();
    assert_eq!(shop.ended(&failing).await, Status::Failed);
    let event = &shop.events().await[1];
    assert_eq!(event["event"], "replay.failed");
    let data = &event["data"];
    assert_eq!(
        (&data["status"], &data["attempts"]),
        (&json!("failed"), &json!(1))
    );
    assert_eq!(data["errors"], json!([{ "code": "NOT_FOUND" }]));
    assert_eq!(data.get("result"), None);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn w_8_a_failure_without_an_envelope_is_told_as_an_error() {
    let shop = Shop::closed();
    let id = shop.queue(&with_callback("req_1", "1", &json!({}))).await;
    shop.handler.will(400, json!("no"));
    let worker = shop.work();
    shop.replay.maintenance().off();
    assert_eq!(shop.ended(&id).await, Status::Failed);
    let event = &shop.events().await[0];
    assert_eq!(event["data"]["errors"][0]["code"], "INTERNAL_ERROR");
    // And so is who asks again.
    shop.replay.maintenance().on(None);
    let (status, reply) = shop.call(&order("req_2", "1")).await;
    assert_eq!((status, code_of(&reply)), (500, "INTERNAL_ERROR"));
    assert_eq!(data_of(&reply)["status"], "failed");
    // Guidance goes by that, and not by the code.
    let app = shop.app.clone().layer(RetryGuidanceLayer::new());
    let request = of("ada").body(Body::from(order("req_3", "1").to_string()));
    let response = app.oneshot(request.unwrap()).await.unwrap();
    let body = to_bytes(response.into_body(), 10_000).await.unwrap();
    let reply = Response::parse(&body).unwrap();
    assert_eq!(reply.data_of(Retry::URN).unwrap(), Some(Retry::never()));
    drop(worker);
}
