//! Stores that fail: I-21 to I-23.

use std::time::Duration;

use tower_reprise::store::{CrashPolicy, MemoryStore, StoreErrorKind};

use crate::setup::{
    ALWAYS, DAY, Fault, Flaky, Handler, LEASE, SECOND, Verb, builder, post, send, settle, start,
    status,
};

const KINDS: [StoreErrorKind; 7] = [
    StoreErrorKind::Unavailable,
    StoreErrorKind::Timeout,
    StoreErrorKind::PoolExhausted,
    StoreErrorKind::Full,
    StoreErrorKind::NewerSchema,
    StoreErrorKind::Corrupt,
    StoreErrorKind::Other,
];

#[tokio::test(start_paused = true)]
async fn i_21_a_store_that_is_down_fails_closed() {
    for kind in KINDS {
        let (store, handler) = (Flaky::default(), Handler::new());
        let server = handler.count(builder(store.clone(), CrashPolicy::Reexecute));
        store.fail(Verb::Claim, Fault::Error(kind), ALWAYS);
        let answer = send(&server, post("k")).await;
        assert_eq!(answer.refusal(), (503, "unavailable".into()), "{kind:?}");
        assert_eq!(answer.headers["retry-after"], "1");
        assert_eq!(handler.runs(), 0);
        // And it recovers by itself.
        store.heal();
        assert_eq!(send(&server, post("k")).await.body, "run 1");
    }
}

#[tokio::test(start_paused = true)]
async fn i_21_a_store_that_hangs_fails_closed() {
    let (store, handler) = (Flaky::default(), Handler::new());
    let server = handler.count(builder(store.clone(), CrashPolicy::Reexecute));
    store.fail(Verb::Claim, Fault::Hang, ALWAYS);
    let started = tokio::time::Instant::now();
    let answer = send(&server, post("k")).await;
    assert_eq!(answer.refusal(), (503, "unavailable".into()));
    assert_eq!(started.elapsed().as_secs(), 10, "two times five seconds");
    assert_eq!(handler.runs(), 0);
}

/// I-21: a claim whose answer got lost is repeated, and known again.
#[tokio::test(start_paused = true)]
async fn i_21_a_claim_is_repeated() {
    for fault in [
        Fault::Error(StoreErrorKind::Unavailable),
        Fault::Error(StoreErrorKind::PoolExhausted),
        Fault::Lost,
        Fault::Hang,
    ] {
        let (store, handler) = (Flaky::default(), Handler::new());
        let server = handler.count(builder(store.clone(), CrashPolicy::Reexecute));
        store.fail(Verb::Claim, fault, 1);
        let answer = send(&server, post("k")).await;
        assert_eq!((answer.status, &*answer.body), (200, "run 1"), "{fault:?}");
        assert!(!handler.execution(0).is_orphan());
    }
    // A permanent error is not retried.
    let (store, handler) = (Flaky::default(), Handler::new());
    let server = handler.count(builder(store.clone(), CrashPolicy::Reexecute));
    store.fail(Verb::Claim, Fault::Error(StoreErrorKind::NewerSchema), 1);
    assert_eq!(send(&server, post("k")).await.status, 503);
    assert_eq!(store.calls(Verb::Claim), 1);
}

/// I-21: failing open is opt-in, and never for what is there but can't be read.
#[tokio::test(start_paused = true)]
async fn i_21_failing_open() {
    for kind in KINDS {
        let (store, handler) = (Flaky::default(), Handler::new());
        let server = handler.count(builder(store.clone(), CrashPolicy::Reexecute).fail_open());
        store.fail(Verb::Claim, Fault::Error(kind), ALWAYS);
        let open = !matches!(
            kind,
            StoreErrorKind::NewerSchema | StoreErrorKind::Corrupt | StoreErrorKind::Other
        );
        for run in 1..=2 {
            let answer = send(&server, post("k")).await;
            if open {
                assert_eq!(answer.body, format!("run {run}"), "{kind:?}");
            } else {
                assert_eq!(answer.status, 503, "{kind:?}");
            }
        }
        assert_eq!(handler.runs(), if open { 2 } else { 0 });
    }
}

/// I-22: the reply is sent, and stored as soon as the store is back.
#[tokio::test(start_paused = true)]
async fn i_22_a_completion_is_repeated() {
    for fault in [
        Fault::Error(StoreErrorKind::Unavailable),
        Fault::Error(StoreErrorKind::Other),
        Fault::Lost,
        Fault::Hang,
    ] {
        let (store, handler) = (Flaky::default(), Handler::new());
        let server = handler.count(builder(store.clone(), CrashPolicy::Unknown));
        store.fail(Verb::Complete, fault, ALWAYS);
        let first = send(&server, post("k")).await;
        assert_eq!((first.status, &*first.body), (200, "run 1"), "{fault:?}");
        // Longer than the lease, which is renewed.
        tokio::time::sleep(5 * LEASE).await;
        let answer = send(&server, post("k")).await;
        if fault != Fault::Lost {
            assert_eq!(answer.refusal(), (409, "processing".into()), "{fault:?}");
        }
        store.heal();
        tokio::time::sleep(LEASE).await;
        let answer = send(&server, post("k")).await;
        assert_eq!((&*answer.body, answer.is_replayed()), ("run 1", true));
        assert_eq!(handler.runs(), 1);
        // And then it is let be.
        let calls = store.calls(Verb::Complete) + store.calls(Verb::Renew);
        tokio::time::sleep(5 * LEASE).await;
        assert_eq!(
            store.calls(Verb::Complete) + store.calls(Verb::Renew),
            calls
        );
    }
}

/// I-22: how long the caller waits for a store that does not answer.
#[tokio::test(start_paused = true)]
async fn i_22_the_reply_does_not_wait_for_ever() {
    let (store, handler) = (Flaky::default(), Handler::new());
    let timeout = Duration::from_secs(2);
    let server =
        handler.count(builder(store.clone(), CrashPolicy::Reexecute).store_timeout(timeout));
    store.fail(Verb::Complete, Fault::Hang, 1);
    let started = tokio::time::Instant::now();
    assert_eq!(send(&server, post("k")).await.body, "run 1");
    assert_eq!(started.elapsed().as_secs(), 2);
    tokio::time::sleep(SECOND).await;
    assert!(send(&server, post("k")).await.is_replayed());
}

/// I-12, I-22: a release is repeated too, so that what had no effect does not become unknown.
#[tokio::test(start_paused = true)]
async fn i_22_a_release_is_repeated() {
    let (store, handler) = (Flaky::default(), Handler::new());
    let server = handler.serve(
        builder(store.clone(), CrashPolicy::Unknown),
        |run| match run {
            1 => status(429, "not now"),
            _ => status(200, "paid"),
        },
    );
    store.fail(
        Verb::Release,
        Fault::Error(StoreErrorKind::Unavailable),
        ALWAYS,
    );
    assert_eq!(send(&server, post("k")).await.status, 429);
    tokio::time::sleep(5 * LEASE).await;
    let answer = send(&server, post("k")).await;
    assert_eq!(answer.refusal(), (409, "processing".into()));
    store.heal();
    tokio::time::sleep(LEASE).await;
    assert_eq!(send(&server, post("k")).await.body, "paid");
}

/// I-22, S-3: how many wait for a store that takes no completions is bounded; the rest are orphans.
#[tokio::test(start_paused = true)]
async fn i_22_how_many_wait_is_bounded() {
    // Each takes a page next to its reply.
    const PAGES: usize = 10;
    let (store, handler) = (Flaky::default(), Handler::new());
    let layer = builder(store.clone(), CrashPolicy::Unknown).unsettled_limit(PAGES * 4096);
    let server = handler.count(layer);
    store.fail(Verb::Complete, Fault::Error(StoreErrorKind::Other), ALWAYS);
    for key in 0..2 * PAGES {
        assert_eq!(send(&server, post(&key.to_string())).await.status, 200);
    }
    tokio::time::sleep(2 * LEASE).await;
    store.heal();
    tokio::time::sleep(LEASE).await;
    for key in 0..2 * PAGES {
        let answer = send(&server, post(&key.to_string())).await;
        assert_eq!(answer.is_replayed(), key < PAGES - 1, "{key}");
    }
    assert_eq!(handler.runs(), 2 * PAGES);
}

/// I-22: it is not tried for ever either, and then the key is an orphan.
#[tokio::test(start_paused = true)]
async fn i_22_until_the_record_is_past_its_time() {
    let (store, handler) = (Flaky::default(), Handler::new());
    let server = handler.count(builder(store.clone(), CrashPolicy::Reexecute));
    store.fail(Verb::Complete, Fault::Error(StoreErrorKind::Other), ALWAYS);
    send(&server, post("k")).await;
    tokio::time::sleep(DAY + LEASE).await;
    let calls = store.calls(Verb::Complete) + store.calls(Verb::Renew);
    tokio::time::sleep(DAY).await;
    assert_eq!(
        store.calls(Verb::Complete) + store.calls(Verb::Renew),
        calls
    );
}

#[tokio::test(start_paused = true)]
async fn i_23_a_full_store_refuses() {
    let store = MemoryStore::builder().max_records(2).build().unwrap();
    let handler = Handler::new();
    let server = handler.count(builder(store, CrashPolicy::Reexecute));
    assert_eq!(send(&server, post("one")).await.body, "run 1");
    assert_eq!(send(&server, post("two")).await.body, "run 2");
    let answer = send(&server, post("three")).await;
    assert_eq!(answer.refusal(), (503, "unavailable".into()));
    // Those that are there are still there.
    assert_eq!(send(&server, post("one")).await.body, "run 1");
    assert_eq!(send(&server, post("two")).await.body, "run 2");
    tokio::time::advance(DAY + SECOND).await;
    assert_eq!(send(&server, post("three")).await.body, "run 3");
}

/// I-23, I-18: no room for the reply is room to say that it was executed.
#[tokio::test(start_paused = true)]
async fn i_23_no_room_for_a_reply() {
    let store = MemoryStore::builder().max_bytes(100).build().unwrap();
    let handler = Handler::held();
    let server = handler.serve(builder(store, CrashPolicy::Reexecute), |_| {
        status(
            200,
            "a reply of some length, of which there is no room for two",
        )
    });
    let calls = [start(&server, post("one")), start(&server, post("two"))];
    settle().await;
    handler.let_through(2);
    for call in calls {
        assert_eq!(call.await.unwrap().status, 200);
    }
    let mut answers = [
        send(&server, post("one")).await.refusal(),
        send(&server, post("two")).await.refusal(),
    ];
    answers.sort_unstable();
    let [replayed, refused] = answers;
    assert_eq!(replayed, (200, String::new()));
    assert_eq!(refused, (409, "reply-not-retained".into()));
    assert_eq!(handler.runs(), 2);
}

/// I-21, I-14: a claim of which nobody knows whether it was made is given back: nothing was
/// executed.
#[tokio::test(start_paused = true)]
async fn i_21_a_claim_in_doubt_is_given_back() {
    for crash_policy in [CrashPolicy::Unknown, CrashPolicy::Reexecute] {
        let (store, handler) = (Flaky::default(), Handler::new());
        let server = handler.count(builder(store.clone(), crash_policy));
        // The second is not in doubt, but the first is.
        store.fail(Verb::Claim, Fault::Lost, 1);
        let full = Fault::Error(StoreErrorKind::PoolExhausted);
        store.fail(Verb::Claim, full, 3);
        assert_eq!(send(&server, post("k")).await.status, 503);
        tokio::time::sleep(5 * SECOND).await;
        store.heal();
        let answer = send(&server, post("k")).await;
        assert_eq!((answer.status, &*answer.body), (200, "run 1"));
        assert!(!handler.execution(0).is_orphan());
        let calls = store.calls(Verb::Claim);
        tokio::time::sleep(DAY).await;
        assert_eq!(store.calls(Verb::Claim), calls, "and then it is let be");
    }
}

/// I-21, S-3: it is not tried for longer than a lease, nor where it was executed all the same.
#[tokio::test(start_paused = true)]
async fn i_21_a_claim_in_doubt_is_left_to_its_lease() {
    let (store, handler) = (Flaky::default(), Handler::new());
    let server = handler.count(builder(store.clone(), CrashPolicy::Unknown));
    store.fail(Verb::Claim, Fault::Lost, ALWAYS);
    assert_eq!(send(&server, post("k")).await.status, 503);
    tokio::time::sleep(LEASE + 6 * SECOND).await;
    let calls = store.calls(Verb::Claim);
    assert!(calls > 2, "{calls}");
    tokio::time::sleep(DAY).await;
    assert_eq!(store.calls(Verb::Claim), calls);

    let (store, handler) = (Flaky::default(), Handler::new());
    let server = handler.count(builder(store.clone(), CrashPolicy::Unknown).fail_open());
    store.fail(Verb::Claim, Fault::Lost, 2);
    assert_eq!(send(&server, post("k")).await.body, "run 1");
    tokio::time::sleep(LEASE + SECOND).await;
    let answer = send(&server, post("k")).await;
    assert_eq!(answer.refusal(), (409, "outcome-unknown".into()));
}
