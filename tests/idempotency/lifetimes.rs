//! Executions that go on behind their callers' backs, for how long, and what is left of them: I-25,
//! I-26, I-29.

use bytes::Bytes;
use tower::{Layer, ServiceExt, service_fn};
use tower_reprise::{
    error::BoxError,
    server::idempotency::{
        Drained,
        events::{Consumed, EventDedupLayer},
    },
    store::{CrashPolicy, MemoryStore, StoreErrorKind},
};

use crate::setup::{
    Fault, Flaky, Frames, Handler, LEASE, SECOND, Verb, builder, post, send, settle, start, status,
};

const ALWAYS: usize = usize::MAX;

/// I-25: what is left of them is (executions, settlements).
fn left(drained: Drained) -> (usize, usize) {
    (drained.executions, drained.settlements)
}

#[tokio::test(start_paused = true)]
async fn i_25_a_drain_waits_for_executions_whose_caller_left() {
    let handler = Handler::held();
    let layer = builder(MemoryStore::new(), CrashPolicy::Unknown)
        .build()
        .unwrap();
    let drain = layer.drain();
    let server = handler.serve_by(&layer, |_| status(200, "paid"));
    assert!(drain.wait(SECOND).await.is_complete());
    for key in ["a", "b"] {
        let gone = start(&server, post(key));
        settle().await;
        gone.abort();
    }
    assert_eq!(left(drain.wait(SECOND).await), (2, 0));
    handler.let_through(1);
    assert_eq!(left(drain.wait(SECOND).await), (1, 0));
    // It ends while it is waited for, and not before.
    let waiting = tokio::spawn({
        let drain = drain.clone();
        async move { drain.wait(60 * SECOND).await }
    });
    settle().await;
    assert!(!waiting.is_finished());
    handler.let_through(1);
    assert!(waiting.await.unwrap().is_complete());
    assert_eq!(handler.ends(), 2);
    assert!(send(&server, post("a")).await.is_replayed());
}

#[tokio::test(start_paused = true)]
async fn i_25_a_drain_waits_for_settlements_that_the_store_has_not_taken() {
    let (store, handler) = (Flaky::default(), Handler::new());
    let layer = builder(store.clone(), CrashPolicy::Unknown)
        .build()
        .unwrap();
    let drain = layer.drain();
    let server = handler.serve_by(&layer, |_| status(200, "paid"));
    let down = Fault::Error(StoreErrorKind::Unavailable);
    store.fail(Verb::Complete, down, ALWAYS);
    assert_eq!(send(&server, post("k")).await.status, 200);
    assert_eq!(left(drain.wait(SECOND).await), (0, 1));
    store.heal();
    assert!(drain.wait(60 * SECOND).await.is_complete());
    assert!(send(&server, post("k")).await.is_replayed());
}

#[tokio::test(start_paused = true)]
async fn i_25_a_drain_waits_for_events() {
    let layer = EventDedupLayer::builder(MemoryStore::new(), "ledger")
        .id(|event: &u32| Some(event.to_le_bytes()))
        .crash_policy(CrashPolicy::Unknown)
        .build()
        .unwrap();
    let drain = layer.drain();
    let consumer = layer.layer(service_fn(|event: u32| async move {
        tokio::time::sleep(10 * SECOND).await;
        Ok::<_, BoxError>(event)
    }));
    let gone = tokio::spawn(consumer.clone().oneshot(7));
    settle().await;
    gone.abort();
    assert_eq!(left(drain.wait(SECOND).await), (1, 0));
    assert!(drain.wait(60 * SECOND).await.is_complete());
    let again = consumer.oneshot(7).await.unwrap();
    assert_eq!(again, Consumed::Duplicate);
}

/// I-26: a handler that hangs keeps its key for a quarter of an hour, or as configured.
#[tokio::test(start_paused = true)]
async fn i_26_a_hung_handler_does_not_hold_its_key_for_ever() {
    for (configured, minutes) in [(None, 15), (Some(5), 5)] {
        let handler = Handler::held();
        let mut layer = builder(MemoryStore::new(), CrashPolicy::Unknown);
        if let Some(minutes) = configured {
            layer = layer.max_execution(minutes * 60 * SECOND);
        }
        let server = handler.count(layer);
        let _hung = start(&server, post("k"));
        settle().await;
        tokio::time::sleep(minutes * 60 * SECOND - SECOND).await;
        let answer = send(&server, post("k")).await;
        assert_eq!(answer.refusal(), (409, "processing".into()));
        tokio::time::sleep(LEASE + SECOND).await;
        let answer = send(&server, post("k")).await;
        assert_eq!(answer.refusal(), (409, "outcome-unknown".into()));
        assert_eq!(handler.runs(), 1);
    }
    let short = builder(MemoryStore::new(), CrashPolicy::Unknown).max_execution(LEASE / 2);
    let error = short.build().err().unwrap().to_string();
    assert!(error.contains("idempotency.max_execution"), "{error}");
}

/// I-29: however many there are, if they fit into memory.
#[tokio::test(start_paused = true)]
async fn i_29_settlements_wait_for_a_store_by_the_thousand() {
    const MANY: usize = 3000;
    let (store, handler) = (Flaky::default(), Handler::new());
    let layer = builder(store.clone(), CrashPolicy::Unknown)
        .build()
        .unwrap();
    let drain = layer.drain();
    let server = handler.serve_by(&layer, |_| status(200, "paid"));
    let down = Fault::Error(StoreErrorKind::Unavailable);
    store.fail(Verb::Complete, down, ALWAYS);
    for n in 0..MANY {
        assert_eq!(send(&server, post(&n.to_string())).await.status, 200);
    }
    assert_eq!(left(drain.wait(SECOND).await), (0, MANY));
    store.heal();
    assert!(drain.wait(60 * SECOND).await.is_complete());
    for n in 0..MANY {
        assert!(
            send(&server, post(&n.to_string())).await.is_replayed(),
            "{n}"
        );
    }
    assert_eq!(handler.runs(), MANY);
}

/// I-29: past the bound replies are dropped, and the record of an execution is not.
#[tokio::test(start_paused = true)]
async fn i_29_a_reply_that_memory_has_no_room_for_is_not_retained() {
    let (store, handler) = (Flaky::default(), Handler::new());
    let layer = builder(store.clone(), CrashPolicy::Unknown).unsettled_limit(300_000);
    let server = handler.serve(layer, |_| {
        let mut large = status(200, "");
        *large.body_mut() = Frames::from(Bytes::from(vec![b'x'; 100_000]));
        large
    });
    let down = Fault::Error(StoreErrorKind::Unavailable);
    store.fail(Verb::Complete, down, ALWAYS);
    let keys = ["a", "b", "c", "d", "e"];
    for key in keys {
        assert_eq!(send(&server, post(key)).await.status, 200);
    }
    store.heal();
    tokio::time::sleep(LEASE).await;
    let mut answers = Vec::new();
    for key in keys {
        answers.push(send(&server, post(key)).await.status);
    }
    assert_eq!(answers, [200, 200, 409, 409, 409]);
    assert_eq!(handler.runs(), keys.len());
}
