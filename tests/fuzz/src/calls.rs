//! S-3 and forrst's servers: whatever comes in is answered in an envelope, and done once if it has
//! a key.

use std::{
    convert::Infallible,
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    IdempotencyLayer,
    delivery::replay::Replay,
    forrst::{self, Forrst, IdempotencyOptions, RetryGuidanceLayer},
    store::{CrashPolicy, MemoryStore},
};

use crate::support::block_on;

/// The body of a call, which is made twice, and twice again in maintenance.
pub(crate) fn run(body: &[u8]) {
    block_on(call(&Bytes::copy_from_slice(body)));
}

async fn call(body: &Bytes) {
    let store = MemoryStore::new();
    let idempotency = IdempotencyLayer::builder(store.clone())
        .with_dialect(Forrst::new())
        .scope(Scope::new(|_| Some("shop")))
        .crash_policy(CrashPolicy::Reexecute)
        .build()
        .expect("a layer");
    let replay = Replay::builder(store, Scope::new(|_| Some("shop")))
        .dialect(Forrst::new())
        .build()
        .expect("a replay");
    let runs = Arc::new(AtomicUsize::new(0));
    let handler = {
        let runs = Arc::clone(&runs);
        service_fn(move |request| handle(request, Arc::clone(&runs)))
    };
    let once = idempotency.layer(handler);
    let server = RetryGuidanceLayer::new().layer(replay.layer().layer(once.clone()));
    for closed in [false, true] {
        if closed {
            replay.maintenance().on(None);
        }
        ask(server.clone(), body).await;
        ask(once.clone(), body).await;
        let known = forrst::Request::parse(body);
        let keyed = known.is_ok_and(|known| {
            let mut extensions = known.extensions.iter();
            extensions.any(|extension| extension.urn == *IdempotencyOptions::URN)
        });
        assert!(!keyed || runs.load(Ordering::Relaxed) <= 1);
    }
}

async fn ask<S, B>(server: S, body: &Bytes)
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible>,
    B: Body<Error: Debug>,
{
    let request = Request::post("/").body(Full::new(body.clone()));
    let Ok(response) = server.oneshot(request.expect("a request")).await;
    let status = response.status();
    let reply = response.into_body().collect().await.expect("a body");
    let reply = forrst::Response::parse(&reply.to_bytes()).expect("an envelope");
    match forrst::Request::parse(body) {
        Ok(known) => assert_eq!(reply.id, known.id),
        Err(_) => {
            assert_eq!(status, StatusCode::BAD_REQUEST);
            assert_eq!(reply.errors[0].code, "VALIDATION_ERROR");
        }
    }
}

async fn handle(
    request: Request<Full<Bytes>>,
    runs: Arc<AtomicUsize>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    runs.fetch_add(1, Ordering::Relaxed);
    let Ok(body) = request.into_body().collect().await;
    let call = forrst::Request::parse(&body.to_bytes()).expect("nothing else is let through");
    let mut reply = forrst::Response::to(&call);
    reply.result = Some(call.call.arguments.unwrap_or_default());
    let body = serde_json::to_vec(&reply).expect("it was JSON");
    let reply = Response::builder().header("content-type", "application/json");
    Ok(reply.body(Full::from(body)).expect("a reply"))
}
