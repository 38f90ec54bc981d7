//! Handlers that panic, or outlive their lease: I-14, I-15.

use std::{
    convert::Infallible,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::{Request, Response};
use tokio::task::JoinHandle;
use tower::{Layer, Service, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_reprise::{
    error::{BoxError, Refusal, Refused},
    server::idempotency::{HandlerOutcome, UnknownOutcomes},
    store::{CrashPolicy, MemoryStore, Resolved, StoreErrorKind},
};

use crate::setup::{
    Answer, Builder, DAY, Fault, Flaky, Frames, Handler, LEASE, SECOND, Server, Verb, builder,
    post, send, settle, start, status,
};

/// Where a handler stands when it panics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// It has not awaited anything yet.
    FirstStep,
    Later,
}

const ALWAYS: [When; 2] = [When::FirstStep, When::Later];

/// Panics the first time.
fn fragile(builder: Builder, when: When) -> (Server, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&runs);
    let inner = service_fn(move |_: Request<Frames>| {
        let run = counter.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            if when == When::Later {
                tokio::task::yield_now().await;
            }
            assert!(run > 1, "on purpose");
            Ok::<_, Infallible>(status(200, "survived"))
        }
    });
    let server = builder.build().unwrap().layer(inner);
    (BoxCloneSyncService::new(server), runs)
}

#[tokio::test(start_paused = true)]
async fn i_14_a_panic_is_an_orphan_after_its_lease() {
    for when in ALWAYS {
        panics_and_is_an_orphan(when).await;
    }
}

async fn panics_and_is_an_orphan(when: When) {
    let (server, runs) = fragile(builder(MemoryStore::new(), CrashPolicy::Reexecute), when);
    let first = send(&server, post("k")).await;
    assert_eq!(first.refusal(), (500, "handler-crashed".into()));
    for _ in 0..29 {
        let answer = send(&server, post("k")).await;
        assert_eq!(answer.refusal(), (409, "processing".into()));
        tokio::time::advance(SECOND).await;
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    tokio::time::advance(2 * SECOND).await;
    for _ in 0..2 {
        let answer = send(&server, post("k")).await;
        assert_eq!((answer.status, &*answer.body), (200, "survived"));
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn i_14_or_its_outcome_stays_unknown() {
    let (server, runs) = fragile(
        builder(MemoryStore::new(), CrashPolicy::Unknown),
        When::FirstStep,
    );
    assert_eq!(send(&server, post("k")).await.status, 500);
    assert_eq!(
        send(&server, post("k")).await.problem().unwrap(),
        "processing"
    );
    tokio::time::advance(LEASE + SECOND).await;
    for _ in 0..3 {
        let answer = send(&server, post("k")).await;
        assert_eq!(answer.refusal(), (409, "outcome-unknown".into()));
        assert!(!answer.headers.contains_key("retry-after"));
        tokio::time::advance(DAY / 4).await;
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    // Another request with that key is told no more than ever.
    let mut other = post("k");
    *other.body_mut() = Frames::from("999 EUR");
    assert_eq!(send(&server, other).await.status, 422);
}

/// I-27: a person finds out how it ended, and says so to whoever repeats it.
#[tokio::test(start_paused = true)]
async fn i_27_an_unknown_outcome_is_listed_and_resolved() {
    let store = MemoryStore::new();
    let (server, runs) = fragile(builder(store.clone(), CrashPolicy::Unknown), When::Later);
    let unknown_outcomes = UnknownOutcomes::new(store);
    let listed = async || unknown_outcomes.list(None, 10).await.unwrap().outcomes;
    assert_eq!(send(&server, post("k")).await.status, 500);
    assert_eq!(listed().await, [], "its lease holds");
    tokio::time::advance(LEASE + SECOND).await;

    // Nobody has repeated it.
    let [unknown] = &*listed().await else {
        panic!("it is listed");
    };
    assert_eq!(unknown.unknown_for, SECOND);
    let again = send(&server, post("k")).await;
    assert_eq!(again.refusal(), (409, "outcome-unknown".into()));
    let stale = unknown_outcomes.release(unknown).await.unwrap();
    assert_eq!(stale, Resolved::Conflict, "another token since the repeat");

    let unknown = unknown_outcomes.find(unknown.key).await.unwrap().unwrap();
    let paid = Response::builder()
        .status(201)
        .header("x-payment", "7")
        .header("set-cookie", "of=nobody")
        .body("paid by hand")
        .unwrap();
    let resolved = unknown_outcomes.resolve(&unknown, &paid).await.unwrap();
    assert_eq!(resolved, Resolved::Made);
    let answer = send(&server, post("k")).await;
    assert_eq!((answer.status, &*answer.body), (201, "paid by hand"));
    assert!(answer.is_replayed());
    assert_eq!(answer.headers["x-payment"], "7");
    assert!(!answer.headers.contains_key("set-cookie"));
    assert_eq!(listed().await, []);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn i_27_an_operation_without_effect_is_executed_by_its_repeat() {
    for released in [false, true] {
        let store = MemoryStore::new();
        let (server, runs) = fragile(builder(store.clone(), CrashPolicy::Unknown), When::Later);
        let unknown_outcomes = UnknownOutcomes::new(store);
        assert_eq!(send(&server, post("k")).await.status, 500);
        tokio::time::advance(LEASE + SECOND).await;
        let page = unknown_outcomes.list(None, 10).await.unwrap();
        let unknown = &page.outcomes[0];
        let resolved = match released {
            true => unknown_outcomes.release(unknown).await,
            false => unknown_outcomes.resolve_without_effect(unknown).await,
        };
        assert_eq!(resolved.unwrap(), Resolved::Made);
        let answer = send(&server, post("k")).await;
        assert_eq!((answer.status, &*answer.body), (200, "survived"));
        assert_eq!(runs.load(Ordering::SeqCst), 2);
    }
}

/// I-27: a store of another author does not pretend to have none.
#[tokio::test(start_paused = true)]
async fn i_27_a_store_without_these_verbs_says_so() {
    let error = UnknownOutcomes::new(Flaky::default())
        .list(None, 10)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported);
    assert!(error.to_string().contains("unknown_outcomes"), "{error}");
}

/// I-14: the lease that was renewed ends as soon as nobody renews it.
#[tokio::test(start_paused = true)]
async fn i_14_a_late_panic_wedges_nothing() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&runs);
    let inner = service_fn(move |_: Request<Frames>| {
        let run = counter.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            tokio::time::sleep(10 * LEASE).await;
            assert!(run > 1, "on purpose");
            Ok::<_, Infallible>(status(200, "survived"))
        }
    });
    let layer = builder(MemoryStore::new(), CrashPolicy::Reexecute).build();
    let server: Server = BoxCloneSyncService::new(layer.unwrap().layer(inner));
    assert_eq!(send(&server, post("k")).await.status, 500);
    tokio::time::sleep(LEASE + SECOND).await;
    let answer = send(&server, post("k")).await;
    assert_eq!((answer.status, &*answer.body), (200, "survived"));
}

/// I-14: an error of the service below is no reply: its own goes to the caller, and the key is an
/// orphan.
#[tokio::test(start_paused = true)]
async fn i_14_an_error_below_is_an_orphan() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&runs);
    let inner = service_fn(move |_: Request<Frames>| {
        let run = counter.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            match run {
                1 => Err(BoxError::from("broken pipe")),
                _ => Ok(Response::new(Frames::from("second"))),
            }
        }
    });
    let layer = builder(MemoryStore::new(), CrashPolicy::Reexecute).build();
    let mut server = layer.unwrap().layer(inner);
    let mut call = async || (&mut server).oneshot(post("k")).await;
    let error = call().await.unwrap_err();
    assert_eq!(error.to_string(), "broken pipe");
    assert_eq!(call().await.unwrap().status(), 409);
    tokio::time::advance(LEASE + SECOND).await;
    assert_eq!(call().await.unwrap().status(), 200);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

/// I-12: what was surely not sent anywhere is not executed, and does not keep the key.
#[tokio::test(start_paused = true)]
async fn i_12_an_error_that_says_that_nothing_was_sent_releases_the_key() {
    let refused = || io::Error::from(io::ErrorKind::ConnectionRefused).into();
    let open = || Refused::new(Refusal::Breaker, "bank", None).into();
    for error in [refused, open] as [fn() -> BoxError; 2] {
        let runs = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&runs);
        let inner = service_fn(move |_: Request<Frames>| {
            let run = counter.fetch_add(1, Ordering::SeqCst) + 1;
            async move {
                match run {
                    1 => Err(error()),
                    _ => Ok(Response::new(Frames::from("second"))),
                }
            }
        });
        // Not even where orphans are never executed again: it is none.
        let layer = builder(MemoryStore::new(), CrashPolicy::Unknown).build();
        let mut server = layer.unwrap().layer(inner);
        let mut call = async || (&mut server).oneshot(post("k")).await;
        assert!(call().await.is_err());
        assert_eq!(call().await.unwrap().status(), 200);
        assert_eq!(runs.load(Ordering::SeqCst), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn i_15_a_handler_may_outlive_its_lease() {
    let handler = Handler::held();
    let server = handler.count(builder(MemoryStore::new(), CrashPolicy::Reexecute));
    let first = start(&server, post("k"));
    settle().await;
    for _ in 0..20 {
        tokio::time::sleep(LEASE / 2).await;
        let answer = send(&server, post("k")).await;
        assert_eq!(answer.refusal(), (409, "processing".into()));
    }
    handler.let_through(1);
    assert_eq!(first.await.unwrap().body, "run 1");
    assert!(!handler.execution(0).is_lost());
    assert!(send(&server, post("k")).await.is_replayed());
    assert_eq!(handler.runs(), 1);
}

/// I-15: renewals fail now and then, and the lease holds.
#[tokio::test(start_paused = true)]
async fn i_15_a_renewal_is_repeated() {
    let (store, handler) = (Flaky::default(), Handler::held());
    let server = handler.count(builder(store.clone(), CrashPolicy::Reexecute));
    let first = start(&server, post("k"));
    settle().await;
    for fault in [
        Fault::Error(StoreErrorKind::Unavailable),
        Fault::Lost,
        Fault::Hang,
    ] {
        store.fail(Verb::Renew, fault, 1);
        for _ in 0..6 {
            tokio::time::sleep(LEASE / 3).await;
            let answer = send(&server, post("k")).await;
            assert_eq!(answer.refusal(), (409, "processing".into()), "{fault:?}");
        }
    }
    handler.let_through(1);
    assert_eq!(first.await.unwrap().body, "run 1");
}

/// A call whose lease has run out while its handler is at work, since no renewal succeeds.
async fn outstayed() -> (Flaky, Handler, Server, JoinHandle<Answer>) {
    let (store, handler) = (Flaky::default(), Handler::held());
    let server = handler.count(builder(store.clone(), CrashPolicy::Reexecute));
    store.fail(
        Verb::Renew,
        Fault::Error(StoreErrorKind::Unavailable),
        usize::MAX,
    );
    let stale = start(&server, post("k"));
    tokio::time::sleep(LEASE + SECOND).await;
    (store, handler, server, stale)
}

/// I-15: one that was stopped past its lease comes back, and finds that another took over.
#[tokio::test(start_paused = true)]
async fn i_15_a_stale_owner_is_rejected() {
    let (_, handler, server, stale) = outstayed().await;
    let second = start(&server, post("k"));
    settle().await;
    assert_eq!(handler.runs(), 2);
    let (one, two) = (handler.execution(0), handler.execution(1));
    assert_eq!(one.key(), two.key());
    assert!(two.token() > one.token());
    assert!(two.is_orphan() && !one.is_orphan());

    // The stale one ends first: its reply is not the reply.
    handler.let_through(1);
    let answer = stale.await.unwrap();
    assert_eq!(answer.refusal(), (409, "processing".into()));
    assert!(one.is_lost() && !two.is_lost());
    handler.let_through(1);
    assert_eq!(second.await.unwrap().body, "run 2");
    let replayed = send(&server, post("k")).await;
    assert_eq!((&*replayed.body, replayed.is_replayed()), ("run 2", true));
}

/// I-15: and when it comes back after the other has finished.
#[tokio::test(start_paused = true)]
async fn i_15_a_stale_owner_is_rejected_after_the_end() {
    let (store, handler, server, stale) = outstayed().await;
    let quick = Handler::new();
    let other = quick.serve(builder(store.clone(), CrashPolicy::Reexecute), |_| {
        status(200, "of another process")
    });
    assert_eq!(send(&other, post("k")).await.body, "of another process");
    handler.let_through(1);
    assert_eq!(stale.await.unwrap().status, 409);
    let replayed = send(&server, post("k")).await;
    assert_eq!(replayed.body, "of another process");
}

/// I-15: one that learns from a renewal that it lost can tell its handler.
#[tokio::test(start_paused = true)]
async fn i_15_a_handler_can_learn_that_it_lost() {
    let (store, handler, server, stale) = outstayed().await;
    let second = start(&server, post("k"));
    settle().await;
    assert!(!handler.execution(0).is_lost());
    store.heal();
    tokio::time::sleep(LEASE).await;
    assert!(handler.execution(0).is_lost());
    assert!(!handler.execution(1).is_lost());
    handler.let_through(2);
    assert_eq!(stale.await.unwrap().status, 409);
    assert_eq!(second.await.unwrap().status, 200);
}

/// D-7: the service that was made ready is the one that is called, and what is not called gives
/// its place back.
#[tokio::test(start_paused = true)]
async fn a_limit_below_is_no_deadlock() {
    use tower::limit::ConcurrencyLimitLayer;

    let handler = Handler::held();
    let gate = handler.clone();
    let inner = service_fn(move |_: Request<Frames>| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            Ok::<_, Infallible>(status(200, "paid"))
        }
    });
    let inner = ConcurrencyLimitLayer::new(1).layer(inner);
    let layer = builder(MemoryStore::new(), CrashPolicy::Reexecute).build();
    let server: Server = BoxCloneSyncService::new(layer.unwrap().layer(inner));
    handler.let_through(1);
    assert_eq!(send(&server, post("one")).await.status, 200);
    // Replays and refusals hold no place.
    for _ in 0..3 {
        assert!(send(&server, post("one")).await.is_replayed());
        assert_eq!(send(&server, post("\"")).await.status, 400);
    }
    let mut kept = server.clone();
    let replayed = kept.ready().await.unwrap().call(post("one")).await.unwrap();
    let mut kept_too = server.clone();
    let call = kept_too.ready().await.unwrap().call(post("\""));
    let refused = call.await.unwrap();
    let second = start(&server, post("two"));
    settle().await;
    handler.let_through(1);
    settle().await;
    assert!(second.is_finished(), "there is a place for it");
    drop((replayed, refused, kept, kept_too));
}

/// I-6, D-7: a repeat that waits holds no place either.
#[tokio::test(start_paused = true)]
async fn i_6_who_waits_holds_no_place_below() {
    use tower::limit::ConcurrencyLimitLayer;

    let handler = Handler::held();
    let gate = handler.clone();
    let inner = service_fn(move |request: Request<Frames>| {
        let gate = gate.clone();
        async move {
            if request.headers()["idempotency-key"] == "slow" {
                gate.pass().await;
            }
            Ok::<_, Infallible>(status(200, "paid"))
        }
    });
    let inner = ConcurrencyLimitLayer::new(2).layer(inner);
    let waits = builder(MemoryStore::new(), CrashPolicy::Reexecute).wait(60 * SECOND);
    let server: Server = BoxCloneSyncService::new(waits.build().unwrap().layer(inner));
    let first = start(&server, post("slow"));
    settle().await;
    let waiting = start(&server, post("slow"));
    settle().await;
    let other = start(&server, post("quick"));
    settle().await;
    assert!(other.is_finished(), "there is a place for it");
    handler.let_through(1);
    assert_eq!(first.await.unwrap().status, 200);
    assert!(waiting.await.unwrap().is_replayed());
}

/// I-13, I-14: whoever executes what may have taken effect before is told so, also if the one
/// before it had no effect, or never began.
#[tokio::test(start_paused = true)]
async fn i_14_what_may_have_taken_effect_is_not_forgotten() {
    let (store, handler) = (Flaky::default(), Handler::new());
    let layer = builder(store.clone(), CrashPolicy::Reexecute);
    let server = handler.serve(layer, |run| match run {
        1 => {
            let mut response = status(502, "who knows");
            response.extensions_mut().insert(HandlerOutcome::Unknown);
            response
        }
        2 => status(429, "not now"),
        _ => status(200, "paid"),
    });
    assert_eq!(send(&server, post("k")).await.status, 502);
    assert_eq!(send(&server, post("k")).await.status, 429);
    // Somebody hangs up while the key is claimed.
    store.fail(Verb::Claim, Fault::Slow(SECOND), 1);
    let gone = start(&server, post("k"));
    settle().await;
    gone.abort();
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(handler.runs(), 2);
    assert_eq!(send(&server, post("k")).await.body, "paid");
    let crash_policy = [0, 1, 2].map(|run| handler.execution(run).is_orphan());
    assert_eq!(crash_policy, [false, true, true]);
    assert!(send(&server, post("k")).await.is_replayed());
}
