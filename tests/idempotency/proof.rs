//! Layers below that answer in the handler's place, after it began or before: I-12.

use std::{
    convert::Infallible,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::timeout::TimeoutLayer;
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, Policy, ProblemLayer, RetryLayer,
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

/// A breaker that refuses after the first attempt did not speak for that attempt.
#[tokio::test(start_paused = true)]
async fn i_12_a_refusal_after_an_attempt_is_no_proof() {
    for (kind, expected) in [
        (io::ErrorKind::ConnectionReset, [503, 409, 409, 409]),
        (io::ErrorKind::ConnectionRefused, [503, 503, 503, 503]),
    ] {
        let policy = Policy::synchronous().consecutive_failures(1);
        let policy = policy.cooldown(Duration::from_secs(60), Duration::from_secs(60));
        let deps = Dependencies::new(policy.build().unwrap());
        let below = ServiceBuilder::new()
            .layer(ProblemLayer::new())
            .layer(RetryLayer::new(deps.clone()))
            .layer(CircuitBreakerLayer::new(deps.clone()))
            .map_response(|response: Response<Body>| response)
            .into_inner();
        let handler = service_fn(move |_: Request<Body>| async move {
            Err::<Response<Body>, _>(BoxError::from(io::Error::from(kind)))
        });
        let answers = four_times(below, handler).await;
        assert_eq!(answers, expected, "{kind:?}");
    }
}
