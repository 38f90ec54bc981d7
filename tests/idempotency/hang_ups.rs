//! Handlers that lose their client: I-16.

use std::time::Duration;

use tower::ServiceExt;
use tower_reprise::store::{CrashPolicy, MemoryStore};

use crate::setup::{
    Fault, Flaky, Handler, LEASE, SECOND, Verb, builder, post, send, settle, start,
};

#[tokio::test(start_paused = true)]
async fn i_16_a_client_that_hangs_up_finds_its_reply_later() {
    let handler = Handler::held();
    let server = handler.count(builder(MemoryStore::new(), CrashPolicy::Unknown));
    let first = start(&server, post("k"));
    settle().await;
    assert_eq!(handler.runs(), 1);
    first.abort();
    settle().await;
    tokio::time::sleep(2 * LEASE).await;
    assert_eq!(send(&server, post("k")).await.status, 409);
    handler.let_through(1);
    settle().await;
    assert_eq!(handler.ends(), 1);
    let answer = send(&server, post("k")).await;
    assert_eq!((&*answer.body, answer.is_replayed()), ("run 1", true));
}

/// I-16: what is done at its first step is stored at it too, whoever takes the reply.
#[tokio::test(start_paused = true)]
async fn i_16_a_client_that_hangs_up_after_one_step() {
    for (handler, done) in [(Handler::new(), true), (Handler::held(), false)] {
        let server = handler.count(builder(MemoryStore::new(), CrashPolicy::Unknown));
        let mut first = tokio_test::task::spawn(server.clone().oneshot(post("k")));
        let polled = first.poll();
        assert_eq!(polled.is_ready(), done);
        drop((first, polled));
        handler.let_through(1);
        settle().await;
        let answer = send(&server, post("k")).await;
        assert_eq!(
            (&*answer.body, answer.is_replayed()),
            ("run 1", true),
            "done: {done}"
        );
        assert_eq!((handler.runs(), handler.ends()), (1, 1), "done: {done}");
    }
}

/// I-16: the handler was done at its first step, and the store is not.
#[tokio::test(start_paused = true)]
async fn i_16_a_client_that_hangs_up_while_the_reply_is_stored() {
    let (store, handler) = (Flaky::default(), Handler::new());
    let server = handler.count(builder(store.clone(), CrashPolicy::Unknown));
    store.fail(Verb::Complete, Fault::Slow(SECOND), 1);
    let mut first = tokio_test::task::spawn(server.clone().oneshot(post("k")));
    assert!(first.poll().is_pending());
    assert_eq!(handler.ends(), 1);
    drop(first);
    tokio::time::sleep(2 * SECOND).await;
    let answer = send(&server, post("k")).await;
    assert_eq!((&*answer.body, answer.is_replayed()), ("run 1", true));
    assert_eq!(handler.runs(), 1);
}

/// I-16: one that hangs up while its key is being claimed leaves nothing behind, not even under
/// a policy that would call it unknown.
#[tokio::test(start_paused = true)]
async fn i_16_a_client_that_hangs_up_during_the_claim() {
    // At which point the answer arrives, and nobody is there to take it.
    for delay in [Duration::ZERO, Duration::from_millis(1)] {
        let (store, handler) = (Flaky::default(), Handler::new());
        let server = handler.count(builder(store.clone(), CrashPolicy::Unknown));
        store.fail(Verb::Claim, Fault::Slow(SECOND), 1);
        let first = start(&server, post("k"));
        settle().await;
        tokio::time::advance(delay).await;
        first.abort();
        tokio::time::sleep(2 * SECOND).await;
        assert_eq!((handler.runs(), store.store.len()), (0, 0));
        assert_eq!(store.calls(Verb::Release), 1);
        assert_eq!(send(&server, post("k")).await.body, "run 1");
    }
}
