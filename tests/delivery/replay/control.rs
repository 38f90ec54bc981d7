use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tower::ServiceExt;
use tower_reprise::{
    delivery::replay::{Replay, ReplayError, ReplayFilter, ReplayId},
    server::dialect::Scope,
    store::{
        MemoryStore, StoreError,
        journal::{Entry, EntryId, Journal, LeaseRequest, Status, WrapJournal, WrappedJournal},
    },
};

use super::shop::*;

async fn call(shop: &Shop, user: &str, method: Method, path: &str) -> (u16, Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("x-user", user);
    let request = request.body(Full::<Bytes>::default()).unwrap();
    let response = shop.replay.routes().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

async fn get(shop: &Shop, path: &str) -> (u16, Value) {
    call(shop, "ada", Method::GET, path).await
}

async fn post(shop: &Shop, path: &str) -> (u16, Value) {
    call(shop, "ada", Method::POST, path).await
}

async fn one(shop: &Shop) -> ReplayId {
    shop.replay.maintenance().on(None);
    shop.queue("1", "an order").await
}

#[tokio::test(start_paused = true)]
async fn j_8_what_is_over_is_told_by_its_code() {
    let shop = Shop::new();
    let done = one(&shop).await;
    let worker = shop.work();
    shop.replay.trigger("ada", done).await.unwrap();
    shop.ended(done).await;
    let cancelled = shop.queue("2", "").await;
    shop.replay.cancel("ada", cancelled).await.unwrap();
    let (_, document) = shop.send(order("3").header("replay-ttl", "60"), "").await;
    let expired = id(&document);
    drop(worker);
    tokio::time::advance(61 * SECOND).await;
    for (id, code, status) in [
        (done, "REPLAY_ALREADY_COMPLETE", 409),
        (cancelled, "REPLAY_CANCELLED", 409),
        (expired, "REPLAY_EXPIRED", 410),
    ] {
        for action in ["cancel", "trigger"] {
            let (got, document) = post(&shop, &format!("/{id}/{action}")).await;
            assert_eq!((got, &document["code"]), (status, &code.into()), "{action}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn j_8_another_s_replay_is_not_found() {
    let shop = Shop::new();
    let id = one(&shop).await;
    for (user, id) in [
        ("bob", id.to_string()),
        ("ada", format!("rpl_{}", "0".repeat(32))),
        ("ada", "rpl_x".into()),
    ] {
        for (method, action) in [
            (Method::GET, ""),
            (Method::GET, "/reply"),
            (Method::POST, "/cancel"),
            (Method::POST, "/trigger"),
            (Method::DELETE, ""),
        ] {
            let (status, document) = call(&shop, user, method, &format!("/{id}{action}")).await;
            assert_eq!(
                (status, &document["code"]),
                (404, &"REPLAY_NOT_FOUND".into())
            );
        }
    }
    assert_eq!(shop.status(id).await, Status::Queued);
    let (_, list) = call(&shop, "bob", Method::GET, "/").await;
    assert_eq!(list["replays"], Value::Array(Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn j_9_trigger_while_processing_starts_nothing() {
    let shop = Shop::new();
    let id = one(&shop).await;
    let leased = shop
        .store
        .lease(LeaseRequest::new("replay", "ada", 1, 30 * SECOND))
        .await
        .unwrap();
    let (status, document) = post(&shop, &format!("/{id}/trigger")).await;
    assert_eq!((status, &document["status"]), (200, &"processing".into()));
    assert_eq!(shop.entry(id).await.lease_token, leased[0].lease_token);
    let (status, document) = post(&shop, &format!("/{id}/cancel")).await;
    assert_eq!(
        (status, &document["code"]),
        (409, &"REPLAY_PROCESSING".into())
    );
}

#[tokio::test(start_paused = true)]
async fn j_15_status_cancel_and_reply_as_routes() {
    let shop = Shop::new();
    let first = one(&shop).await;
    let named = order("2").header("x-request-id", "r-2");
    let second = id(&shop.send(named, "").await.1);
    let (status, document) = get(&shop, &format!("/{second}")).await;
    assert_eq!(
        (status, &document["status"], &document["position"]),
        (200, &"queued".into(), &1.into())
    );
    assert_eq!(
        get(&shop, &format!("/{first}/reply")).await.0,
        404,
        "not yet"
    );
    let (status, document) = call(&shop, "ada", Method::DELETE, &format!("/{second}")).await;
    assert_eq!((status, &document["status"]), (200, &"cancelled".into()));
    assert!(document["cancelled_at"].is_string());
    assert_eq!(document["original_request_id"], "r-2");
    let (status, document) = get(&shop, &format!("/{second}")).await;
    assert_eq!((status, &document["status"]), (200, &"cancelled".into()));
    assert_eq!(document["reason"], "SERVER_MAINTENANCE");
    assert!(document.get("original_request_id").is_none(), "not kept");
    let (status, document) = post(&shop, &format!("/{first}/trigger")).await;
    assert_eq!((status, &document["status"]), (200, &"queued".into()));
    let worker = shop.work();
    shop.ended(first).await;
    let (_, document) = get(&shop, &format!("/{first}")).await;
    assert_eq!(
        (&document["status"], &document["attempts"]),
        (&"completed".into(), &1.into())
    );
    assert!(document["replayed_at"].is_string());
    let (status, document) = get(&shop, &format!("/{first}/reply")).await;
    assert_eq!((status, &document["order"]), (200, &7.into()));
    drop(worker);
}

fn long_reply(status: StatusCode) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from_static(b"more than ten bytes"));
    *response.status_mut() = status;
    response.headers_mut().insert("content-length", 19.into());
    response
}

/// S-3: a reply without its body would be another reply.
#[tokio::test(start_paused = true)]
async fn j_15_a_reply_that_is_too_large_is_not_kept_at_all() {
    let shop = Shop::with(|builder| builder.response_limit(10));
    shop.handler.will([
        Does::With(|| long_reply(StatusCode::OK)),
        Does::With(|| long_reply(StatusCode::BAD_REQUEST)),
    ]);
    shop.replay.maintenance().on(None);
    let worker = shop.work();
    for (key, status) in [("1", Status::Completed), ("2", Status::Failed)] {
        let id = shop.queue(key, "").await;
        shop.replay.trigger("ada", id).await.unwrap();
        assert_eq!(shop.ended(id).await, status);
        let reply = shop.replay.reply("ada", id).await.unwrap();
        assert!(reply.is_none(), "{reply:?}");
        let (status, document) = get(&shop, &format!("/{id}/reply")).await;
        let code = &document["code"];
        assert_eq!((status, code), (404, &"REPLAY_NO_REPLY".into()));
    }
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn j_10_lists_page_by_a_cursor_of_their_own() {
    let shop = Shop::new();
    shop.replay.maintenance().on(None);
    let mut all = Vec::new();
    for n in 0..5 {
        all.push(shop.queue(&n.to_string(), "").await.to_string());
    }
    shop.replay
        .cancel("ada", all[1].parse().unwrap())
        .await
        .unwrap();
    let mut seen = Vec::new();
    let mut path = "/?limit=2".to_owned();
    loop {
        let (status, page) = get(&shop, &path).await;
        assert_eq!(status, 200);
        let page_ids = page["replays"].as_array().unwrap().iter();
        seen.extend(page_ids.map(|one| one["replay_id"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/?limit=2&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen, all);
    let (_, cancelled) = get(&shop, "/?status=cancelled").await;
    assert_eq!(cancelled["replays"][0]["replay_id"], *all[1]);
    assert_eq!(cancelled["replays"][0]["reason"], "SERVER_MAINTENANCE");
    let (_, none) = get(&shop, "/?function=POST%20/payments").await;
    assert_eq!(none["replays"], Value::Array(Vec::new()));

    // A cursor is of its list, and of its owner.
    let (_, page) = get(&shop, "/?limit=2").await;
    let cursor = page["next_cursor"].as_str().unwrap();
    for (user, path) in [
        ("ada", format!("/?status=queued&cursor={cursor}")),
        ("bob", format!("/?cursor={cursor}")),
        ("ada", "/?cursor=AAAA".to_owned()),
    ] {
        let (status, document) = call(&shop, user, Method::GET, &path).await;
        assert_eq!((status, &document["code"]), (400, &"REPLAY_INVALID".into()));
    }
    let filter = ReplayFilter {
        cursor: Some("x".to_owned()),
        ..ReplayFilter::default()
    };
    let refused = shop.replay.list("ada", filter).await.unwrap_err();
    assert!(matches!(refused, ReplayError::Cursor));
}

#[tokio::test(start_paused = true)]
async fn j_15_what_is_no_route_is_refused() {
    let shop = Shop::new();
    let id = one(&shop).await;
    assert_eq!(post(&shop, "/").await.0, 405);
    assert_eq!(get(&shop, &format!("/{id}/cancel")).await.0, 405);
    assert_eq!(get(&shop, &format!("/{id}/other")).await.0, 404);
    let nobody = Request::get("/").body(Full::<Bytes>::default()).unwrap();
    let response = shop.replay.routes().oneshot(nobody).await.unwrap();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert_eq!(shop.status(id).await, Status::Queued);
}

#[tokio::test(start_paused = true)]
async fn j_1_estimates_come_from_the_drain_and_from_maintenance() {
    let shop = Shop::new();
    let until = std::time::SystemTime::now() + 2 * 3600 * SECOND;
    shop.replay.maintenance().on(Some(until));
    let (_, document) = shop.send(order("1"), "").await;
    assert_eq!(document["estimated_replay"]["unit"], "hour");
    let until = document["maintenance"]["until"].as_str().unwrap();
    assert!(humantime::parse_rfc3339(until).is_ok(), "{until}");
    shop.replay
        .maintenance()
        .announce("Database migration", None);
    let (_, document) = shop.send(order("3"), "").await;
    let told = serde_json::json!({ "reason": "Database migration" });
    assert_eq!(document["maintenance"], told);
    shop.replay.maintenance().on(None);
    let (_, document) = shop.send(order("2"), "").await;
    assert!(document.get("estimated_replay").is_none(), "nobody knows");
    assert!(document.get("maintenance").is_none());
}

/// J-18: a queue has a bound of its own and one for each owner, and refuses past them.
#[tokio::test(start_paused = true)]
async fn j_18_a_queue_that_is_full_refuses_and_loses_nothing() {
    let by = |user: &str, key: &str| {
        let order = Request::post("/orders").header("x-user", user);
        order
            .header("idempotency-key", key)
            .header("replay", "true")
    };
    let shop = Shop::with(|builder| builder.max_queued(5, 3));
    shop.replay.maintenance().on(None);
    for (user, key, status) in [
        ("ada", "1", 202),
        ("ada", "2", 202),
        ("ada", "3", 202),
        ("ada", "4", 503),
        // It is there already.
        ("ada", "1", 202),
        ("bob", "1", 202),
        ("bob", "2", 202),
        ("bob", "3", 503),
        ("eve", "1", 503),
    ] {
        let (got, document) = shop.send(by(user, key), "").await;
        assert_eq!(got, status, "{user} {key}: {document}");
    }
    assert_eq!(shop.counts("replay").await.of(Status::Queued), 5);
    let worker = shop.work();
    shop.replay.maintenance().off();
    while shop.counts("replay").await.of(Status::Completed) < 5 {
        tokio::time::sleep(SECOND).await;
    }
    shop.replay.maintenance().on(None);
    assert_eq!(
        shop.send(by("ada", "4"), "").await.0,
        202,
        "there is room again"
    );
    drop(worker);
}

/// J-19: a list takes what it shows from columns, and where a request stands is counted up to a bound.
#[tokio::test]
async fn j_19_a_list_reads_no_bodies_and_positions_are_bounded() {
    #[derive(Default)]
    struct Reads {
        bodies: AtomicU32,
        counted: AtomicU32,
    }

    impl WrapJournal for Reads {
        async fn find<J: Journal>(
            &self,
            inner: &J,
            id: EntryId,
        ) -> Result<Option<Entry>, StoreError> {
            self.bodies.fetch_add(1, Ordering::Relaxed);
            inner.find(id).await
        }

        async fn position<J: Journal>(
            &self,
            inner: &J,
            id: EntryId,
            limit: u32,
        ) -> Result<Option<u32>, StoreError> {
            self.counted.fetch_max(limit, Ordering::Relaxed);
            inner.position(id, limit).await
        }
    }

    let journal = Arc::new(WrappedJournal::new(MemoryStore::new(), Reads::default()));
    let scope = Scope::new(|_| Some("ada"));
    let replay = Replay::builder(Arc::clone(&journal), scope).replay_by_default();
    let replay = replay.build().unwrap();
    let served = tower::service_fn(async |_: Request<Full<Bytes>>| {
        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let app = tower::Layer::layer(&replay.layer(), served);
    replay.maintenance().on(None);
    for key in 0..5 {
        let order = order(&key.to_string())
            .body(Full::from("an order"))
            .unwrap();
        let response = app.clone().oneshot(order).await.unwrap();
        assert_eq!(response.status(), StatusCode::ACCEPTED);
    }
    let counted = journal.wrapper().counted.load(Ordering::Relaxed);
    assert!((1..=1000).contains(&counted), "{counted}");
    let page = replay.list("ada", ReplayFilter::default()).await.unwrap();
    assert_eq!(page.replays.len(), 5);
    for listed in page.replays {
        assert_eq!(listed.reason, "SERVER_MAINTENANCE");
        assert_eq!(listed.function, "POST /orders");
    }
    assert_eq!(journal.wrapper().bodies.load(Ordering::Relaxed), 0);
}
