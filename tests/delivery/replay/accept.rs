use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode};
use http_body_util::Full;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_reprise::server::dialect::{HttpDialect, Scope};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, IdempotencyLayer, Policy, RetryLayer,
    delivery::replay::{Replay, ReplayFilter, ReplayLater},
    error::BoxError,
    server::idempotency::HandlerOutcome,
    store::{
        CrashPolicy, MemoryStore, StoreErrorKind,
        journal::{Journal, NewEntry, Priority, Query, Status},
    },
};

use super::shop::*;

#[tokio::test(start_paused = true)]
async fn j_1_in_maintenance_a_request_is_journaled_and_told_so() {
    let shop = Shop::new();
    shop.replay.maintenance().on(None);
    let first = shop.queue("1", "first").await;
    let (status, document) = shop
        .send(order("2").header("x-request-id", "r-2"), "second")
        .await;
    assert_eq!(status, 202);
    assert_eq!(document["status"], "queued");
    assert_eq!(document["reason"], "SERVER_MAINTENANCE");
    assert_eq!(document["function"], "POST /orders");
    assert_eq!(document["original_request_id"], "r-2");
    assert_eq!(document["position"], 1);
    for time in ["queued_at", "expires_at"] {
        let time = document[time].as_str().unwrap();
        assert!(humantime::parse_rfc3339(time).is_ok(), "{time}");
    }
    assert!(document.get("errors").is_none() && document.get("type").is_none());
    assert_ne!(id(&document), first);
    assert!(shop.handler.seen().is_empty(), "nothing was served");
    // It is there before the reply is.
    assert_eq!(shop.entry(first).await.status, Status::Queued);
}

/// A repeat of a journaled request may be served at once, before the worker comes to it: later repeats get
/// that reply again, and no 202.
#[tokio::test(start_paused = true)]
async fn j_4_a_reply_that_was_given_stays_the_reply() {
    let shop = Shop::new();
    shop.replay.maintenance().on(None);
    let queued = shop.queue("1", "x").await;
    shop.replay.maintenance().off();
    for _ in 0..2 {
        let (status, document) = shop.send(order("1"), "x").await;
        assert_eq!((status, &document["order"]), (200, &7.into()));
    }
    assert_eq!(shop.entry(queued).await.status, Status::Queued);
    let _worker = shop.work();
    while shop.entry(queued).await.status != Status::Completed {
        tokio::time::sleep(SECOND).await;
    }
    assert_eq!(shop.handler.bodies(), ["x"]);
    let (status, document) = shop.send(order("1"), "x").await;
    assert_eq!((status, &document["order"]), (200, &7.into()));
}

#[tokio::test(start_paused = true)]
async fn j_1_the_reply_says_where_to_look() {
    let shop = Shop::new();
    shop.replay.maintenance().on(None);
    let request = order("1").body(Full::default()).unwrap();
    let response = shop.app.clone().oneshot(request).await.unwrap();
    let location = response.headers()["location"].to_str().unwrap();
    assert!(location.starts_with("/replays/rpl_"), "{location}");
    assert_eq!(response.headers()["cache-control"], "no-store");
    assert_eq!(response.headers()["content-type"], "application/json");
}

#[tokio::test(start_paused = true)]
async fn j_1_what_can_t_be_served_is_journaled() {
    let shop = Shop::new();
    shop.handler.answers(&[503]);
    let (status, document) = shop.send(order("1"), "").await;
    assert_eq!(
        (status, &document["reason"]),
        (202, &"SERVICE_UNAVAILABLE".into())
    );

    shop.handler.will([Does::With(|| {
        let mut response = Response::new(Bytes::new());
        response
            .extensions_mut()
            .insert(ReplayLater("OUT_OF_STOCK"));
        response.extensions_mut().insert(HandlerOutcome::NoEffect);
        response
    })]);
    let (status, document) = shop.send(order("2"), "").await;
    assert_eq!((status, &document["reason"]), (202, &"OUT_OF_STOCK".into()));
    assert_eq!(shop.counts("replay").await.of(Status::Queued), 2);
}

#[tokio::test(start_paused = true)]
async fn j_1_what_was_served_is_not_journaled() {
    let shop = Shop::new();
    let served = [200, 400, 500, 502, 504];
    shop.handler.answers(&served);
    for (n, expected) in served.into_iter().enumerate() {
        let (status, _) = shop.send(order(&n.to_string()), "").await;
        assert_eq!(status, expected);
    }
    assert_eq!(shop.counts("replay").await.by_status, [0; 6]);
}

/// J-1: 002 has capacity limits among the reasons.
#[tokio::test(start_paused = true)]
async fn j_1_capacity_limits_without_an_effect_are_reasons() {
    fn gateway(status: u16, outcome: HandlerOutcome) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        response.extensions_mut().insert(outcome);
        response
    }
    let shop = Shop::new();
    shop.handler.answers(&[429]);
    shop.handler.will([
        Does::With(|| gateway(502, HandlerOutcome::NoEffect)),
        Does::With(|| gateway(504, HandlerOutcome::NoEffect)),
        Does::With(|| gateway(504, HandlerOutcome::Unknown)),
        Does::With(|| gateway(429, HandlerOutcome::Committed)),
        Does::With(|| gateway(500, HandlerOutcome::NoEffect)),
    ]);
    let dependency = (202, "DEPENDENCY_UNAVAILABLE");
    let expected = [
        (202, "OVERLOADED"),
        dependency,
        dependency,
        (504, ""),
        (429, ""),
        (500, ""),
    ];
    for (n, expected) in expected.into_iter().enumerate() {
        let (status, document) = shop.send(order(&n.to_string()), "").await;
        let reason = document["reason"].as_str().unwrap_or_default();
        assert_eq!((status, reason), expected, "{n}");
    }
    let worker = shop.work();
    while shop.counts("replay").await.of(Status::Completed) < 3 {
        tokio::time::sleep(SECOND).await;
    }
    drop(worker);

    let shop = Shop::with(|builder| builder.journaled_statuses([StatusCode::BAD_GATEWAY]));
    shop.handler.answers(&[429, 503]);
    for status in [429, 503] {
        assert_eq!(shop.send(order(&status.to_string()), "").await.0, status);
    }
}

/// J-3: the journal tells how a replay ended, also once the service is back.
#[tokio::test(start_paused = true)]
async fn j_3_a_repeat_after_the_service_is_back_is_told_of_its_replay() {
    let shop = Shop::new();
    shop.replay.maintenance().on(None);
    let done = shop.queue("1", "").await;
    let failed = shop.queue("2", "").await;
    let running = shop.queue("3", "").await;
    let worker = shop.work();
    shop.handler.answers(&[200, 400]);
    shop.handler.will([Does::Take(20 * SECOND)]);
    shop.replay.maintenance().off();
    assert_eq!(shop.ended(failed).await, Status::Failed);
    tokio::time::sleep(SECOND).await;
    let (status, document) = shop.send(order("1"), "").await;
    assert_eq!((status, &document["status"]), (200, &"completed".into()));
    assert_eq!(id(&document), done);
    let (status, document) = shop.send(order("2"), "").await;
    assert_eq!((status, &document["code"]), (409, &"REPLAY_FAILED".into()));
    let (status, document) = shop.send(order("3"), "").await;
    assert_eq!((status, &document["status"]), (202, &"processing".into()));
    assert_eq!(id(&document), running);
    assert_eq!(shop.handler.seen().len(), 3);
    // Another request under that key is none of them.
    assert_eq!(shop.send(order("1"), "another").await.0, 422);
    drop(worker);
}

/// Replay reads keys as an idempotency layer of the same dialect does.
#[tokio::test(start_paused = true)]
async fn j_8_a_key_is_the_same_quoted_and_bare_and_what_is_none_is_rejected() {
    let dialect = HttpDialect::new().header(HeaderName::from_static("x-key"));
    let replay = Replay::builder(MemoryStore::new(), Scope::new(|_| Some("ada")))
        .dialect(dialect)
        .replay_by_default()
        .build()
        .unwrap();
    replay.maintenance().on(None);
    let inner = service_fn(|_: Request<Full<Bytes>>| async {
        Ok::<_, BoxError>(Response::new(Full::<Bytes>::default()))
    });
    let app = replay.layer().layer(inner);
    for (key, status) in [("k", 202), ("\"k\"", 202), ("two words", 400)] {
        let request = Request::post("/pay").header("x-key", key);
        let request = request.body(Full::default()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), status, "{key}");
    }
    let filter = ReplayFilter::default();
    assert_eq!(replay.total("ada", &filter).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn j_1_an_overloaded_service_and_an_open_breaker_are_reasons() {
    let store = MemoryStore::new();
    let replay = Replay::builder(store, Scope::new(|_| Some("ada")))
        .build()
        .unwrap();
    let failing = |_: Request<Full<Bytes>>| async {
        let mut response = Response::new(Full::<Bytes>::default());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        Ok::<_, BoxError>(response)
    };
    let deps = Dependencies::new(Policy::http().service("t").build().unwrap());
    let stack = ServiceBuilder::new()
        .layer(CircuitBreakerLayer::new(deps.clone()))
        .service(service_fn(failing));
    let app = replay.layer().layer(stack);
    let send = async || {
        let request = Request::post("http://bank.example/pay").header("replay", "true");
        let request = request.body(Full::default()).unwrap();
        app.clone().oneshot(request).await.unwrap().status()
    };
    assert_eq!(send().await, 500, "it fails, and that is an answer");
    deps.get("bank.example").force_open();
    assert_eq!(send().await, 202, "the breaker is open");

    let full = ServiceBuilder::new()
        .load_shed()
        .concurrency_limit(1)
        .service(service_fn(|_: Request<Full<Bytes>>| {
            std::future::pending::<Result<Response<Full<Bytes>>, BoxError>>()
        }));
    let app = replay.layer().layer(full);
    let hanging = tokio::spawn({
        let request = Request::post("/pay").header("replay", "true");
        app.clone().oneshot(request.body(Full::default()).unwrap())
    });
    tokio::task::yield_now().await;
    let request = Request::post("/pay")
        .header("replay", "true")
        .body(Full::default());
    let response = app.oneshot(request.unwrap()).await.unwrap();
    assert_eq!(response.status(), 202);
    hanging.abort();
}

#[tokio::test(start_paused = true)]
async fn j_1_a_connection_that_can_t_be_made_is_a_reason_and_a_broken_one_is_none() {
    let replay = Replay::builder(MemoryStore::new(), Scope::new(|_| Some("ada")));
    let replay = replay.build().unwrap();
    let send = async |kind: io::ErrorKind| {
        let failing = move |_: Request<Full<Bytes>>| async move {
            Err::<Response<Full<Bytes>>, _>(BoxError::from(io::Error::from(kind)))
        };
        let app = replay.layer().layer(service_fn(failing));
        let request = Request::post("/pay").header("replay", "true");
        app.oneshot(request.body(Full::default()).unwrap()).await
    };
    let accepted = send(io::ErrorKind::ConnectionRefused).await.unwrap();
    assert_eq!(accepted.status(), 202);
    // It may have been executed.
    assert!(send(io::ErrorKind::ConnectionReset).await.is_err());
}

/// J-1, C-4: what the last attempt of a call says is not what became of the call.
#[tokio::test(start_paused = true)]
async fn j_1_what_an_earlier_attempt_may_have_done_is_not_done_again_later() {
    #[derive(Debug, Clone, Copy)]
    enum Meets {
        Error(io::ErrorKind),
        Unavailable,
        Overload,
    }
    use Meets::{Error, Overload, Unavailable};
    const REFUSED: Meets = Error(io::ErrorKind::ConnectionRefused);
    const RESET: Meets = Error(io::ErrorKind::ConnectionReset);

    let send = async |meets: [Meets; 2]| {
        let replay = Replay::builder(MemoryStore::new(), Scope::new(|_| Some("ada")));
        let replay = replay.build().unwrap();
        let policy = Policy::http().service("t").max_retries(1);
        let attempt = Arc::new(AtomicUsize::new(0));
        let attempts = service_fn(move |_: Request<Full<Bytes>>| {
            let met = meets[attempt.fetch_add(1, Ordering::Relaxed)];
            async move {
                match met {
                    Error(kind) => Err(BoxError::from(io::Error::from(kind))),
                    Overload => Err(tower::load_shed::error::Overloaded::new().into()),
                    Unavailable => {
                        let mut response = Response::new(Full::<Bytes>::default());
                        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                        Ok(response)
                    }
                }
            }
        });
        let stack = ServiceBuilder::new()
            .layer(replay.layer())
            .layer(RetryLayer::new(Dependencies::new(policy.build().unwrap())))
            .service(attempts);
        let request = Request::post("http://bank.example/pay")
            .header("replay", "true")
            .header("idempotency-key", "k");
        let response = stack.oneshot(request.body(Full::default()).unwrap()).await;
        response.map(|response| response.status().as_u16()).ok()
    };
    for meets in [
        [REFUSED, REFUSED],
        [Unavailable, Unavailable],
        [Unavailable, REFUSED],
    ] {
        assert_eq!(send(meets).await, Some(202), "{meets:?}");
    }
    assert_eq!(send([REFUSED, Overload]).await, Some(202));
    assert_eq!(send([RESET, Unavailable]).await, Some(503));
    assert_eq!(send([RESET, REFUSED]).await, None);
    assert_eq!(send([RESET, Overload]).await, None);
}

#[tokio::test(start_paused = true)]
async fn j_1_only_what_asks_for_it_is_journaled() {
    let shop = Shop::new();
    shop.handler.answers(&[503, 503]);
    assert_eq!(
        shop.send(plain("1"), "").await.0,
        503,
        "as the service says"
    );
    let never = plain("2").header("replay", "false");
    assert_eq!(shop.send(never, "").await.0, 503);
    assert_eq!(shop.counts("replay").await.by_status, [0; 6]);

    let shop = Shop::with(tower_reprise::delivery::replay::ReplayBuilder::replay_by_default);
    shop.handler.answers(&[503, 503]);
    assert_eq!(shop.send(plain("1"), "").await.0, 202);
    let never = plain("2").header("replay", "false");
    assert_eq!(shop.send(never, "").await.0, 503);
}

/// In maintenance, only journaled requests and those that change nothing get through.
#[tokio::test(start_paused = true)]
async fn j_1_in_maintenance_what_is_not_journaled_is_refused() {
    let shop = Shop::new();
    let get = || Request::get("/orders").header("x-user", "ada");
    let refused = async |request: http::request::Builder| {
        let request = request.body(Full::default()).unwrap();
        let response = shop.app.clone().oneshot(request).await.unwrap();
        let wait = response.headers().get("retry-after");
        let wait = wait.map(|wait| wait.to_str().unwrap().to_owned());
        let document: serde_json::Value =
            serde_json::from_slice(response.body()).unwrap_or_default();
        (response.status().as_u16(), document, wait)
    };
    shop.replay.maintenance().on(None);
    for request in [
        plain("1"),
        plain("2").header("replay", "false"),
        plain("3").method("PUT"),
        plain("4").method("PROPFIND"),
    ] {
        let (status, document, wait) = refused(request).await;
        assert_eq!((status, wait.as_deref()), (503, Some("60")), "{document}");
        assert_eq!(document["code"], "SERVER_MAINTENANCE");
    }
    let grpc = plain("5").header("content-type", "application/grpc");
    let grpc = grpc.body(Full::default()).unwrap();
    let response = shop.app.clone().oneshot(grpc).await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "14");
    // When it is known until when, and why.
    let until = std::time::SystemTime::now() + 7200 * SECOND;
    shop.replay.maintenance().announce("Migration", Some(until));
    let (_, document, wait) = refused(plain("1")).await;
    let wait: u64 = wait.unwrap().parse().unwrap();
    assert!((7000..=7200).contains(&wait), "{wait}");
    let detail = document["detail"].as_str().unwrap();
    assert!(detail.contains("Migration"), "{detail}");
    assert_eq!(shop.counts("replay").await.by_status, [0; 6]);
    assert!(shop.handler.seen().is_empty());

    // Requests that change nothing are served, and all requests after maintenance.
    assert_eq!(refused(get().header("replay", "true")).await.0, 200);
    shop.replay.maintenance().off();
    assert_eq!(refused(plain("1")).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn j_1_what_is_served_in_maintenance_can_be_chosen() {
    let shop = Shop::with(|builder| {
        builder.served_in_maintenance(|head| head.headers().contains_key("x-operator"))
    });
    shop.replay.maintenance().on(None);
    let get = || Request::get("/orders").header("x-user", "ada");
    for (request, expected) in [
        (plain("1"), 503),
        (plain("1").header("x-operator", "eve"), 200),
        (get(), 503),
        (get().header("x-operator", "eve"), 200),
        (order("2"), 202),
        (order("3").header("x-operator", "eve"), 200),
    ] {
        assert_eq!(shop.send(request, "").await.0, expected);
    }
    // It is still journaled if it can't be served.
    shop.handler.answers(&[503]);
    let request = order("4").header("x-operator", "eve");
    assert_eq!(shop.send(request, "").await.0, 202);

    // If reads can be journaled, they are journaled instead of served.
    let shop = Shop::with(|builder| builder.methods([http::Method::GET]));
    shop.replay.maintenance().on(None);
    assert_eq!(shop.send(get().header("replay", "true"), "").await.0, 202);
    assert_eq!(shop.send(get(), "").await.0, 503);
}

#[tokio::test(start_paused = true)]
async fn j_2_what_can_t_be_written_down_is_not_accepted() {
    let store = MemoryStore::builder().max_entries(1).build().unwrap();
    store.enqueue(NewEntry::new("other", "")).await.unwrap();
    let full = store.enqueue(NewEntry::new("other", "")).await.unwrap_err();
    assert_eq!(full.kind(), StoreErrorKind::Full);
    let shop = Shop::on(store, |builder| builder);
    shop.replay.maintenance().on(None);
    let (status, document) = shop.send(order("1"), "").await;
    assert_eq!(
        (status, &document["code"]),
        (503, &"REPLAY_UNAVAILABLE".into())
    );
    // The same when the service was asked first.
    shop.replay.maintenance().off();
    shop.handler.answers(&[503]);
    assert_eq!(shop.send(order("1"), "").await.0, 503);
    // Its key waits for no replay, and so does no repeat.
    assert_eq!(shop.send(order("1"), "").await.0, 200);
    assert_eq!(shop.handler.seen().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn j_3_the_same_key_is_the_same_replay() {
    let shop = Shop::new();
    shop.replay.maintenance().on(None);
    let first = shop.queue("1", "an order").await;
    let (_, again) = shop
        .send(order("1").header("x-request-id", "r-2"), "an order")
        .await;
    assert_eq!(id(&again), first);
    assert!(
        again.get("original_request_id").is_none(),
        "as it came first"
    );
    let (status, document) = shop.send(order("1"), "another order").await;
    assert_eq!(
        (status, &document["code"]),
        (422, &"IDEMPOTENCY_KEY_REUSED".into())
    );
    assert!(document.get("replay_id").is_none(), "nothing is revealed");
    // Somebody else's key is another one.
    let bob = Request::post("/orders?tenant=7")
        .header("x-user", "bob")
        .header("idempotency-key", "1")
        .header("replay", "true");
    let (status, document) = shop.send(bob, "another order").await;
    assert_eq!(status, 202);
    assert_ne!(id(&document), first);
    assert_eq!(shop.counts("replay").await.of(Status::Queued), 2);
}

#[tokio::test(start_paused = true)]
async fn j_3_what_is_over_is_told_as_such() {
    let shop = Shop::new();
    shop.replay.maintenance().on(None);
    let first = shop.queue("1", "an order").await;
    shop.replay.cancel("ada", first).await.unwrap();
    let second = shop.queue("1", "an order").await;
    assert_ne!(second, first, "the first was called off");
    let worker = shop.work();
    shop.replay.maintenance().off();
    assert_eq!(shop.ended(second).await, Status::Completed);
    shop.replay.maintenance().on(None);
    let (status, document) = shop.send(order("1"), "an order").await;
    assert_eq!((status, &document["status"]), (200, &"completed".into()));
    assert_eq!(id(&document), second);
    drop(worker);
}

/// A repeat must not take the end of a replay for a success if it was none.
#[tokio::test(start_paused = true)]
async fn j_3_j_8_a_repeat_is_told_how_it_ended() {
    let shop = Shop::new();
    shop.replay.maintenance().on(None);
    let worker = shop.work();
    let id = shop.queue("1", "").await;
    shop.handler.answers(&[400]);
    shop.replay.trigger("ada", id).await.unwrap();
    assert_eq!(shop.ended(id).await, Status::Failed);
    let request = order("1").body(Full::default()).unwrap();
    let response = shop.app.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 409);
    assert_eq!(response.headers()["x-should-retry"], "false");
    assert_eq!(response.headers()["location"], *format!("/replays/{id}"));
    let document: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!(document["code"], "REPLAY_FAILED");
    let detail = document["detail"].as_str().unwrap();
    assert!(detail.contains(&id.to_string()), "{detail}");

    // While it waits, and while it is replayed.
    shop.handler.will([Does::Take(60 * SECOND)]);
    let id = shop.queue("2", "").await;
    let again = async || shop.send(order("2"), "").await;
    let (status, document) = again().await;
    assert_eq!((status, &document["status"]), (202, &"queued".into()));
    shop.replay.trigger("ada", id).await.unwrap();
    tokio::time::sleep(SECOND).await;
    let (status, document) = again().await;
    assert_eq!((status, &document["status"]), (202, &"processing".into()));
    assert_eq!(shop.ended(id).await, Status::Completed);
    let (status, document) = again().await;
    assert_eq!((status, &document["status"]), (200, &"completed".into()));
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn j_13_credentials_are_not_written_down_and_the_principal_is() {
    let shop = Shop::new();
    shop.replay.maintenance().on(None);
    let secret = order("1")
        .header("authorization", "Bearer s3cret")
        .header("cookie", "s3cret");
    let (_, document) = shop.send(secret, "an order").await;
    let entry = shop.entry(id(&document)).await;
    assert_eq!(entry.owner, "ada");
    let payload = String::from_utf8_lossy(&entry.payload).into_owned();
    assert!(payload.contains("an order") && !payload.contains("s3cret"));

    let worker = shop.work();
    shop.replay.maintenance().off();
    assert_eq!(shop.ended(id(&document)).await, Status::Completed);
    let seen = &shop.handler.seen()[0];
    assert_eq!(seen.principal.as_deref(), Some("ada"));
    assert!(!seen.headers.contains(&"authorization".to_owned()));
    assert!(!seen.headers.iter().any(|name| name.starts_with("replay")));
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn j_13_nobody_s_request_is_not_journaled() {
    let shop = Shop::new();
    shop.replay.maintenance().on(None);
    let nobody = Request::post("/orders").header("replay", "true");
    let (status, document) = shop.send(nobody, "").await;
    assert_eq!(
        (status, &document["code"]),
        (403, &"REPLAY_ANONYMOUS".into())
    );
}

/// A truncated name would be another caller's, so a name that is too long is refused.
#[tokio::test(start_paused = true)]
async fn j_13_a_principal_is_kept_whole_or_not_at_all() {
    let shop = Shop::new();
    shop.replay.maintenance().on(None);
    for (length, expected) in [(255, 202), (256, 400)] {
        let request = Request::post("/orders").header("x-user", "a".repeat(length));
        let (status, _) = shop.send(request.header("replay", "true"), "").await;
        assert_eq!(status, expected, "{length}");
    }
}

#[tokio::test(start_paused = true)]
async fn j_15_options_are_kept_within_bounds() {
    let shop = Shop::with(|builder| builder.ttl(DAY, 2 * DAY));
    shop.replay.maintenance().on(None);
    let high = order("1")
        .header("replay-priority", "high")
        .header("replay-ttl", "60");
    let (_, document) = shop.send(high, "").await;
    let entry = shop.entry(id(&document)).await;
    assert_eq!(entry.priority, Priority::High);
    assert_eq!(entry.expires_at.since(entry.queued_at), 60 * SECOND);
    let long = order("2").header("replay-ttl", "99999999");
    let (_, document) = shop.send(long, "").await;
    let entry = shop.entry(id(&document)).await;
    assert_eq!(entry.expires_at.since(entry.queued_at), 2 * DAY);
    for (name, value) in [
        ("replay", "maybe"),
        ("replay-ttl", "soon"),
        ("replay-priority", "urgent"),
        ("replay-callback", "https://shop.example/hook"),
    ] {
        let (status, document) = shop.send(order("3").header(name, value), "").await;
        assert_eq!(
            (status, &document["code"]),
            (400, &"REPLAY_INVALID".into()),
            "{name}"
        );
    }
    assert!(shop.handler.seen().is_empty());
}

#[tokio::test(start_paused = true)]
async fn s_3_what_is_too_large_is_served_but_not_journaled() {
    let shop = Shop::with(|builder| builder.request_limit(10));
    let large = "more than ten bytes";
    assert_eq!(shop.send(order("1"), large).await.0, 200);
    shop.handler.answers(&[503]);
    assert_eq!(
        shop.send(order("2"), large).await.0,
        503,
        "as the service says"
    );
    shop.replay.maintenance().on(None);
    let (status, document) = shop.send(order("3"), large).await;
    assert_eq!(
        (status, &document["code"]),
        (413, &"REPLAY_TOO_LARGE".into())
    );
    assert_eq!(shop.store.list(Query::new("replay", 9)).await.unwrap(), []);
}

/// I-12: a bare 503 leaves the outcome unknown, unless the journal executes the request again: then
/// its record is the journal's, and a repeat is told of the replay.
#[tokio::test(start_paused = true)]
async fn i_12_a_request_that_is_journaled_for_its_reply_hands_its_record_over() {
    for (asks, expected) in [(true, [202, 202]), (false, [503, 409])] {
        let scope = || Scope::new(|_| Some("ada"));
        let replay = Replay::builder(MemoryStore::new(), scope());
        let idempotency = IdempotencyLayer::builder(MemoryStore::new())
            .scope(scope())
            .crash_policy(CrashPolicy::Unknown)
            .build()
            .unwrap();
        let calls = Arc::new(AtomicUsize::new(0));
        let handler = service_fn(move |_: Request<Full<Bytes>>| {
            let first = calls.fetch_add(1, Ordering::Relaxed) == 0;
            async move {
                let mut response = Response::new(Full::<Bytes>::default());
                if first {
                    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                }
                Ok::<_, BoxError>(response)
            }
        });
        let stack = ServiceBuilder::new()
            .layer(replay.build().unwrap().layer())
            .layer(idempotency)
            .service(handler);
        let mut answers = Vec::new();
        for _ in 0..2 {
            let request = Request::post("http://bank.example/pay")
                .header("replay", if asks { "true" } else { "false" })
                .header("idempotency-key", "k")
                .body(Full::default())
                .unwrap();
            let response = stack.clone().oneshot(request).await.unwrap();
            answers.push(response.status().as_u16());
        }
        assert_eq!(answers, expected, "{asks}");
    }
}
