//! The logs and the metrics, and the values that are never in them: O-2, S-2.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, LazyLock, Mutex},
};

use http::{HeaderValue, Request, Response};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tower_http::request_id::RequestId;
use tower_reprise::store::{CrashPolicy, MemoryStore, StoreErrorKind};
use tracing::{
    Dispatch, Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, Registry, layer::Context, prelude::*};

use crate::setup::{
    Fault, Flaky, Frames, Handler, LEASE, SECOND, Verb, builder, keyless, post, send, settle,
    start, status,
};

/// Counts on this thread.
async fn counted(run: impl Future<Output = ()>) -> BTreeMap<String, u64> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let guard = metrics::set_default_local_recorder(&recorder);
    run.await;
    drop(guard);
    let mut counts = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let DebugValue::Counter(count) = value else {
            continue;
        };
        let labels = key.key().labels();
        let labels: Vec<_> = labels.map(metrics::Label::value).collect();
        counts.insert(format!("{} {}", key.key().name(), labels.join(" ")), count);
    }
    counts
}

#[tokio::test(start_paused = true)]
async fn o_2_every_outcome_is_counted() {
    let counts = counted(async {
        let (store, handler) = (Flaky::default(), Handler::held());
        let server = handler.count(builder(store.clone(), CrashPolicy::Reexecute));
        send(&server, keyless().body(Frames::default()).unwrap()).await;
        let first = start(&server, post("k"));
        settle().await;
        send(&server, post("k")).await;
        let mut other = post("k");
        *other.body_mut() = Frames::from("999 EUR");
        send(&server, other).await;
        handler.let_through(1);
        first.await.unwrap();
        for _ in 0..3 {
            send(&server, post("k")).await;
        }
        store.fail(Verb::Claim, Fault::Error(StoreErrorKind::Full), 1);
        send(&server, post("k")).await;

        store.fail(Verb::Renew, Fault::Error(StoreErrorKind::Other), usize::MAX);
        let stale = start(&server, post("late"));
        tokio::time::sleep(LEASE + SECOND).await;
        let second = start(&server, post("late"));
        settle().await;
        handler.let_through(2);
        stale.await.unwrap();
        second.await.unwrap();
    });
    let counts = counts.await;
    for (outcome, count) in [
        ("executed", 2),
        ("replayed", 3),
        ("in_flight", 1),
        ("mismatch", 1),
        ("refused", 1),
        ("orphaned", 1),
        ("store_error", 1),
    ] {
        let name = format!("idempotency_requests_total {outcome}");
        assert_eq!(counts.get(&name), Some(&count), "{outcome}: {counts:?}");
    }
    assert_eq!(counts["idempotency_store_errors_total claim full"], 1);
    assert!(counts["idempotency_store_errors_total renew other"] >= 1);
}

/// Keeps two subscribers alive that record nothing. Whether a call site may log is decided once, by
/// the subscribers that exist; if there is only one, by the thread that gets there first. With
/// these two, no test decides for another.
fn keep_tests_apart() {
    static UNHEARD: LazyLock<[Dispatch; 2]> =
        LazyLock::new(|| [(); 2].map(|()| Dispatch::new(Registry::default())));
    LazyLock::force(&UNHEARD);
}

/// Every field of every event, as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<BTreeMap<&'static str, String>>>>);

struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }
}

#[tokio::test(start_paused = true)]
async fn o_1_s_2_what_is_logged() {
    keep_tests_apart();
    let log = Log::default();
    let guard = tracing::subscriber::set_default(Registry::default().with(log.clone()));
    let store = Flaky::default();
    let handler = Handler::new();
    let server = handler.serve(builder(store.clone(), CrashPolicy::Reexecute), |_| {
        let response = Response::builder().header("set-cookie", "a=SECRET");
        response.body(Frames::from("SECRET")).unwrap()
    });
    let request = || {
        let request = Request::post("/payments?token=SECRET")
            .header("x-tenant", "SECRET")
            .header("authorization", "SECRET")
            .header("idempotency-key", "order-42");
        let mut request = request.body(Frames::from("SECRET")).unwrap();
        let id = RequestId::new(HeaderValue::from_static("req-1"));
        request.extensions_mut().insert(id);
        request
    };
    send(&server, request()).await;
    send(&server, request()).await;
    store.fail(Verb::Claim, Fault::Error(StoreErrorKind::Corrupt), 1);
    send(&server, request()).await;
    drop(guard);

    let log = log.0.lock().unwrap();
    let outcomes: Vec<_> = log
        .iter()
        .filter(|event| event.get("message").is_some_and(|m| m == "idempotency"))
        .collect();
    assert_eq!(outcomes.len(), 3);
    for (event, outcome) in outcomes.iter().zip(["Executed", "Replayed", "StoreError"]) {
        assert_eq!(event["outcome"], outcome);
        assert_eq!(event["correlation_id"], "req-1");
        assert_eq!(event["idempotency_key"], "order-42");
    }
    assert!(!format!("{log:?}").contains("SECRET"));
}

/// The handler's events stay in the span that they would be in without the layer.
#[tokio::test(start_paused = true)]
async fn o_1_the_handler_logs_in_the_callers_span() {
    keep_tests_apart();
    let subscriber = tracing::subscriber::set_default(Registry::default());
    let seen: Arc<Mutex<Option<&'static str>>> = Arc::default();
    let name = Arc::clone(&seen);
    let server = Handler::new().serve(
        builder(MemoryStore::new(), CrashPolicy::Reexecute),
        move |_| {
            let span = tracing::Span::current();
            *name.lock().unwrap() = span.metadata().map(tracing::Metadata::name);
            status(200, "")
        },
    );
    let span = tracing::info_span!("request");
    tracing::Instrument::instrument(send(&server, post("k")), span).await;
    assert_eq!(*seen.lock().unwrap(), Some("request"));
    drop(subscriber);
}

/// I-29: a gauge of what waits, which falls again.
#[tokio::test(start_paused = true)]
async fn i_29_what_waits_for_the_store_is_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);
    // The change since the last look.
    let waiting = || {
        let all = snapshotter.snapshot().into_vec().into_iter();
        let mut gauges = all.filter(|(key, ..)| key.key().name() == "idempotency_unsettled");
        gauges.next().map(|(.., value)| value)
    };
    let (store, handler) = (Flaky::default(), Handler::new());
    let server = handler.count(builder(store.clone(), CrashPolicy::Unknown));
    let down = Fault::Error(StoreErrorKind::Unavailable);
    store.fail(Verb::Complete, down, usize::MAX);
    for key in ["a", "b", "c"] {
        send(&server, post(key)).await;
    }
    settle().await;
    assert_eq!(waiting(), Some(DebugValue::Gauge(3.0.into())));
    store.heal();
    tokio::time::sleep(LEASE).await;
    assert_eq!(waiting(), Some(DebugValue::Gauge((-3.0).into())));
}

/// I-23, I-29: a store in memory says how full it is, and a lost lease is counted.
#[tokio::test(start_paused = true)]
async fn i_29_room_and_lost_leases_are_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let value = |name: &str| {
        let all = snapshotter.snapshot().into_vec().into_iter();
        let mut named = all.filter(|(key, ..)| key.key().name() == name);
        named.next().map(|(.., value)| value)
    };
    let memory = MemoryStore::builder().max_records(4).build().unwrap();
    let store = Flaky::new(memory);
    let handler = Handler::held();
    let server = handler.count(builder(store.clone(), CrashPolicy::Reexecute));
    let first = start(&server, post("a"));
    settle().await;
    // Its renewals fail, until another one takes over.
    let down = Fault::Error(StoreErrorKind::Unavailable);
    store.fail(Verb::Renew, down, usize::MAX);
    tokio::time::sleep(LEASE + SECOND).await;
    let second = start(&server, post("a"));
    settle().await;
    handler.let_through(3);
    first.await.unwrap();
    second.await.unwrap();
    assert_eq!(
        value("idempotency_leases_lost_total"),
        Some(DebugValue::Counter(1))
    );
    tokio::time::sleep(LEASE).await;
    send(&server, post("b")).await;
    assert_eq!(
        value("idempotency_store_fill"),
        Some(DebugValue::Gauge(0.25.into()))
    );
}
