//! Replays in front of several services, which know nothing of each other's outages.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tower::{Layer, ServiceExt};
use tower_reprise::{
    Dependencies, Policy,
    delivery::{
        replay::{Replay, ReplayBuilder, ReplayId},
        worker::WorkerHandle,
    },
    server::dialect::Scope,
    store::{
        MemoryStore,
        journal::{Journal, Status},
    },
};

use super::shop::{SECOND, id, principal};

type Body = Full<Bytes>;

/// A service that takes a second for each request.
#[derive(Default)]
struct Target {
    is_down: AtomicBool,
    attempts: AtomicUsize,
    at_once: AtomicUsize,
    most_at_once: AtomicUsize,
}

impl Target {
    async fn answer(&self) -> Response<Body> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        let at_once = 1 + self.at_once.fetch_add(1, Ordering::Relaxed);
        self.most_at_once.fetch_max(at_once, Ordering::Relaxed);
        tokio::time::sleep(SECOND).await;
        self.at_once.fetch_sub(1, Ordering::Relaxed);
        let mut response = Response::new(Body::from("done"));
        if self.is_down.load(Ordering::Relaxed) {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        response
    }
}

/// Two services behind one journal: `/one` and `/other`.
#[derive(Clone, Default)]
struct Targets {
    one: Arc<Target>,
    other: Arc<Target>,
}

struct Gate {
    targets: Targets,
    store: MemoryStore,
    replay: Replay<MemoryStore>,
}

impl Gate {
    fn new(build: impl FnOnce(ReplayBuilder<MemoryStore>) -> ReplayBuilder<MemoryStore>) -> Self {
        let store = MemoryStore::new();
        let replay = Replay::builder(store.clone(), Scope::new(principal))
            .target(|head| head.uri().path().to_owned());
        Self {
            targets: Targets::default(),
            replay: build(replay).build().unwrap(),
            store,
        }
    }

    /// Journals a request of a caller.
    async fn queue(&self, path: &str, caller: &str) -> ReplayId {
        let service = tower::service_fn(|_: Request<Body>| async {
            Ok::<_, Infallible>(Response::new(Body::default()))
        });
        let request = Request::post(path).header("x-user", caller);
        let request = request.header("replay", "true").body(Body::from("order"));
        self.replay.maintenance().on(None);
        let accepted = self.replay.layer().layer(service);
        let accepted = accepted.oneshot(request.unwrap()).await.unwrap();
        self.replay.maintenance().off();
        assert_eq!(accepted.status(), 202);
        let body = http_body_util::BodyExt::collect(accepted.into_body()).await;
        id(&serde_json::from_slice(&body.unwrap().to_bytes()).unwrap())
    }

    async fn queue_of_many(&self, path: &str, callers: usize) -> Vec<ReplayId> {
        let mut ids = Vec::new();
        for caller in 0..callers {
            ids.push(self.queue(path, &format!("caller-{caller}")).await);
        }
        ids
    }

    fn work(&self) -> WorkerHandle {
        let targets = self.targets.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let targets = targets.clone();
            async move {
                let target = match request.uri().path() {
                    "/one" => targets.one,
                    _ => targets.other,
                };
                Ok::<_, Infallible>(target.answer().await)
            }
        });
        self.replay.worker::<Body, _>(service).start().unwrap()
    }

    async fn completed(&self, ids: &[ReplayId]) -> usize {
        let mut completed = 0;
        for id in ids {
            let entry = self.store.find(id.entry()).await.unwrap().unwrap();
            completed += usize::from(entry.status == Status::Completed);
        }
        completed
    }
}

/// J-5, Q-6: that of the first begins with one at a time and pauses, the other is drained meanwhile.
#[tokio::test(start_paused = true)]
async fn j_5_q_6_a_target_that_is_down_slows_no_other() {
    let gate = Gate::new(|builder| builder);
    let (one, other) = (
        gate.queue_of_many("/one", 60).await,
        gate.queue_of_many("/other", 100).await,
    );
    let Targets {
        one: down,
        other: up,
    } = &gate.targets;
    down.is_down.store(true, Ordering::Relaxed);
    let worker = gate.work();
    // Eight at a time after a slow start: a second each.
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(gate.completed(&other).await, 100);
    assert_eq!(up.most_at_once.load(Ordering::Relaxed), 8);
    let attempts = down.attempts.load(Ordering::Relaxed);
    assert!((2..=10).contains(&attempts), "{attempts} attempts in 20 s");
    assert_eq!(down.most_at_once.load(Ordering::Relaxed), 1);

    // An operator's word counts for one that is held back, too.
    let last = one[59];
    gate.replay.trigger("caller-59", last).await.unwrap();
    tokio::time::sleep(3 * SECOND).await;
    let entry = gate.store.find(last.entry()).await.unwrap().unwrap();
    assert!(entry.lease_token.get() > 0, "it was attempted");

    down.is_down.store(false, Ordering::Relaxed);
    tokio::time::sleep(120 * SECOND).await;
    assert_eq!(gate.completed(&one).await, 60);
    worker.shutdown(SECOND).await;
}

/// Nothing else is replayed then, so a lane with nothing urgent is in no other's way.
#[tokio::test(start_paused = true)]
async fn j_9_what_is_triggered_in_maintenance_waits_for_no_lane_of_its_target() {
    let gate = Gate::new(|builder| builder);
    let all = gate.queue_of_many("/one", 5).await;
    gate.replay.maintenance().on(None);
    let worker = gate.work();
    gate.replay.trigger("caller-4", all[4]).await.unwrap();
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(gate.completed(&all).await, 1);
    worker.shutdown(SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn g_5_each_target_waits_for_its_own_dependency() {
    let deps = Dependencies::new(Policy::http().service("t").build().unwrap());
    let gate = Gate::new(|builder| builder.targets_paced_by(&deps));
    let one = gate.queue("/one", "ada").await;
    let other = gate.queue("/other", "ada").await;
    deps.get("/one").force_open();
    let worker = gate.work();
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(gate.completed(&[one, other]).await, 1);
    assert_eq!(gate.targets.one.attempts.load(Ordering::Relaxed), 0);
    deps.get("/one").reset();
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(gate.completed(&[one, other]).await, 2);
    worker.shutdown(SECOND).await;
}
