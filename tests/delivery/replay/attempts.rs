//! Attempts of a replay, and the record that they share with direct requests.

use bytes::Bytes;
use http::{Response, StatusCode};
use tower_reprise::{
    delivery::replay::ReplayId, server::idempotency::HandlerOutcome, store::journal::Status,
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
