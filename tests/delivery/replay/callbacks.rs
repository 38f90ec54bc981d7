use serde_json::Value;
use tower_reprise::{
    delivery::{
        dead_letter::DeadLetters,
        guard::Guard,
        webhooks::{Signer, Webhooks},
    },
    store::{
        MemoryStore,
        journal::{Entry, Journal, Query, Status},
    },
};

use super::shop::*;

fn webhooks(store: &MemoryStore, guard: Guard) -> Webhooks<MemoryStore> {
    let signer = Signer::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let webhooks = Webhooks::builder(store.clone(), signer).guard(guard);
    webhooks.build().unwrap()
}

fn shop() -> Shop {
    shop_with(Guard::new())
}

fn shop_with(guard: Guard) -> Shop {
    let store = MemoryStore::new();
    let webhooks = webhooks(&store, guard);
    Shop::on(store, |builder| builder.callbacks(webhooks))
}

const HOOK: &str = "https://shop.example/hook?token=1";

/// The callbacks that are to be sent.
async fn callbacks(shop: &Shop) -> Vec<(Entry, Value)> {
    let mut all = Vec::new();
    for entry in shop.store.list(Query::new("webhooks", 9)).await.unwrap() {
        let entry = shop.store.find(entry.id).await.unwrap().unwrap();
        let payload = entry.payload.clone();
        let start = payload
            .windows(9)
            .position(|part| part == b"{\"event\":")
            .unwrap();
        let document = serde_json::from_slice(&payload[start..]).unwrap();
        all.push((entry, document));
    }
    all
}

#[tokio::test(start_paused = true)]
async fn w_8_the_result_and_its_callback_are_committed_together() {
    let shop = shop();
    shop.replay.maintenance().on(None);
    let request = order("1")
        .header("replay-callback", HOOK)
        .header("x-request-id", "r-1");
    let request = request.header("replay-callback-header", "x-tenant: acme");
    let (status, document) = shop.send(request, "").await;
    assert_eq!(status, 202, "{document}");
    assert!(callbacks(&shop).await.is_empty());
    let worker = shop.work();
    shop.replay.maintenance().off();
    assert_eq!(shop.ended(id(&document)).await, Status::Completed);
    let callbacks = callbacks(&shop).await;
    let [(entry, event)] = &callbacks[..] else {
        panic!("one callback, not {callbacks:?}");
    };
    assert_eq!(
        (&*entry.lane, &*entry.label),
        ("https://shop.example", "replay.completed")
    );
    assert_eq!(event["event"], "replay.completed");
    let data = &event["data"];
    assert_eq!(data["replay_id"], document["replay_id"]);
    assert_eq!(
        (&data["status"], &data["function"]),
        (&"completed".into(), &"POST /orders".into())
    );
    assert_eq!(
        (&data["original_request_id"], &data["http_status"]),
        (&"r-1".into(), &200.into())
    );
    assert_eq!(data["result"]["order"], 7);
    assert_eq!(data["queued_at"], document["queued_at"]);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn w_8_failures_and_expiry_have_their_events() {
    let shop = shop();
    shop.replay.maintenance().on(None);
    let (_, expiring) = {
        let request = order("1")
            .header("replay-callback", HOOK)
            .header("replay-ttl", "60");
        shop.send(request, "").await
    };
    let worker = shop.work();
    tokio::time::sleep(70 * SECOND).await;
    let events = callbacks(&shop).await;
    assert_eq!(events.len(), 1, "told during maintenance, too");
    assert_eq!(events[0].1["event"], "replay.expired");
    assert_eq!(events[0].1["data"]["replay_id"], expiring["replay_id"]);

    let (_, failing) = shop
        .send(order("2").header("replay-callback", HOOK), "")
        .await;
    shop.handler.answers(&[422]);
    shop.replay.maintenance().off();
    assert_eq!(shop.ended(id(&failing)).await, Status::Failed);
    let events = callbacks(&shop).await;
    assert_eq!(events[1].1["event"], "replay.failed");
    assert_eq!(events[1].1["data"]["error"], "replied 422");
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn w_6_w_5_callbacks_that_are_not_allowed_are_refused_at_once() {
    let shop = shop();
    for (url, header) in [
        ("http://shop.example/", "x-a: 1"),
        ("https://127.0.0.1/", "x-a: 1"),
        ("https://user:password@shop.example/", "x-a: 1"),
        ("not a url", "x-a: 1"),
        (HOOK, "webhook-id: mine"),
        (HOOK, "host: other"),
        // J-13: this journal is not sealed.
        (HOOK, "authorization: Bearer s3cret"),
    ] {
        let request = order("1").header("replay-callback", url);
        let (status, document) = shop
            .send(request.header("replay-callback-header", header), "")
            .await;
        assert_eq!(
            (status, &document["code"]),
            (400, &"REPLAY_INVALID".into()),
            "{url} {header}"
        );
        assert!(!document.to_string().contains("s3cret"));
    }
    assert!(
        shop.handler.seen().is_empty(),
        "refused, whether or not it could be served"
    );
}

/// A promised callback becomes a dead letter if the process that has to send it is set up
/// differently: with a narrower guard, or without callbacks at all.
#[tokio::test(start_paused = true)]
async fn w_8_q_1_a_callback_that_can_t_be_sent_any_more_is_a_letter() {
    let wide = || Guard::new().allow_http();
    let plain = "http://shop.example/hook";
    for (callbacks, why) in [
        (false, "callbacks are not offered any more"),
        (true, "its target is not allowed"),
    ] {
        let before = shop_with(wide());
        before.replay.maintenance().on(None);
        let mut ids = Vec::new();
        for (key, ttl) in [("1", 3600), ("2", 3600), ("3", 60)] {
            let request = order(key)
                .header("replay-callback", plain)
                .header("replay-callback-header", "x-tenant: acme")
                .header("replay-ttl", ttl);
            ids.push(id(&before.send(request, "").await.1));
        }
        let store = before.store.clone();
        let narrow = webhooks(&store, Guard::new());
        let after = Shop::on(store.clone(), |builder| match callbacks {
            true => builder.callbacks(narrow.clone()),
            false => builder,
        });
        after.handler.answers(&[200, 422]);
        after.replay.maintenance().on(None);
        let worker = after.work();
        for id in &ids[..2] {
            after.replay.trigger("ada", *id).await.unwrap();
            after.ended(*id).await;
        }
        tokio::time::sleep(120 * SECOND).await;
        worker.shutdown(SECOND).await;

        let letters = DeadLetters::new(store.clone());
        let listed = letters.list("webhooks", None, 9).await.unwrap();
        let mut events = Vec::new();
        for entry in &listed {
            let letter = letters.get(entry.id).await.unwrap().unwrap();
            assert_eq!((&*letter.reason, letter.cause()), (why, why));
            assert_eq!(letter.headers["x-tenant"], "acme");
            assert_eq!(letter.owner, "ada");
            let event: Value = serde_json::from_slice(&letter.payload).unwrap();
            assert_eq!(event["event"], letter.label);
            events.push((event["data"]["replay_id"].clone(), letter.label));
        }
        let labels = ["replay.completed", "replay.failed", "replay.expired"];
        let expected = ids.iter().zip(labels);
        let expected: Vec<_> = expected
            .map(|(id, label)| (Value::from(id.to_string()), label.to_owned()))
            .collect();
        assert_eq!(events, expected);
        // Somebody is told: of these, and of the replay that failed.
        let alerts = store.list(Query::new("reprise.alerts", 9)).await.unwrap();
        assert_eq!(alerts.len(), 4);

        // Once it is mended, they can be sent.
        let worker = webhooks(&store, Guard::new()).worker().start().unwrap();
        letters.redrive(listed[0].id).await.unwrap();
        let mended = after.ended(listed[0].id.into()).await;
        assert_eq!(mended, Status::Failed, "this one still may not");
        let letter = letters.get(listed[0].id).await.unwrap().unwrap();
        assert_eq!(letter.reason, "its target is not allowed", "it was read");
        drop(worker);
    }
}
