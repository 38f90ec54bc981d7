//! `forrst.replay.*`: whose replays they are about, and what they refuse.

use tower_reprise::store::journal::LeaseRequest;

use super::*;

#[tokio::test(start_paused = true)]
async fn j_8_another_s_replay_is_not_found() {
    let shop = Shop::closed();
    let id = shop.queue(&order("1", "1")).await;
    for (user, id) in [
        ("bob", id.clone()),
        ("ada", format!("rpl_{}", "0".repeat(32))),
        ("ada", "rpl_x".to_owned()),
        ("ada", "'; --".to_owned()),
    ] {
        for name in ["status", "cancel", "trigger"] {
            let (status, reply) = shop.function(user, name, json!({ "replay_id": id })).await;
            assert_eq!(
                (status, code_of(&reply)),
                (404, "REPLAY_NOT_FOUND"),
                "{name}"
            );
            assert_eq!(
                (&reply["id"], &reply["result"]),
                (&json!("f"), &Value::Null)
            );
        }
    }
    let (_, reply) = shop.function("bob", "list", json!({})).await;
    assert_eq!(reply["result"], json!({ "replays": [], "total": 0 }));
    assert_eq!(shop.entry(&id).await.status, Status::Queued);
    // A caller without a name has no replays.
    let list = json!({ "call": { "function": "forrst.replay.list" } }).to_string();
    let nobody = Request::post("/forrst").header("content-type", "application/json");
    let (status, reply) = shop.send(nobody, list).await;
    assert_eq!((status, code_of(&reply)), (403, "FORBIDDEN"));
}

#[tokio::test(start_paused = true)]
async fn j_8_what_is_over_is_told_by_its_code() {
    let shop = Shop::closed();
    let done = shop.queue(&order("1", "1")).await;
    let worker = shop.work();
    let (status, _) = shop
        .function("ada", "trigger", json!({ "replay_id": done }))
        .await;
    assert_eq!(status, 200);
    assert_eq!(shop.ended(&done).await, Status::Completed);
    let cancelled = shop.queue(&order("2", "2")).await;
    shop.function("ada", "cancel", json!({ "replay_id": cancelled }))
        .await;
    let minute = json!({ "ttl": { "value": 1, "unit": "minute" } });
    let expired = shop.queue(&asking("3", None, minute)).await;
    drop(worker);
    tokio::time::advance(61 * SECOND).await;
    for (id, code, status) in [
        (done, "REPLAY_ALREADY_COMPLETE", 409),
        (cancelled, "REPLAY_CANCELLED", 409),
        (expired, "REPLAY_EXPIRED", 410),
    ] {
        for name in ["cancel", "trigger"] {
            let (got, reply) = shop.function("ada", name, json!({ "replay_id": id })).await;
            assert_eq!((got, code_of(&reply)), (status, code), "{name}");
        }
        let (got, reply) = shop
            .function("ada", "status", json!({ "replay_id": id }))
            .await;
        assert_eq!((got, &reply["result"]["replay_id"]), (200, &json!(id)));
    }
}

#[tokio::test(start_paused = true)]
async fn j_9_trigger_while_processing_starts_nothing() {
    let shop = Shop::closed();
    let id = shop.queue(&order("1", "1")).await;
    let want = LeaseRequest::new("replay", "ada", 1, 30 * SECOND);
    let leased = shop.store.lease(want).await.unwrap();
    let one = json!({ "replay_id": id });
    let (status, reply) = shop.function("ada", "trigger", one.clone()).await;
    let expected = json!({ "replay_id": id, "status": "processing" });
    assert_eq!((status, &reply["result"]), (200, &expected));
    assert_eq!(shop.entry(&id).await.lease_token, leased[0].lease_token);
    let (status, reply) = shop.function("ada", "cancel", one).await;
    assert_eq!((status, code_of(&reply)), (409, "REPLAY_PROCESSING"));
}

#[tokio::test(start_paused = true)]
async fn j_10_lists_page_by_a_cursor_of_their_own() {
    let shop = Shop::closed();
    let mut all = Vec::new();
    for n in 0..5 {
        all.push(shop.queue(&order("1", &n.to_string())).await);
    }
    let mut seen = Vec::new();
    let mut arguments = json!({ "limit": 2 });
    loop {
        let (status, reply) = shop.function("ada", "list", arguments.clone()).await;
        let page = &reply["result"];
        assert_eq!((status, &page["total"]), (200, &json!(5)), "of all pages");
        let replays = page["replays"].as_array().unwrap().iter();
        seen.extend(replays.map(|one| one["replay_id"].as_str().unwrap().to_owned()));
        match page.get("next_cursor") {
            Some(cursor) => arguments["cursor"] = cursor.clone(),
            None => break,
        }
    }
    assert_eq!(seen, all);
    // A cursor is of its list, and of its owner.
    for (user, change) in [("bob", json!({})), ("ada", json!({ "status": "queued" }))] {
        let mut arguments = arguments.clone();
        arguments
            .as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        let (status, reply) = shop.function(user, "list", arguments).await;
        assert_eq!((status, code_of(&reply)), (400, "INVALID_ARGUMENTS"));
    }
}

#[tokio::test(start_paused = true)]
async fn s_3_arguments_that_can_t_be_read_are_refused_by_name() {
    let shop = Shop::closed();
    for (name, arguments, field) in [
        ("status", json!(null), "call.arguments"),
        ("status", json!({}), "call.arguments"),
        (
            "status",
            json!({ "replay_id": 7 }),
            "call.arguments.replay_id",
        ),
        ("cancel", json!([]), "call.arguments"),
        ("trigger", json!("rpl_1"), "call.arguments"),
        ("list", json!({ "status": "done" }), "call.arguments.status"),
        ("list", json!({ "limit": 0 }), "call.arguments.limit"),
        ("list", json!({ "limit": 101 }), "call.arguments.limit"),
        ("list", json!({ "limit": 1e300 }), "call.arguments.limit"),
        ("list", json!({ "limit": -1 }), "call.arguments.limit"),
        (
            "list",
            json!({ "function": "a\0b" }),
            "call.arguments.function",
        ),
        ("list", json!({ "state": "queued" }), "call.arguments.state"),
    ] {
        let (status, reply) = shop.function("ada", name, arguments.clone()).await;
        let error = &reply["errors"][0];
        assert_eq!(
            (status, &error["code"]),
            (400, &json!("INVALID_ARGUMENTS")),
            "{arguments}"
        );
        assert_eq!(error["details"]["field"], field, "{arguments}");
    }
    let (status, reply) = shop
        .function("ada", "list", json!({ "cursor": "AAAA" }))
        .await;
    assert_eq!((status, code_of(&reply)), (400, "INVALID_ARGUMENTS"));
    let later = json!({ "call": { "function": "forrst.replay.list", "version": "2.0.0" } });
    let (status, reply) = shop.call(&later).await;
    assert_eq!((status, code_of(&reply)), (404, "NOT_FOUND"));
    // Other functions are the service's.
    shop.replay.maintenance().off();
    assert_eq!(shop.handler.seen().len(), 0);
    let (status, _) = shop.function("ada", "pause", json!({})).await;
    assert_eq!((status, shop.handler.seen().len()), (200, 1));
}
