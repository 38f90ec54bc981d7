//! Replays on a store of records whose answers are late or get lost.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_reprise::{
    IdempotencyLayer,
    delivery::replay::Replay,
    http::BufferedBody,
    server::dialect::Scope,
    store::{
        CrashPolicy, MemoryStore,
        journal::{Journal, Status},
    },
};

use super::shop::SECOND;
use crate::support::flaky::{Fault, Flaky, Verb};

type Body = Full<Bytes>;
type App<R> = BoxCloneSyncService<Request<Body>, Response<BufferedBody<R>>, Infallible>;

/// A bank that never executes twice what may have taken effect.
struct Bank {
    journal: MemoryStore,
    replay: Replay<MemoryStore>,
    /// The service for callers, and the same without the replay layer.
    app: App<BufferedBody<Body>>,
    inner: App<Body>,
    calls: Arc<Mutex<usize>>,
}

impl Bank {
    /// The handler takes this long, and answers this; then it succeeds.
    fn new(records: Flaky, script: &[(Duration, u16)]) -> Self {
        let layer = IdempotencyLayer::builder(records)
            .scope(Scope::new(|_| Some("ada")))
            .crash_policy(CrashPolicy::Unknown)
            .build()
            .unwrap();
        let journal = MemoryStore::new();
        let replay = Replay::before(journal.clone(), &layer).build().unwrap();
        let calls = Arc::new(Mutex::new(0));
        let (counted, script) = (Arc::clone(&calls), script.to_vec());
        let inner = layer.layer(service_fn(move |_: Request<Body>| {
            let mut calls = counted.lock().unwrap();
            *calls += 1;
            let (time, status) = script
                .get(*calls - 1)
                .copied()
                .unwrap_or((Duration::ZERO, 200));
            async move {
                tokio::time::sleep(time).await;
                let mut response = Response::new(Body::default());
                *response.status_mut() = StatusCode::from_u16(status).unwrap();
                Ok::<_, Infallible>(response)
            }
        }));
        let app = replay.layer().layer(inner.clone());
        Self {
            journal,
            replay,
            app: BoxCloneSyncService::new(app),
            inner: BoxCloneSyncService::new(inner),
            calls,
        }
    }

    async fn pay(&self, replay: bool) -> u16 {
        let request = Request::post("/payments")
            .header("idempotency-key", "1")
            .header("replay", if replay { "true" } else { "false" })
            .body(Body::default())
            .unwrap();
        let response = self.app.clone().oneshot(request).await.unwrap();
        response.status().as_u16()
    }

    /// Lets time pass until the replay is over; how it ended, and how often the handler was called.
    async fn ended(&self) -> (bool, usize) {
        loop {
            let counts = self.journal.counts("replay").await.unwrap();
            let (completed, failed) = (counts.of(Status::Completed), counts.of(Status::Failed));
            if completed + failed > 0 {
                return (completed == 1, *self.calls.lock().unwrap());
            }
            tokio::time::sleep(SECOND / 10).await;
        }
    }
}

/// I-12: an attempt that ended before its handler was called leaves the key to the next one.
#[tokio::test(start_paused = true)]
async fn i_12_an_attempt_whose_claim_is_dropped_leaves_its_key_to_the_next() {
    for (fault, times) in [(Fault::Late(2 * SECOND), 1), (Fault::Lost, 2)] {
        let records = Flaky::default();
        let bank = Bank::new(records.clone(), &[(Duration::ZERO, 503)]);
        assert_eq!(bank.pay(true).await, 202);
        records.fail(Verb::Resume, fault, times);
        // A service in front of the layer gives up after a second.
        let inner = bank.inner.clone();
        let impatient = service_fn(move |request: Request<Body>| {
            let calling = tokio::time::timeout(SECOND, inner.clone().oneshot(request));
            async move {
                Ok::<_, Infallible>(match calling.await {
                    Ok(Ok(response)) => response,
                    Err(_) => {
                        let mut response = Response::new(BufferedBody::from(Bytes::new()));
                        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                        response
                    }
                })
            }
        });
        let worker = bank.replay.worker::<Body, _>(impatient).start().unwrap();
        assert_eq!(bank.ended().await, (true, 2), "{fault:?}");
        drop(worker);
    }
}

/// I-12: a renewal that is under way when an attempt fails does not shorten the time that its key is
/// held for the next one.
#[tokio::test(start_paused = true)]
async fn i_12_a_renewal_under_way_does_not_shorten_the_hold_of_a_failed_attempt() {
    let records = Flaky::default();
    // The second attempt ends while its first renewal is under way.
    let bank = Bank::new(
        records.clone(),
        &[(Duration::ZERO, 503), (11 * SECOND, 500)],
    );
    assert_eq!(bank.pay(true).await, 202);
    records.fail(Verb::Renew, Fault::Delayed(2 * SECOND), 1);
    let worker = bank.replay.worker::<Body, _>(bank.inner.clone()).start();
    let worker = worker.unwrap();
    while *bank.calls.lock().unwrap() < 2 {
        tokio::time::sleep(SECOND / 10).await;
    }
    worker.shutdown(30 * SECOND).await;
    assert!(records.calls(Verb::Renew) > 0, "it was sent");
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(bank.pay(false).await, 409);
    let worker = bank.replay.worker::<Body, _>(bank.inner.clone()).start();
    assert_eq!(bank.ended().await, (true, 3));
    drop(worker);
}
