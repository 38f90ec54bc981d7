//! Attempts of a replay, and the record that they share with direct requests.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Response, StatusCode};
use tower::{Layer, ServiceExt};
use tower_reprise::{
    IdempotencyLayer,
    delivery::replay::{Replay, ReplayBuilder, ReplayId, ReplayOrder},
    error::BoxError,
    server::{dialect::Scope, idempotency::HandlerOutcome},
    store::{
        CrashPolicy, MemoryStore,
        journal::{Journal, Query, Status},
    },
};

use super::shop::*;

/// Queues an order and starts a worker, which has to wait for the end of the maintenance.
async fn queued(shop: &Shop) -> ReplayId {
    shop.replay.maintenance().on(None);
    shop.queue("1", "1").await
}

/// Lets time pass until the handler was called so often.
async fn seen(shop: &Shop, times: usize) {
    while shop.handler.seen().len() < times {
        tokio::time::sleep(SECOND / 20).await;
    }
}

#[tokio::test(start_paused = true)]
async fn j_11_three_attempts_are_three_executions_under_one_key() {
    for shop in [Shop::new(), Shop::careful()] {
        let id = queued(&shop).await;
        shop.handler.answers(&[500, 502]);
        let worker = shop.work();
        shop.replay.maintenance().off();
        assert_eq!(shop.ended(id).await, Status::Completed);
        assert_eq!(shop.entry(id).await.attempts, 3);
        let seen = shop.handler.seen();
        assert_eq!(seen.len(), 3);
        assert!(seen.iter().all(|seen| seen.key == "1"));
        assert!(seen.windows(2).all(|two| two[0].token < two[1].token));
        let (status, _) = shop.send(plain("1"), "1").await;
        assert_eq!((status, shop.handler.seen().len()), (200, 3));
        drop(worker);
    }
}

#[tokio::test(start_paused = true)]
async fn j_11_a_direct_duplicate_waits_for_the_next_attempt() {
    let shop = Shop::careful();
    let id = queued(&shop).await;
    shop.handler.answers(&[500]);
    let worker = shop.work();
    shop.replay.maintenance().off();
    seen(&shop, 1).await;
    // The worker stops between two attempts.
    worker.shutdown(SECOND).await;
    for _ in 0..3 {
        let (status, problem) = shop.send(plain("1"), "1").await;
        assert_eq!(status, 409, "{problem}");
        tokio::time::sleep(60 * SECOND).await;
    }
    let worker = shop.work();
    assert_eq!(shop.ended(id).await, Status::Completed);
    assert_eq!(shop.handler.seen().len(), 2);
    assert_eq!(shop.send(plain("1"), "1").await.0, 200);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn j_11_the_last_failure_is_the_reply_to_duplicates() {
    let shop = Shop::new();
    let id = queued(&shop).await;
    shop.handler.answers(&[500, 502, 500]);
    let worker = shop.work();
    shop.replay.maintenance().off();
    assert_eq!(shop.ended(id).await, Status::Failed);
    assert_eq!(shop.handler.seen().len(), 3);
    assert_eq!(shop.send(plain("1"), "1").await.0, 500);
    assert_eq!(shop.handler.seen().len(), 3, "it is not executed again");
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn j_11_a_failure_that_its_handler_committed_is_not_executed_again() {
    let shop = Shop::new();
    let id = queued(&shop).await;
    shop.handler.will([Does::With(|| {
        let mut response = Response::new(Bytes::from_static(b"half done"));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response.extensions_mut().insert(HandlerOutcome::Committed);
        response
    })]);
    let worker = shop.work();
    shop.replay.maintenance().off();
    assert_eq!(shop.ended(id).await, Status::Failed);
    assert_eq!(shop.handler.seen().len(), 1);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn j_11_a_service_that_is_away_between_two_attempts_leaves_the_record_alone() {
    let shop = Shop::careful();
    let id = queued(&shop).await;
    shop.handler.answers(&[500, 503, 503]);
    let worker = shop.work();
    shop.replay.maintenance().off();
    assert_eq!(shop.ended(id).await, Status::Completed);
    assert_eq!(shop.entry(id).await.attempts, 2, "503 is no attempt");
    assert_eq!(shop.handler.seen().len(), 4);
    drop(worker);
}

/// I-12: a reply that its request is journaled for does not decide the operation.
#[tokio::test(start_paused = true)]
async fn i_12_a_request_that_is_journaled_hands_its_record_over() {
    let shop = Shop::careful();
    shop.handler.answers(&[503]);
    let id = shop.queue("1", "1").await;
    let worker = shop.work();
    assert_eq!(shop.ended(id).await, Status::Completed);
    assert_eq!(shop.handler.seen().len(), 2);
    drop(worker);
}

/// I-12: no worker may come for longer than a lease; a repeat meanwhile does not decide the operation.
#[tokio::test(start_paused = true)]
async fn i_12_a_journaled_request_holds_its_record_until_its_replay_begins() {
    let shop = Shop::careful();
    shop.handler.answers(&[503]);
    let id = shop.queue("1", "1").await;
    for _ in 0..3 {
        tokio::time::sleep(60 * SECOND).await;
        for request in [plain("1").header("replay", "false"), order("1")] {
            let (status, answer) = shop.send(request, "1").await;
            assert!([202, 409].contains(&status), "{answer}");
            assert!(!answer.to_string().contains("outcome"), "{answer}");
        }
    }
    let worker = shop.work();
    assert_eq!(shop.ended(id).await, Status::Completed);
    assert_eq!(shop.handler.seen().len(), 2);
    drop(worker);
}

/// I-12: a request that could not be journaled holds its record no longer than a lease.
#[tokio::test(start_paused = true)]
async fn i_12_a_request_that_no_journal_took_leaves_its_record_to_the_crash_policy() {
    let full = |builder: ReplayBuilder<_>| builder.max_queued(1, 1);
    let shop = Shop::of(MemoryStore::new(), CrashPolicy::Unknown, full);
    shop.handler.answers(&[503, 503]);
    shop.queue("1", "1").await;
    assert_eq!(shop.send(order("2"), "2").await.0, 503);
    tokio::time::sleep(60 * SECOND).await;
    let (status, answer) = shop.send(plain("2").header("replay", "false"), "2").await;
    assert_eq!(status, 409, "{answer}");
    assert!(answer.to_string().contains("outcome"), "{answer}");
}

/// I-12: an error that its request is journaled for leaves the key to the journal as well.
#[tokio::test(start_paused = true)]
async fn i_12_an_overloaded_service_hands_its_record_over() {
    type Body = http_body_util::Full<Bytes>;
    let store = MemoryStore::new();
    let layer = IdempotencyLayer::builder(store.clone())
        .scope(Scope::new(|_| Some("ada")))
        .crash_policy(CrashPolicy::Unknown)
        .build()
        .unwrap();
    let replay = Replay::before(store.clone(), &layer).build().unwrap();
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    let service = layer.layer(tower::service_fn(move |_: http::Request<Body>| {
        let mut calls = counted.lock().unwrap();
        *calls += 1;
        std::future::ready(match *calls {
            1 => Err(BoxError::from(tower::load_shed::error::Overloaded::new())),
            _ => Ok(Response::new(Body::default())),
        })
    }));
    let order = http::Request::post("/orders")
        .header("idempotency-key", "1")
        .header("replay", "true")
        .body(Body::default())
        .unwrap();
    let app = replay.layer().layer(service.clone());
    assert_eq!(app.oneshot(order).await.unwrap().status(), 202);
    let worker = replay.worker::<Body, _>(service).start().unwrap();
    let over = async || {
        let counts = store.counts("replay").await.unwrap();
        counts.of(Status::Completed) + counts.of(Status::Failed)
    };
    while over().await == 0 {
        tokio::time::sleep(SECOND).await;
    }
    let counts = store.counts("replay").await.unwrap();
    assert_eq!(
        (counts.of(Status::Completed), *calls.lock().unwrap()),
        (1, 2)
    );
    drop(worker);
}

/// I-12, J-8: a replay that ends between two attempts leaves its key to the crash policy, rather than
/// to an attempt that never comes.
#[tokio::test(start_paused = true)]
async fn i_12_a_replay_that_ends_between_two_attempts_leaves_its_key_to_the_crash_policy() {
    type Body = http_body_util::Full<Bytes>;
    for (end, policy) in [
        ("cancelled", CrashPolicy::Reexecute),
        ("cancelled", CrashPolicy::Unknown),
        ("erased", CrashPolicy::Reexecute),
        ("erased", CrashPolicy::Unknown),
        ("expired", CrashPolicy::Reexecute),
        ("expired", CrashPolicy::Unknown),
    ] {
        let store = MemoryStore::new();
        let layer = IdempotencyLayer::builder(store.clone())
            .scope(Scope::new(|_| Some("ada")))
            .crash_policy(policy)
            .build()
            .unwrap();
        let replay = Replay::before(store.clone(), &layer).build().unwrap();
        let calls = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&calls);
        let service = layer.layer(tower::service_fn(move |_: http::Request<Body>| {
            let mut calls = counted.lock().unwrap();
            *calls += 1;
            let mut response = Response::new(Body::default());
            if *calls == 1 {
                *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            }
            std::future::ready(Ok::<_, std::convert::Infallible>(response))
        }));
        let app = replay.layer().layer(service.clone());
        let order = |replay: &str| {
            http::Request::post("/orders")
                .header("idempotency-key", "1")
                .header("replay", replay)
                .header("replay-ttl", "3600")
                .body(Body::default())
                .unwrap()
        };
        replay.maintenance().on(None);
        let accepted = app.clone().oneshot(order("true")).await.unwrap();
        assert_eq!(accepted.status(), 202);
        let worker = replay.worker::<Body, _>(service.clone()).start().unwrap();
        replay.maintenance().off();
        while *calls.lock().unwrap() == 0 {
            tokio::time::sleep(SECOND / 100).await;
        }
        worker.shutdown(SECOND).await;
        let waits = app.clone().oneshot(order("false")).await.unwrap();
        assert_eq!(waits.status(), 409);
        let (id, status) = {
            let entry = store.list(Query::new("replay", 1)).await.unwrap().remove(0);
            (ReplayId::from(entry.id), entry.status)
        };
        assert_eq!(status, Status::Queued);
        if end == "cancelled" {
            replay.cancel("ada", id).await.unwrap();
        } else if end == "erased" {
            for (owner, removed) in [("", 0), ("bob", 0), ("ada", 1)] {
                let erased = replay.erase(owner, 9).await.unwrap();
                assert_eq!((erased.removed, erased.left), (removed, 0), "{owner}");
            }
            assert!(store.find(id.entry()).await.unwrap().is_none());
        } else {
            tokio::time::sleep(3601 * SECOND).await;
            let worker = replay.worker::<Body, _>(service).start().unwrap();
            while !store
                .find(id.entry())
                .await
                .unwrap()
                .unwrap()
                .status
                .is_over()
            {
                tokio::time::sleep(SECOND).await;
            }
            drop(worker);
        }
        let asked = app.oneshot(order("false")).await.unwrap();
        let body = http_body_util::BodyExt::collect(asked.into_body())
            .await
            .unwrap()
            .to_bytes();
        let body = String::from_utf8_lossy(&body);
        match policy {
            CrashPolicy::Reexecute => assert_eq!(*calls.lock().unwrap(), 2, "{body}"),
            CrashPolicy::Unknown => assert!(body.contains("outcome"), "{body}"),
        }
    }
}

/// An order of somebody's that is to be replayed.
async fn ordered_by(shop: &Shop, owner: &str, key: &str) -> ReplayId {
    let request = http::Request::post("/orders")
        .header("x-user", owner)
        .header("idempotency-key", key)
        .header("x-account", &key[..1])
        .header("replay", "true");
    let (status, document) = shop.send(request, key).await;
    assert_eq!(status, 202, "{document}");
    id(&document)
}

/// Replays three orders of Ada's, the first of which fails once, and one of Bob's; what the handler
/// saw then.
async fn replayed(order: ReplayOrder) -> Vec<String> {
    let shop = Shop::with(|builder| builder.order(order));
    shop.replay.maintenance().on(None);
    let mut ids = Vec::new();
    for (owner, key) in [("ada", "a1"), ("ada", "b2"), ("ada", "a3"), ("bob", "b4")] {
        ids.push(ordered_by(&shop, owner, key).await);
    }
    let worker = shop.work();
    // The pause before the second attempt is anything up to two seconds.
    shop.handler.will([Does::With(|| {
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    })]);
    shop.replay.maintenance().off();
    for id in ids {
        assert_eq!(shop.ended(id).await, Status::Completed);
    }
    drop(worker);
    shop.handler.bodies()
}

/// J-5: 002 has queued requests replayed in order; lanes run side by side.
#[tokio::test(start_paused = true)]
async fn j_5_in_order_within_a_lane_which_a_retry_holds() {
    let only = |seen: &[String], keys: &[&str]| {
        let seen = seen.iter().filter(|key| keys.contains(&key.as_str()));
        seen.cloned().collect::<Vec<_>>()
    };
    for _ in 0..10 {
        let seen = replayed(ReplayOrder::PerScope).await;
        assert_eq!(only(&seen, &["a1", "b2", "a3"]), ["a1", "a1", "b2", "a3"]);
        let seen = replayed(ReplayOrder::Whole).await;
        assert_eq!(seen, ["a1", "a1", "b2", "a3", "b4"]);
        let account = |head: &http::Request<()>| {
            let account = head.headers()["x-account"].to_str();
            account.unwrap().to_owned()
        };
        let seen = replayed(ReplayOrder::per(account)).await;
        assert_eq!(only(&seen, &["a1", "a3"]), ["a1", "a1", "a3"]);
        assert_eq!(only(&seen, &["b2", "b4"]).len(), 2);
    }
}

/// J-16: the scope, the dialect and the key's header are those of the layer behind.
#[tokio::test(start_paused = true)]
async fn j_16_replay_has_the_scope_and_the_key_header_of_the_layer_behind() {
    type Body = http_body_util::Full<Bytes>;
    let store = MemoryStore::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let layer = IdempotencyLayer::builder(store.clone())
        .scope(Scope::new(|head| {
            head.headers().get("authorization").cloned()
        }))
        .crash_policy(CrashPolicy::Unknown)
        .header(http::HeaderName::from_static("x-access-key"))
        .build()
        .unwrap();
    let replay = Replay::before(store.clone(), &layer).build().unwrap();
    let handled = Arc::clone(&seen);
    let service = layer.layer(tower::service_fn(move |request: http::Request<Body>| {
        let key = request.headers()["x-access-key"].to_str();
        handled.lock().unwrap().push(key.unwrap().to_owned());
        std::future::ready(Ok::<_, std::convert::Infallible>(Response::new(
            Body::from("paid"),
        )))
    }));
    let app = replay.layer().layer(service.clone());
    let order = |replay: &str| {
        http::Request::post("/orders")
            .header("authorization", "ada")
            .header("x-access-key", "1")
            .header("replay", replay)
            .body(Body::default())
            .unwrap()
    };
    replay.maintenance().on(None);
    let accepted = app.clone().oneshot(order("true")).await.unwrap();
    assert_eq!(accepted.status(), 202);
    let worker = replay.worker::<Body, _>(service).start().unwrap();
    replay.maintenance().off();
    while store.counts("replay").await.unwrap().of(Status::Completed) == 0 {
        tokio::time::sleep(SECOND).await;
    }
    // Its repeat by the caller finds the same record.
    let repeated = app.oneshot(order("false")).await.unwrap();
    assert_eq!(repeated.headers()["idempotent-replayed"], "true");
    assert_eq!(*seen.lock().unwrap(), ["1"]);
    drop(worker);
}
