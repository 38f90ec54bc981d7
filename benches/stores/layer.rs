//! The time that the layer over the in-memory store adds to a request with a fresh key and 1 KiB of
//! body, next to the unavoidable part: hashing that body, and spawning one task that outlives its
//! caller. The handler awaits something, as handlers do; one that is ready at its first poll needs
//! no task and has a figure of its own.

use std::{convert::Infallible, future::Future, hint::black_box};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use sha2::{Digest, Sha256};
use tokio::{runtime, time::Instant};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    IdempotencyLayer,
    store::{CrashPolicy, MemoryStore},
};

use crate::{report::Report, work::lower_quartile};

const BODY: usize = 1024;
pub(crate) const CALLS: u64 = 200;
pub(crate) const ROUNDS: u64 = 401;

pub(crate) type Call = Request<Full<Bytes>>;

pub(crate) fn run(report: &mut Report) {
    // Where spawning is cheapest, so that there is the least to compare with.
    let one = runtime::Builder::new_current_thread().enable_time().build();
    let one = one.expect("a runtime");
    let awaiting = one.block_on(measure(tokio::task::yield_now));
    report.note("memory_layer_added_ns", awaiting.added);
    report.note("memory_layer_hash_and_spawn_ns", awaiting.unavoidable);
    report.at_most("memory_ratio", awaiting.ratio(), 3.0);
    let ready = one.block_on(measure(|| std::future::ready(())));
    report.note("memory_ratio_ready", ready.ratio());

    // As servers have it: the task may run on another thread than its caller.
    let many = runtime::Builder::new_multi_thread().enable_time().build();
    let many = many.expect("a runtime");
    let many = many.block_on(many.spawn(measure(tokio::task::yield_now)));
    report.note("memory_ratio_many_threads", many.expect("no panic").ratio());
}

/// Nanoseconds a call.
struct Cost {
    added: f64,
    unavoidable: f64,
}

impl Cost {
    fn ratio(&self) -> f64 {
        self.added / self.unavoidable
    }
}

/// By turns, so that a slow moment of the machine is one for all. The handler waits for `wait`.
async fn measure<F: Future<Output = ()> + Send + 'static>(
    wait: impl Fn() -> F + Copy + Send + 'static,
) -> Cost {
    let bare = service_fn(move |request: Call| async move {
        drop(black_box(request));
        wait().await;
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("paid")))
    });
    let layer = IdempotencyLayer::builder(MemoryStore::new())
        .scope(Scope::new(|_| Some("alice")))
        .crash_policy(CrashPolicy::Reexecute)
        .build()
        .expect("a layer");
    let layered = layer.layer(bare);
    let body = Bytes::from(vec![7; BODY]);

    let (mut without, mut with, mut unavoidable) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let calls = || calls(&body, round * CALLS);
        without.push(nanos_per_call(bare, calls()).await);
        with.push(nanos_per_call(layered.clone(), calls()).await);
        unavoidable.push(nanos_per_hash_and_spawn(&body).await);
    }
    Cost {
        added: lower_quartile(with) - lower_quartile(without),
        unavoidable: lower_quartile(unavoidable),
    }
}

fn calls(body: &Bytes, first: u64) -> Vec<Call> {
    let call = |n| {
        Request::post("/payments")
            .header("content-type", "application/json")
            .header(
                "idempotency-key",
                format!("7c4a8d09-ca95-4c6d-8f3b-{n:012}"),
            )
            .body(Full::new(body.clone()))
            .expect("a request")
    };
    (first..first + CALLS).map(call).collect()
}

pub(crate) async fn nanos_per_call<S, R>(mut service: S, calls: Vec<Call>) -> f64
where
    S: Service<Call, Response = Response<R>, Error = Infallible>,
{
    let started = Instant::now();
    for call in calls {
        let Ok(service) = service.ready().await;
        let Ok(response) = service.call(call).await;
        drop(black_box(response));
    }
    per_call(started)
}

async fn nanos_per_hash_and_spawn(body: &Bytes) -> f64 {
    let started = Instant::now();
    for _ in 0..CALLS {
        black_box(Sha256::digest(black_box(body)));
        tokio::spawn(async {}).await.expect("no panic");
    }
    per_call(started)
}

fn per_call(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e9 / CALLS as f64
}
