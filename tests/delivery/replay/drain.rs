use http::StatusCode;
use http_body_util::Full;
use tower::ServiceExt;
use tower_reprise::{
    Dependencies, Policy,
    delivery::dead_letter::{DeadLetters, Redriven},
    store::journal::{Journal, LeaseRequest, NewEntry, Status},
};

use super::shop::*;

async fn queued(shop: &Shop, bodies: &[&str]) -> Vec<tower_reprise::delivery::replay::ReplayId> {
    shop.replay.maintenance().on(None);
    let mut ids = Vec::new();
    for body in bodies {
        ids.push(shop.queue(body, body).await);
    }
    ids
}

#[tokio::test(start_paused = true)]
async fn j_5_replays_in_order_of_priority_and_of_coming() {
    let shop = Shop::with(|builder| builder.concurrency(1));
    shop.replay.maintenance().on(None);
    for (key, priority) in [
        ("a", "low"),
        ("b", "normal"),
        ("c", "high"),
        ("d", "normal"),
        ("e", "high"),
    ] {
        let (status, _) = shop
            .send(order(key).header("replay-priority", priority), key)
            .await;
        assert_eq!(status, 202);
    }
    let worker = shop.work();
    tokio::time::sleep(60 * SECOND).await;
    assert!(shop.handler.seen().is_empty(), "not during maintenance");
    shop.replay.maintenance().off();
    while shop.counts("replay").await.of(Status::Completed) < 5 {
        tokio::time::sleep(SECOND).await;
    }
    assert_eq!(shop.handler.bodies(), ["c", "e", "b", "d", "a"]);
    worker.shutdown(SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn j_4_what_another_path_did_is_not_done_again() {
    let shop = Shop::new();
    let id = queued(&shop, &["1"]).await[0];
    shop.replay.maintenance().off();
    // The caller did not wait.
    assert_eq!(shop.send(plain("1"), "1").await.0, 200);
    let worker = shop.work();
    assert_eq!(shop.ended(id).await, Status::Completed);
    assert_eq!(shop.handler.seen().len(), 1, "it was not run again");
    let reply = shop.replay.reply("ada", id).await.unwrap().unwrap();
    assert_eq!(reply.body(), "{\"order\":7}");
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn t_8_a_replay_that_is_done_keeps_its_request_id_and_neither_body_nor_query() {
    let shop = Shop::new();
    shop.replay.maintenance().on(None);
    let mut ids = Vec::new();
    for (key, ttl) in [("1", "600"), ("2", "60")] {
        let order = order(key)
            .header("x-request-id", key)
            .header("replay-ttl", ttl);
        ids.push(id(&shop.send(order, "an order of teapots").await.1));
    }
    tokio::time::sleep(61 * SECOND).await;
    shop.replay.maintenance().off();
    let worker = shop.work();
    for (at, ended) in [(0, Status::Completed), (1, Status::Expired)] {
        while !is_settled(&shop, ids[at]).await {
            tokio::time::sleep(SECOND).await;
        }
        assert_eq!(shop.status(ids[at]).await, ended);
        let payload = shop.entry(ids[at]).await.payload;
        for gone in ["teapots", "tenant=7"] {
            let mut parts = payload.windows(gone.len());
            assert!(!parts.any(|bytes| bytes == gone.as_bytes()), "{gone}");
        }
        let status = shop.replay.status("ada", ids[at]).await.unwrap();
        let id = (at + 1).to_string();
        assert_eq!(status.original_request_id, Some(id));
        assert_eq!(status.reason, "SERVER_MAINTENANCE");
    }
    drop(worker);
}

async fn is_settled(shop: &Shop, id: tower_reprise::delivery::replay::ReplayId) -> bool {
    !shop.entry(id).await.history.is_empty()
}

#[tokio::test(start_paused = true)]
async fn j_4_a_request_without_a_key_gets_one() {
    let shop = Shop::new();
    shop.replay.maintenance().on(None);
    let keyless = http::Request::post("/orders")
        .header("x-user", "ada")
        .header("replay", "true");
    let (_, document) = shop.send(keyless, "").await;
    let worker = shop.work();
    shop.replay.maintenance().off();
    shop.ended(id(&document)).await;
    let key = &shop.handler.seen()[0].key;
    assert_eq!(
        format!("rpl_{key}"),
        document["replay_id"].as_str().unwrap()
    );
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn j_6_past_its_time_it_is_expired_and_never_started() {
    let shop = Shop::new();
    shop.replay.maintenance().on(None);
    let (_, document) = shop.send(order("1").header("replay-ttl", "60"), "").await;
    let worker = shop.work();
    tokio::time::sleep(61 * SECOND).await;
    assert_eq!(shop.status(id(&document)).await, Status::Expired);
    shop.replay.maintenance().off();
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(shop.entry(id(&document)).await.attempts, 0);
    assert!(shop.handler.seen().is_empty());
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn j_11_transient_failures_are_attempted_three_times() {
    let shop = Shop::new();
    let ids = queued(&shop, &["1", "2"]).await;
    // 429 and 408 are released by the idempotency layer, so that a repeat is executed.
    shop.handler.answers(&[429, 408, 429]);
    let worker = shop.work();
    shop.replay.trigger("ada", ids[0]).await.unwrap();
    assert_eq!(shop.ended(ids[0]).await, Status::Failed);
    let entry = shop.entry(ids[0]).await;
    assert_eq!(entry.attempts, 3);
    assert_eq!(entry.history.len(), 3);
    let gaps: Vec<_> = entry
        .history
        .windows(2)
        .map(|two| two[1].at.since(two[0].at))
        .collect();
    assert!(gaps.iter().all(|gap| *gap <= 10 * SECOND), "{gaps:?}");
    assert_eq!(shop.handler.bodies(), ["1", "1", "1"]);

    shop.handler.answers(&[429]);
    shop.replay.maintenance().off();
    assert_eq!(
        shop.ended(ids[1]).await,
        Status::Completed,
        "the second attempt succeeds"
    );
    assert_eq!(shop.entry(ids[1]).await.attempts, 2);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn j_11_permanent_failures_end_at_once_among_the_dead_letters() {
    let shop = Shop::new();
    let id = queued(&shop, &["1"]).await[0];
    shop.handler
        .will([Does::Answer(StatusCode::BAD_REQUEST, "no such customer")]);
    let worker = shop.work();
    shop.replay.maintenance().off();
    assert_eq!(shop.ended(id).await, Status::Failed);
    assert_eq!(shop.handler.seen().len(), 1);
    let reply = shop.replay.reply("ada", id).await.unwrap().unwrap();
    assert_eq!(
        (reply.status(), &**reply.body()),
        (StatusCode::BAD_REQUEST, &b"no such customer"[..])
    );

    let letters = DeadLetters::new(shop.store.clone());
    let letter = letters.get(id.entry()).await.unwrap().unwrap();
    assert_eq!(
        (&*letter.reason, &*letter.payload),
        ("replied 400", &b"1"[..])
    );
    assert_eq!(letter.headers["idempotency-key"], "1");
    assert!(!letter.headers.contains_key("authorization"));
    drop(worker);
}

/// The keys that the handler saw since the last time.
fn keys(shop: &Shop, seen: &mut usize) -> Vec<String> {
    let all = shop.handler.seen();
    let keys = all[*seen..].iter().map(|seen| seen.key.clone()).collect();
    *seen = all.len();
    keys
}

/// An entry that died of a reply that is kept is executed once for each redrive, whether or not it
/// came with a key.
#[tokio::test(start_paused = true)]
async fn q_3_a_redrive_is_executed_once() {
    for key in [Some("k"), Some("\"k\""), None] {
        let shop = Shop::with(|builder| builder.response_limit(10));
        shop.replay.maintenance().on(None);
        let request = http::Request::post("/orders").header("x-user", "ada");
        let request = request.header("replay", "true");
        let request = match key {
            Some(key) => request.header("idempotency-key", key),
            None => request,
        };
        let id = id(&shop.send(request, "").await.1);
        let worker = shop.work();
        shop.replay.maintenance().off();
        shop.handler.will(
            [400, 501, 400].map(|status| Does::Answer(StatusCode::from_u16(status).unwrap(), "no")),
        );
        assert_eq!(shop.ended(id).await, Status::Failed);
        let mut seen = 0;
        let first = key.map_or(id.entry().to_string(), ToOwned::to_owned);
        assert_eq!(keys(&shop, &mut seen), [first]);
        let letters = DeadLetters::new(shop.store.clone());
        for n in 1..=3 {
            assert_eq!(letters.redrive(id.entry()).await.unwrap(), Redriven::Queued);
            assert_eq!(
                letters.redrive(id.entry()).await.unwrap(),
                Redriven::NotDead(Status::Queued)
            );
            let ended = shop.ended(id).await;
            let quote = key.filter(|key| key.starts_with('"')).map_or("", |_| "\"");
            let of_redrive = format!("{quote}{}-{n}{quote}", id.entry());
            assert_eq!(keys(&shop, &mut seen), [of_redrive], "once");
            let reply = shop.replay.reply("ada", id).await.unwrap();
            match n {
                3 => {
                    assert_eq!(ended, Status::Completed);
                    assert!(
                        reply.is_none(),
                        "it is too large, and the one before is past"
                    );
                }
                _ => assert_eq!(
                    (ended, reply.unwrap().body()),
                    (Status::Failed, &"no".into())
                ),
            }
        }
        drop(worker);
    }
}

/// J-4: what succeeded is not done again by a redrive.
#[tokio::test(start_paused = true)]
async fn q_3_j_4_a_redrive_does_not_repeat_what_succeeded() {
    let shop = Shop::new();
    let ids = queued(&shop, &["1", "2"]).await;
    let letters = DeadLetters::new(shop.store.clone());
    let worker = shop.work();
    // Its caller came again, later and directly.
    shop.handler.answers(&[429, 429, 429, 200]);
    shop.replay.trigger("ada", ids[0]).await.unwrap();
    assert_eq!(shop.ended(ids[0]).await, Status::Failed);
    let direct = plain("1").body(Full::from("1")).unwrap();
    assert_eq!(
        shop.inner.clone().oneshot(direct).await.unwrap().status(),
        200
    );
    letters.redrive(ids[0].entry()).await.unwrap();
    shop.replay.trigger("ada", ids[0]).await.unwrap();
    assert_eq!(shop.ended(ids[0]).await, Status::Completed);
    assert_eq!(shop.handler.seen().len(), 4);

    // The worker that redrove it did not live to see its end.
    shop.handler.answers(&[400]);
    shop.handler.will([Does::Take(10 * SECOND)]);
    shop.replay.trigger("ada", ids[1]).await.unwrap();
    assert_eq!(shop.ended(ids[1]).await, Status::Failed);
    letters.redrive(ids[1].entry()).await.unwrap();
    shop.replay.trigger("ada", ids[1]).await.unwrap();
    tokio::time::sleep(SECOND).await;
    assert_eq!(shop.handler.seen().len(), 6);
    drop(worker);
    let worker = shop.work();
    shop.replay.maintenance().off();
    assert_eq!(shop.ended(ids[1]).await, Status::Completed);
    assert_eq!(shop.entry(ids[1]).await.attempts, 2);
    let reply = shop.replay.reply("ada", ids[1]).await.unwrap().unwrap();
    assert_eq!(
        (shop.handler.seen().len(), &**reply.body()),
        (6, &b"late"[..])
    );
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn j_11_a_503_is_no_attempt_and_the_drain_pauses() {
    let shop = Shop::new();
    let ids = queued(&shop, &["1", "2", "3"]).await;
    shop.handler.answers(&[503, 503, 503, 503, 503, 503]);
    let worker = shop.work();
    shop.replay.maintenance().off();
    tokio::time::sleep(SECOND / 2).await;
    assert_eq!(
        shop.handler.seen().len(),
        1,
        "one was tried, and the others are left alone"
    );
    for id in ids {
        assert_eq!(shop.ended(id).await, Status::Completed);
        assert_eq!(shop.entry(id).await.attempts, 1);
    }
    assert_eq!(shop.handler.seen().len(), 9);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn j_12_what_kills_its_worker_ends_there_too() {
    let shop = Shop::new();
    let id = queued(&shop, &["1"]).await[0];
    shop.replay.maintenance().off();
    // Three workers lease it and vanish.
    for n in 1..=3 {
        let want = LeaseRequest::new("replay", "ada", 1, 30 * SECOND);
        let leased = shop.store.lease(want).await.unwrap();
        assert_eq!(leased[0].attempts, n);
        tokio::time::advance(31 * SECOND).await;
    }
    let worker = shop.work();
    assert_eq!(shop.ended(id).await, Status::Failed);
    assert!(
        shop.handler.seen().is_empty(),
        "it was not started a fourth time"
    );
    let entry = shop.entry(id).await;
    assert_eq!(entry.history.last().unwrap().note, "its workers died of it");
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn j_12_a_panic_and_a_hang_are_failed_attempts() {
    let shop = Shop::with(|builder| builder.timeout(5 * SECOND));
    let id = queued(&shop, &["1"]).await[0];
    shop.handler.will([Does::Panic, Does::Take(60 * SECOND)]);
    let worker = shop.work();
    shop.replay.maintenance().off();
    assert_eq!(shop.ended(id).await, Status::Completed);
    let notes: Vec<_> = shop
        .entry(id)
        .await
        .history
        .into_iter()
        .map(|n| n.note)
        .collect();
    assert_eq!(notes, ["http_500", "timeout", "replied 200"]);
    let reply = shop.replay.reply("ada", id).await.unwrap().unwrap();
    assert_eq!(
        reply.body(),
        "late",
        "what was begun went on, and was not begun again"
    );
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn j_14_a_worker_that_stops_gives_back_or_finishes() {
    let shop = Shop::with(|builder| builder.timeout(600 * SECOND));
    let ids = queued(&shop, &["1", "2"]).await;
    shop.handler.will([Does::Take(60 * SECOND)]);
    let worker = shop.work();
    shop.replay.maintenance().off();
    tokio::time::sleep(SECOND).await;
    assert_eq!(shop.status(ids[0]).await, Status::Processing);
    worker.shutdown(SECOND).await;
    let entry = shop.entry(ids[0]).await;
    assert_eq!((entry.status, entry.attempts), (Status::Queued, 0));
    assert_eq!(entry.history[0].note, "interrupted by a shutdown");
    // Another one goes on; the idempotency lease of the first is waited for.
    let worker = shop.work();
    for id in ids {
        assert_eq!(shop.ended(id).await, Status::Completed);
    }
    worker.shutdown(SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn j_9_what_is_triggered_runs_during_maintenance() {
    let shop = Shop::new();
    let ids = queued(&shop, &["1", "2"]).await;
    let worker = shop.work();
    shop.replay.trigger("ada", ids[1]).await.unwrap();
    assert_eq!(shop.ended(ids[1]).await, Status::Completed);
    assert_eq!(shop.status(ids[0]).await, Status::Queued);
    drop(worker);
}

fn policy() -> Policy {
    Policy::http().service("t").build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn g_5_the_drain_waits_for_its_dependency() {
    let deps = Dependencies::new(policy());
    let shop = Shop::with(|builder| builder.paced_by(&deps, "bank"));
    let id = queued(&shop, &["1"]).await[0];
    deps.get("bank").force_open();
    let worker = shop.work();
    shop.replay.maintenance().off();
    tokio::time::sleep(60 * SECOND).await;
    assert!(shop.handler.seen().is_empty(), "held back");
    deps.get("bank").reset();
    assert_eq!(shop.ended(id).await, Status::Completed, "and then not");
    drop(worker);
}

/// Whatever the registry did with it since: it is the dependency of that name that counts.
#[tokio::test(start_paused = true)]
async fn g_5_g_8_p_4_the_drain_waits_for_what_the_registry_has_now() {
    for reloads in [true, false] {
        let deps = Dependencies::new(policy());
        let shop = Shop::with(|builder| builder.paced_by(&deps, "bank"));
        let id = queued(&shop, &["1"]).await[0];
        let before = deps.get("bank");
        if reloads {
            deps.reload(policy());
        } else {
            // Nobody used it for long, and others came.
            for n in 0..3 {
                tokio::time::advance(400 * SECOND).await;
                let _ = deps.get(&format!("other-{n}"));
            }
        }
        assert!(!std::sync::Arc::ptr_eq(&before, &deps.get("bank")));
        deps.get("bank").force_open();
        let worker = shop.work();
        shop.replay.maintenance().off();
        tokio::time::sleep(60 * SECOND).await;
        assert!(shop.handler.seen().is_empty(), "held back: {reloads}");
        deps.get("bank").reset();
        assert_eq!(shop.ended(id).await, Status::Completed, "and then not");
        drop(worker);
    }
}

#[tokio::test(start_paused = true)]
async fn s_3_an_entry_that_can_t_be_read_is_a_dead_letter() {
    let shop = Shop::new();
    shop.store
        .enqueue(NewEntry::new("replay", "garbage"))
        .await
        .unwrap();
    let worker = shop.work();
    while shop.counts("replay").await.of(Status::Failed) < 1 {
        tokio::time::sleep(SECOND).await;
    }
    drop(worker);
}
