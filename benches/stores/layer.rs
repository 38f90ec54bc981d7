//! What the layer over the store in memory adds to a request with a fresh key and 1 KiB of body,
//! next to what can't be saved: hashing that body, and spawning one task that outlives its caller.

use std::{convert::Infallible, hint::black_box};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use sha2::{Digest, Sha256};
use tokio::{runtime, time::Instant};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_reprise::{
    IdempotencyLayer,
    store::{MemoryStore, Orphans},
};

use crate::{report::Report, work::lower_quartile};

const BODY: usize = 1024;
const CALLS: u64 = 200;
const ROUNDS: u64 = 401;

type Call = Request<Full<Bytes>>;

pub(crate) fn run(report: &mut Report) {
    // Where spawning is cheapest, so that there is the least to compare with.
    let one = runtime::Builder::new_current_thread().enable_time().build();
    let one = one.expect("a runtime").block_on(measure());
    report.note("memory_layer_added_ns", one.added);
    report.note("memory_layer_hash_and_spawn_ns", one.unavoidable);
    report.at_most("memory_ratio", one.ratio(), 3.0);

    // As servers have it: the task may run on another thread than its caller.
    let many = runtime::Builder::new_multi_thread().enable_time().build();
    let many = many.expect("a runtime");
    let many = many.block_on(many.spawn(measure())).expect("no panic");
    report.note("memory_ratio_many_threads", many.ratio());
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

/// By turns, so that a slow moment of the machine is one for all.
async fn measure() -> Cost {
    let bare = service_fn(|request: Call| async move {
        drop(black_box(request));
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("paid")))
    });
    let layer = IdempotencyLayer::builder(MemoryStore::new())
        .scope(|_| Some("alice"))
        .orphans(Orphans::Reexecute)
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

async fn nanos_per_call<S, R>(mut service: S, calls: Vec<Call>) -> f64
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
