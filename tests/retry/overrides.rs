//! Overrides of one request, and calls that are dropped.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use http::{Request, Response};
use tokio::time::{Instant, advance};
use tokio_test::{assert_pending, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, RetryLayer, RetryOverride,
    call::StopReason,
    error::{BoxError, Elapsed, Rule},
    policy::PolicyBuilder,
};

use crate::{
    setup::{HOST, MILLISECOND, client, get, policy},
    support::{
        Fixed, call, code, deps, find, outcome,
        scripted::{Server, Step},
        secs,
    },
};

async fn overridden(policy: PolicyBuilder, wish: RetryOverride) -> (usize, Duration) {
    let server = Server::steps(|_| Step::status(503).after(secs(1)));
    let (_, mut client) = client(policy.backoff(Fixed(MILLISECOND)), &server);
    let mut request = get();
    request.extensions_mut().insert(wish);
    let start = Instant::now();
    let result = call(&mut client, request).await;
    assert_eq!(code(&result), 503);
    (server.calls(), start.elapsed())
}

#[tokio::test(start_paused = true)]
async fn d_5_a_request_lowers_or_raises_retries_inside_the_range() {
    for (asked, calls) in [(0, 1), (1, 2), (3, 4), (5, 6), (6, 6), (u32::MAX, 6)] {
        let wish = RetryOverride::new().max_retries(asked);
        assert_eq!(overridden(policy(), wish).await.0, calls, "{asked}");
    }
    let wish = RetryOverride::off();
    assert_eq!(overridden(policy(), wish).await.0, 1);
    // An approved policy of more than the range is its own ceiling.
    let approved = policy().max_retries(7).approve(Rule::R2, "test");
    let wish = RetryOverride::new().max_retries(50);
    assert_eq!(overridden(approved, wish).await.0, 8);
}

#[tokio::test(start_paused = true)]
async fn d_5_a_request_lowers_or_raises_its_deadline_inside_the_range() {
    let stalled = |total: Duration| async move {
        let server = Server::steps(|_| Step::Never);
        let (_, mut client) = client(policy().total_timeout(secs(10)), &server);
        let mut request = get();
        let wish = RetryOverride::new().total_timeout(total);
        request.extensions_mut().insert(wish);
        let start = Instant::now();
        let error = call(&mut client, request).await.unwrap_err();
        assert_eq!(find::<Elapsed>(&*error).unwrap().limit(), start.elapsed());
        start.elapsed()
    };
    assert_eq!(stalled(secs(2)).await, secs(2));
    assert_eq!(stalled(secs(20)).await, secs(20));
    assert_eq!(stalled(secs(31)).await, secs(30));
    assert_eq!(stalled(Duration::MAX).await, secs(30));
    assert_eq!(stalled(Duration::ZERO).await, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn d_5_a_request_names_another_dependency_with_its_own_policy() {
    let server = Server::steps(|_| Step::status(503));
    let one = policy().max_retries(1).build().unwrap();
    let deps = Dependencies::builder(policy().build().unwrap())
        .policy_for("ledger", one)
        .build();
    let mut client = RetryLayer::new(deps.clone()).layer(server.clone());
    let mut request = get();
    let wish = RetryOverride::new().dependency("Ledger");
    request.extensions_mut().insert(wish);
    let result = call(&mut client, request).await;
    assert_eq!(outcome(&result), Some((2, Some(StopReason::Exhausted))));
    let (ledger, host) = (deps.get("ledger").status(), deps.get(HOST).status());
    assert_eq!((ledger.originals, ledger.retries), (1, 1));
    assert_eq!((host.originals, host.retries), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn d_5_a_request_names_another_dependency_where_a_closure_locates() {
    let server = Server::steps(|_| Step::status(503));
    let one = policy().max_retries(1).build().unwrap();
    let deps = Dependencies::builder(policy().build().unwrap())
        .policy_for("ledger", one)
        .with_locate(|_: &Request<()>| "orders".into())
        .build();
    let mut client = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()))
        .layer(CircuitBreakerLayer::new(deps.clone()))
        .service(server.clone());
    // One after the other: the client remembers where it went last.
    for (wish, name, calls) in [
        (RetryOverride::new(), "orders", 4),
        (RetryOverride::new().dependency("Ledger"), "ledger", 2),
        (RetryOverride::off(), "orders", 1),
    ] {
        let before = (server.calls(), deps.get(name).status().originals);
        let mut request = get();
        request.extensions_mut().insert(wish);
        call(&mut client, request).await.unwrap();
        assert_eq!(server.calls() - before.0, calls, "{name}");
        assert_eq!(deps.get(name).status().originals - before.1, 1, "{name}");
    }
}

/// A stream may take its time to begin, and a call that is not retried is as it would be without
/// the layer.
#[tokio::test(start_paused = true)]
async fn d_5_a_call_without_retries_has_no_time_limit_but_one_that_was_set() {
    let off = RetryOverride::off;
    for (policy, wish, limit) in [
        (policy(), off(), None),
        (policy().total_timeout(secs(9)), off(), None),
        (policy(), off().total_timeout(secs(5)), Some(5)),
        (policy().max_retries(0), RetryOverride::new(), None),
        (
            policy().max_retries(0).total_timeout(secs(9)),
            RetryOverride::new(),
            Some(9),
        ),
        // As long as the profile's.
        (
            policy().max_retries(0).total_timeout(secs(30)),
            RetryOverride::new(),
            Some(30),
        ),
        (
            policy().max_retries(0),
            RetryOverride::new().max_retries(1),
            Some(30),
        ),
        (policy(), RetryOverride::new(), Some(30)),
        (policy().attempt_timeout(secs(2)), off(), Some(2)),
    ] {
        let server = Server::steps(|_| Step::status(200).after(secs(3600)));
        let (_, mut client) = client(policy, &server);
        let mut request = get();
        request.extensions_mut().insert(wish.clone());
        let start = Instant::now();
        let result = call(&mut client, request).await;
        assert_eq!(result.is_ok(), limit.is_none(), "{wish:?}");
        let expected = limit.unwrap_or(3600);
        assert_eq!(start.elapsed(), secs(expected), "{wish:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn d_6_dropped_in_the_middle_of_a_wait_the_charge_is_given_back() {
    let server = Server::statuses([503, 200]);
    let (deps, mut client) = client(policy().backoff(Fixed(secs(5))), &server);
    client.ready().await.unwrap();
    let mut future = task::spawn(client.call(get()));
    assert_pending!(future.poll());
    assert_eq!(deps.get(HOST).status().retries, 1, "granted");
    advance(secs(3)).await;
    assert_pending!(future.poll());
    drop(future);
    assert_eq!(deps.get(HOST).status().retries, 0, "given back");
    advance(secs(60)).await;
    assert_eq!(server.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn d_6_dropped_while_a_retry_is_out_the_charge_stays_and_the_attempt_is_cancelled() {
    let alive = Arc::new(());
    let attempts = Arc::new(AtomicU32::new(0));
    let service = service_fn({
        let alive = Arc::clone(&alive);
        let attempts = Arc::clone(&attempts);
        move |_: Request<()>| {
            let held = Arc::clone(&alive);
            let first = attempts.fetch_add(1, Ordering::Relaxed) == 0;
            async move {
                if first {
                    return Ok::<_, BoxError>(Response::builder().status(503).body(())?);
                }
                pending::<()>().await;
                drop(held);
                unreachable!()
            }
        }
    });
    let deps = deps(policy().backoff(Fixed(secs(1))));
    let mut client = RetryLayer::new(deps.clone()).layer(service);
    client.ready().await.unwrap();
    let mut future = task::spawn(client.call(get()));
    assert_pending!(future.poll());
    advance(secs(1)).await;
    assert_pending!(future.poll());
    assert_eq!(attempts.load(Ordering::Relaxed), 2);
    let services = Arc::strong_count(&alive);
    drop(future);
    // The attempt's own, and that of the service which the call kept.
    assert_eq!(Arc::strong_count(&alive), services - 2);
    assert_eq!(deps.get(HOST).status().retries, 1, "it was sent");
}
