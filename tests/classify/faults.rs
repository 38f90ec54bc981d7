//! The party at fault for a failure, by the real errors of tower, of nested calls and of clients.

use std::{
    error::Error,
    future::{pending, ready},
    io::{self, ErrorKind},
    task::{Context, Poll},
};

use http::{Request, Response};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, buffer::Buffer, service_fn};
use tower_reprise::{
    CircuitBreakerLayer, Policy, RetryLayer,
    call::{Cause, Health, Retryable, Verdict},
    classify::{Classify, Rules, Standard},
    dependency::BreakerState,
    error::BoxError,
    policy::PolicyBuilder,
};

use crate::support::{call, deps, secs};

fn judge(error: &(dyn Error + 'static)) -> Verdict {
    Classify::<Request<()>, Response<()>>::classify(&Standard, &Rules::standard(), Err(error))
}

fn parts(error: &(dyn Error + 'static)) -> (Cause, Retryable, Health) {
    let verdict = judge(error);
    (verdict.cause, verdict.retry, verdict.health)
}

/// Is never ready, or fails to become so.
struct Unready(Option<ErrorKind>);

impl Service<Request<()>> for Unready {
    type Response = Response<()>;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Response<()>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.0 {
            None => Poll::Pending,
            Some(kind) => Poll::Ready(Err(kind.into())),
        }
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(())))
    }
}

#[tokio::test]
async fn c_10_a_load_that_was_shed_here_says_nothing_of_the_dependency() {
    let client = ServiceBuilder::new().load_shed().service(Unready(None));
    let error = client.oneshot(Request::new(())).await.unwrap_err();
    let expected = (Cause::Cancelled, Retryable::Never, Health::Neutral);
    assert_eq!(parts(&*error), expected);
}

#[tokio::test]
async fn c_10_a_buffer_fails_for_its_own_end_or_for_what_its_worker_met() {
    let (client, worker) = Buffer::pair(Unready(None), 1);
    drop(worker);
    let error = client.oneshot(Request::new(())).await.unwrap_err();
    let expected = (Cause::Cancelled, Retryable::Never, Health::Neutral);
    assert_eq!(parts(&*error), expected);

    let client = Buffer::new(Unready(Some(ErrorKind::ConnectionRefused)), 1);
    let error = client.oneshot(Request::new(())).await.unwrap_err();
    let expected = (Cause::Connect, Retryable::Yes, Health::Failure);
    assert_eq!(parts(&*error), expected);
}

/// The error of a call to another dependency, which takes too long.
async fn nested(policy: PolicyBuilder) -> BoxError {
    let never = service_fn(|_: Request<()>| pending::<Result<Response<()>, BoxError>>());
    let mut client = RetryLayer::new(deps(policy)).layer(never);
    let request = Request::get("http://nested.example/").body(()).unwrap();
    call(&mut client, request).await.unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn c_10_a_nested_calls_timeout_is_neutral() {
    let whole = || Policy::http().total_timeout(secs(2));
    let attempt = || Policy::http().attempt_timeout(secs(1)).max_retries(1);
    for (policy, retry) in [(whole(), Retryable::Never), (attempt(), Retryable::Yes)] {
        let error = nested(policy).await;
        let expected = (Cause::Timeout, retry, Health::Neutral);
        assert_eq!(parts(&*error), expected);
        assert_eq!(parts(&io::Error::other(error)), expected, "in another");
    }
    // A service that makes such a call is a dependency too, and its breaker stays closed.
    let deps = deps(Policy::http().consecutive_failures(1).max_retries(0));
    let service = service_fn(|_: Request<()>| async {
        Err::<Response<()>, _>(nested(Policy::http().total_timeout(secs(2))).await)
    });
    let mut client = CircuitBreakerLayer::new(deps.clone()).layer(service);
    for _ in 0..3 {
        let request = Request::get("http://a.example/").body(()).unwrap();
        call(&mut client, request).await.unwrap_err();
    }
    let breaker = deps.get("a.example").status().breaker;
    assert_eq!(breaker, BreakerState::Closed);
}

/// A retry loop below a breaker calls the breaker's own dependency.
#[tokio::test(start_paused = true)]
async fn cb_1_a_hung_dependency_is_seen_above_its_retry_loop_too() {
    let deps = deps(Policy::http().consecutive_failures(1));
    let never = service_fn(|_: Request<()>| pending::<Result<Response<()>, BoxError>>());
    let mut client = ServiceBuilder::new()
        .layer(CircuitBreakerLayer::new(deps.clone()))
        .layer(RetryLayer::new(deps.clone()))
        .service(never);
    let request = Request::get("http://a.example/").body(()).unwrap();
    call(&mut client, request).await.unwrap_err();
    let breaker = deps.get("a.example").status().breaker;
    assert!(matches!(breaker, BreakerState::Open(_)), "{breaker:?}");
}

#[cfg(feature = "reqwest")]
#[tokio::test]
async fn c_10_a_reply_that_reqwest_can_not_decode_is_a_failure() {
    let reply = reqwest::Response::from(Response::new("no number"));
    let error = reply.json::<u8>().await.unwrap_err();
    let expected = (Cause::Serialization, Retryable::Never, Health::Failure);
    assert_eq!(parts(&error), expected);
}

#[cfg(feature = "tonic")]
#[test]
fn c_10_a_reply_that_tonic_can_not_decode_is_a_failure_and_a_call_that_was_called_off_is_none() {
    let undecodable = tonic::Status::internal("failed to decode Protobuf message");
    assert_eq!(judge(&undecodable).health, Health::Failure);
    let cancelled = tonic::Status::cancelled("by the caller");
    assert_eq!(judge(&cancelled).health, Health::Neutral);
}

#[test]
fn c_10_garbage_is_a_failure() {
    let garbage = io::Error::from(ErrorKind::InvalidData);
    let expected = (Cause::Serialization, Retryable::Never, Health::Failure);
    assert_eq!(parts(&garbage), expected);
}
