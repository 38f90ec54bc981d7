//! O-4: retries of workers are logged and counted as those of clients.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use metrics_util::debugging::DebugValue;
use tower::{Layer as _, ServiceExt, service_fn};
use tower_reprise::{
    delivery::{
        replay::Replay,
        worker::{Handler, WorkerBuilder},
    },
    server::dialect::Scope,
    store::{
        MemoryStore,
        journal::{Entry, Journal, NewEntry, Settlement, Status},
    },
};

use crate::support::telemetry::{Log, count, gauge, keep_tests_apart, measured};

type Body = Full<Bytes>;

/// Replays a request that fails so many times first.
async fn replayed(failures: usize) {
    let store = MemoryStore::new();
    let replay = Replay::builder(store.clone(), Scope::new(|_| Some("ada")));
    let replay = replay.build().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let service = service_fn(move |_: Request<Body>| {
        let mut response = Response::new(Body::default());
        if calls.fetch_add(1, Ordering::Relaxed) < failures {
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        }
        std::future::ready(Ok::<_, Infallible>(response))
    });
    replay.maintenance().on(None);
    let request = Request::post("/orders")
        .header("replay", "true")
        .header("x-request-id", "req-1")
        .header("idempotency-key", "order-42")
        .body(Body::default())
        .unwrap();
    let accepted = replay.layer().layer(service.clone()).oneshot(request).await;
    assert_eq!(accepted.unwrap().status(), 202);
    let worker = replay.worker::<Body, _>(service).start().unwrap();
    replay.maintenance().off();
    let over = async || {
        let counts = store.counts("replay").await.unwrap();
        counts.of(Status::Completed) + counts.of(Status::Failed)
    };
    while over().await == 0 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn o_4_each_retry_of_a_worker_is_one_event() {
    keep_tests_apart();
    let (log, _guard) = Log::listen();
    replayed(2).await;
    let retries = log.retries();
    assert_eq!(retries.len(), 2);
    for (retry, attempt) in retries.iter().zip(["1", "2"]) {
        let field = |name| &*retry.fields[name];
        assert_eq!(field("attempt"), attempt);
        assert_eq!(field("max_attempts"), "2");
        assert_eq!(field("dependency"), "replay");
        assert_eq!(field("correlation_id"), "req-1");
        assert_eq!(field("idempotency_key"), "order-42");
        assert_eq!(field("error_type"), "http_500");
        let waited: f64 = field("backoff_ms").parse().unwrap();
        assert!(waited > 0.0, "{waited}");
    }
}

#[tokio::test(start_paused = true)]
async fn o_4_retries_of_workers_are_counted_under_the_names_of_clients() {
    let measured = measured(replayed(3)).await;
    let labels = "service=default,dependency=replay";
    let of = |name: &str, more: &str| measured.get(&format!("{name}{{{labels}{more}}}"));
    for n in [1, 2] {
        let attempts = of("retry_attempts_total", &format!(",attempt_number={n}"));
        assert_eq!(attempts, Some(&count(1)), "{n}");
    }
    assert_eq!(of("retry_attempts_total", ",attempt_number=3"), None);
    assert_eq!(of("retry_exhausted_total", ""), Some(&count(1)));
    let waits = of("retry_backoff_duration_seconds", "");
    assert!(matches!(waits, Some(DebugValue::Histogram(waits)) if waits.len() == 2));
}

/// O-4: without a further retry the gauge of a budget falls with its window.
#[tokio::test(start_paused = true)]
async fn o_4_the_gauge_of_a_budget_falls() {
    struct Once;

    impl Handler for Once {
        async fn handle(&self, entry: Entry) -> Settlement {
            match entry.attempts {
                1 => Settlement::retry("refused", Duration::from_secs(1)),
                _ => Settlement::completed("", Duration::from_secs(60)),
            }
        }

        fn target<'a>(&self, _: &'a Entry) -> Option<std::borrow::Cow<'a, str>> {
            Some("shop".into())
        }
    }

    let used = async |seconds| {
        let measured = measured(async {
            let journal = MemoryStore::new();
            journal.enqueue(NewEntry::new("jobs", "")).await.unwrap();
            let worker = WorkerBuilder::new(journal, "jobs", Once).start().unwrap();
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            drop(worker);
        });
        let name = "retry_budget_utilization_ratio{service=default,dependency=shop}";
        measured.await.remove(name)
    };
    assert_ne!(used(5).await, Some(gauge(0.0)));
    assert_eq!(used(60).await, Some(gauge(0.0)));
}
