//! The breaker under a retry loop: what a dependency that hangs, a classifier of your own and a
//! call that has ended do to it.

use std::{
    convert::Infallible,
    future::{pending, ready},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Request, Response};
use tower::{
    Service, ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer, service_fn,
    util::BoxCloneService,
};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, Policy, RetryLayer, RetryOutcome, RetryOverride,
    call::{Cause, StopReason, Verdict},
    dependency::BreakerState,
    error::{BoxError, Refusal, Refused},
};

const SECOND: Duration = Duration::from_secs(1);

fn get() -> Request<()> {
    Request::get("http://stock.example/").body(()).unwrap()
}

type Client = BoxCloneService<Request<()>, Response<()>, BoxError>;

fn hanging(deps: &Dependencies) -> Client {
    ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()))
        .layer(CircuitBreakerLayer::new(deps.clone()))
        .service_fn(|_: Request<()>| pending::<Result<Response<()>, Infallible>>())
        .boxed_clone()
}

#[tokio::test(start_paused = true)]
async fn cb_1_a_dependency_that_hangs_opens_its_breaker() {
    let timed = Policy::http().attempt_timeout(SECOND).build().unwrap();
    let untimed = Policy::http().build().unwrap();
    for (policy, wish, opens) in [
        (timed, RetryOverride::new(), true),
        (untimed.clone(), RetryOverride::new(), true),
        // C-10: a caller's own limit says nothing.
        (untimed, RetryOverride::new().total_timeout(SECOND), false),
    ] {
        let deps = Dependencies::new(policy);
        let client = hanging(&deps);
        for _ in 0..5 {
            let mut request = get();
            request.extensions_mut().insert(wish.clone());
            let _ = client.clone().oneshot(request).await;
        }
        let breaker = deps.get("stock.example").status().breaker;
        let opened = matches!(breaker, BreakerState::Open(_));
        assert_eq!(opened, opens, "{breaker:?} after {wish:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn cb_5_a_call_that_the_caller_gives_up_says_nothing() {
    let deps = Dependencies::new(Policy::http().build().unwrap());
    let client = hanging(&deps);
    for _ in 0..20 {
        let call = client.clone().oneshot(get());
        assert!(tokio::time::timeout(SECOND, call).await.is_err());
    }
    assert_eq!(
        deps.get("stock.example").status().breaker,
        BreakerState::Closed
    );
}

/// Outside of gRPC `grpc-timeout` is a header like any other, and whoever sends it to a proxy does
/// not get to time its calls out.
#[tokio::test(start_paused = true)]
async fn d_1_only_a_grpc_call_has_a_grpc_timeout() {
    for (content_type, closed) in [("text/plain", true), ("application/grpc", false)] {
        let deps = Dependencies::new(Policy::http().build().unwrap());
        let client = ServiceBuilder::new()
            .layer(RetryLayer::new(deps.clone()))
            .layer(CircuitBreakerLayer::new(deps.clone()))
            .service_fn(async |_: Request<()>| {
                tokio::time::sleep(SECOND).await;
                Ok::<_, Infallible>(Response::new(()))
            })
            .boxed_clone();
        for retries in [3, 0, 3, 0, 3] {
            let mut request = get();
            let headers = request.headers_mut();
            headers.insert("grpc-timeout", "1m".parse().unwrap());
            headers.insert("content-type", content_type.parse().unwrap());
            let wish = RetryOverride::new().max_retries(retries);
            request.extensions_mut().insert(wish);
            assert_eq!(client.clone().oneshot(request).await.is_ok(), closed);
        }
        // C-10: it is the caller's, and says nothing about the dependency.
        let breaker = deps.get("stock.example").status().breaker;
        assert_eq!(breaker, BreakerState::Closed, "{content_type}");
    }
}

#[derive(Clone)]
struct Event;

fn judge(outcome: Result<&(), &(dyn std::error::Error + 'static)>) -> Verdict {
    match outcome {
        Ok(()) => Verdict::SUCCESS,
        Err(_) => Verdict::transient(Cause::Other("handler")),
    }
}

/// A consumer that can't call somebody else was called itself.
#[tokio::test(start_paused = true)]
async fn cb_7_a_refusal_by_another_dependency_is_a_failure_like_any_other() {
    let deps = Dependencies::builder(Policy::events().build().unwrap())
        .with_locate_message(|_: &Event| "orders".into())
        .with_classifier(judge)
        .build();
    let calls = Arc::new(AtomicUsize::new(0));
    let handler = service_fn({
        let calls = Arc::clone(&calls);
        move |_: Event| {
            let first = calls.fetch_add(1, Ordering::Relaxed) == 0;
            let refused = || Refused::new(Refusal::Breaker, "payments", Some(SECOND));
            ready(if first { Err(refused()) } else { Ok(()) })
        }
    });
    let consumer = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()).cloning())
        .layer(CircuitBreakerLayer::new(deps.clone()))
        .service(handler);
    consumer.oneshot(Event).await.unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    assert_eq!(deps.get("orders").status().retries, 1);
}

#[tokio::test(start_paused = true)]
async fn cb_7_a_refusal_is_known_whatever_the_classifier_says() {
    let deps = Dependencies::builder(
        Policy::events()
            .consecutive_failures(1)
            .cooldown(SECOND * 600, SECOND * 600)
            .build()
            .unwrap(),
    )
    .with_locate_message(|_: &Event| "orders".into())
    .with_classifier(judge)
    .build();
    let calls = Arc::new(AtomicUsize::new(0));
    let consumer = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()).cloning())
        .layer(CircuitBreakerLayer::new(deps.clone()))
        .service(service_fn({
            let calls = Arc::clone(&calls);
            move |_: Event| {
                calls.fetch_add(1, Ordering::Relaxed);
                ready(Err::<(), _>(std::io::Error::other("no")))
            }
        }));
    let error = consumer.clone().oneshot(Event).await.unwrap_err();
    assert!(Refused::find(&*error).is_none(), "the real error: {error}");
    let outcome = RetryOutcome::of_error(&*error).unwrap();
    assert_eq!(
        (outcome.attempts(), outcome.stop_reason()),
        (1, Some(StopReason::Breaker))
    );

    let refused = consumer.oneshot(Event).await.unwrap_err();
    assert_eq!(
        Refused::find(&*refused).map(Refused::kind),
        Some(Refusal::Breaker)
    );
    let outcome = RetryOutcome::of_error(&*refused).unwrap();
    assert_eq!(
        (outcome.attempts(), outcome.stop_reason()),
        (0, Some(StopReason::Breaker))
    );
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(
        deps.get("orders").status().retries,
        0,
        "nothing was sent, nothing is charged"
    );
}

#[tokio::test(start_paused = true)]
async fn d_7_a_call_that_has_ended_holds_nothing_back() {
    let deps = Dependencies::new(Policy::http().build().unwrap());
    let client = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(service_fn({
            let calls = Arc::new(AtomicUsize::new(0));
            move |_: Request<()>| {
                let first = calls.fetch_add(1, Ordering::Relaxed) == 0;
                async move {
                    if !first {
                        pending::<()>().await;
                    }
                    Ok::<_, Infallible>(Response::builder().status(503).body(()).unwrap())
                }
            }
        }));
    let mut caller = client.clone();
    let mut first = Box::pin(caller.ready().await.unwrap().call(get()));
    let response = (&mut first).await.unwrap();
    let outcome = RetryOutcome::of(&response).unwrap();
    assert_eq!(
        (response.status().as_u16(), outcome.stop_reason()),
        (503, Some(StopReason::Deadline))
    );
    // The first future still exists, yet its place is free.
    let mut second = client;
    let ready = tokio::time::timeout(SECOND, second.ready()).await;
    assert!(ready.is_ok(), "the ended call keeps its place in the limit");
    drop(first);
}
