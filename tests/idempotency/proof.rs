//! Layers below that answer in the handler's place, after it began or before: I-12.

use std::{
    convert::Infallible,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::timeout::TimeoutLayer;
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, Policy, ProblemLayer,
    error::BoxError,
    server::idempotency::IdempotencyLayer,
    store::{CrashPolicy, MemoryStore},
};

use crate::setup::{SECOND, tenant};

type Body = Full<Bytes>;

fn post() -> Request<Body> {
    Request::post("http://bank.example/payments")
        .header("x-tenant", "alice")
        .header("idempotency-key", "k")
        .body(Full::default())
        .unwrap()
}

/// The answers to the same request, sent four times.
async fn four_times<L, S, B>(below: L, handler: S) -> Vec<u16>
where
    L: Layer<S>,
    L::Service: Service<Request<Body>, Response = Response<B>, Error: std::fmt::Debug + Send>
        + Clone
        + Send
        + 'static,
    <L::Service as Service<Request<Body>>>::Future: Send,
    B: http_body::Body<Data = Bytes, Error: std::fmt::Debug + Send> + Send + 'static,
{
    let layer = IdempotencyLayer::builder(MemoryStore::new())
        .scope(tenant())
        .crash_policy(CrashPolicy::Unknown);
    let app = ServiceBuilder::new()
        .layer(layer.build().unwrap())
        .service(below.layer(handler));
    let mut answers = Vec::new();
    for _ in 0..4 {
        let response = app.clone().oneshot(post()).await.unwrap();
        answers.push(response.status().as_u16());
        response.into_body().collect().await.unwrap();
        tokio::time::sleep(SECOND).await;
    }
    answers
}

/// A payment that is made at once, and then takes its time.
fn slow(
    paid: &Arc<AtomicUsize>,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
+ Clone
+ Send
+ 'static {
    let paid = Arc::clone(paid);
    service_fn(move |_| {
        let paid = Arc::clone(&paid);
        async move {
            paid.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(10 * SECOND).await;
            Ok(Response::new(Full::default()))
        }
    })
}

#[tokio::test(start_paused = true)]
async fn i_12_a_timeout_below_the_layer_is_no_proof() {
    for status in [408, 503] {
        let paid = Arc::default();
        let status = StatusCode::from_u16(status).unwrap();
        let below = TimeoutLayer::with_status_code(status, SECOND);
        let answers = four_times(below, slow(&paid)).await;
        assert_eq!(answers, [status.as_u16(), 409, 409, 409]);
        assert_eq!(paid.load(Ordering::SeqCst), 1, "{status}");
    }
}

/// A reply that a layer of this crate makes without a call, or after one that was never sent, is
/// released; its reply after a call that was sent is kept.
#[tokio::test(start_paused = true)]
async fn i_12_a_layer_that_did_not_call_says_so() {
    for (kind, expected) in [
        (io::ErrorKind::ConnectionRefused, [502, 503, 200, 200]),
        (io::ErrorKind::ConnectionReset, [502, 502, 502, 502]),
    ] {
        let policy = Policy::http().consecutive_failures(1);
        let policy = policy.cooldown(2 * SECOND, 2 * SECOND).build().unwrap();
        let below = ServiceBuilder::new()
            .layer(ProblemLayer::new())
            .layer(CircuitBreakerLayer::new(Dependencies::new(policy)))
            .into_inner();
        let calls = Arc::new(AtomicUsize::new(0));
        let handler = service_fn(move |_: Request<Body>| {
            let first = calls.fetch_add(1, Ordering::SeqCst) == 0;
            async move {
                match first {
                    true => Err(BoxError::from(io::Error::from(kind))),
                    false => Ok(Response::new(Body::default())),
                }
            }
        });
        let answers = four_times(below, handler).await;
        assert_eq!(answers, expected, "{kind:?}");
    }
}
