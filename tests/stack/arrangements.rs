//! The layers in every subset and order count and charge a call once.

use std::{collections::HashSet, convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::{Layer, Service, ServiceBuilder, service_fn};
use tower_reprise::{
    CircuitBreakerLayer, IdempotencyKeyLayer, RetryAfterLayer, RetryBudgetLayer, RetryLayer,
    RetryOverride,
    call::{Attempt, StopReason},
    dependency::BreakerState,
    error::BoxError,
    policy::Exhaustion,
};

use crate::{
    setup::{
        HOST, PARTS, Part, arrangements, busy, counted, get, lenient, numbered, policy, post,
        request, stack, with,
    },
    support::{
        call, code, deps, outcome,
        scripted::{Server, status},
        secs,
    },
};

/// The un-boxed stack is a service for a body that is in common use.
#[tokio::test(start_paused = true)]
async fn the_whole_stack_composes_without_boxes() {
    fn is_client<S>(client: S) -> S
    where
        S: Service<Request<Full<Bytes>>, Response = Response<Full<Bytes>>, Error = BoxError>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        client
    }
    let deps = deps(policy());
    let server = service_fn(|request: Request<Full<Bytes>>| async move {
        Ok::<_, Infallible>(Response::new(request.into_body()))
    });
    let mut client = is_client(
        ServiceBuilder::new()
            .layer(IdempotencyKeyLayer::new())
            .layer(RetryBudgetLayer::new(deps.clone()))
            .layer(RetryLayer::new(deps.clone()))
            .layer(RetryAfterLayer::new(deps.clone()))
            .layer(CircuitBreakerLayer::new(deps))
            .service(server),
    );
    let request = post().map(|()| Full::from("body"));
    assert_eq!(call(&mut client, request).await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn g_3_every_arrangement_counts_each_original_and_charges_each_retry_once() {
    const FAILURES: [usize; 8] = [0, 1, 0, 2, 3, 0, 1, 0];
    let all = arrangements(&PARTS);
    assert_eq!(all.len(), 326);
    let subsets: HashSet<_> = all
        .iter()
        .filter(|parts| parts.is_sorted_by_key(|part| PARTS.iter().position(|p| p == part)))
        .collect();
    assert_eq!(
        subsets.len(),
        32,
        "each subset in the recommended order is among them"
    );
    for parts in all {
        let server = Server::replies(|request, n| {
            let call: usize = request.headers()["x-call"]
                .to_str()
                .unwrap()
                .parse()
                .unwrap();
            status(if n < FAILURES[call % FAILURES.len()] {
                503
            } else {
                200
            })
        });
        let deps = deps(lenient());
        let mut client = stack(&parts, &deps, &server);
        let place = |part| parts.iter().position(|p| *p == part);
        let retrying = place(Part::Retry);
        let keyed = place(Part::Key) < retrying && place(Part::Key).is_some();
        let mut retries = 0;
        let calls = 2 * FAILURES.len();
        for i in 0..calls {
            let method = if i < FAILURES.len() {
                Method::GET
            } else {
                Method::POST
            };
            let retried = retrying.is_some() && (method == Method::GET || keyed);
            let failures = FAILURES[i % FAILURES.len()];
            let expected = if retried || failures == 0 { 200 } else { 503 };
            let request = numbered(request(method, HOST), i);
            let result = call(&mut client, request).await;
            assert_eq!(code(&result), expected, "{parts:?}, call {i}");
            retries += if retried { failures } else { 0 };
        }
        let counts = retrying.is_some() || place(Part::Budget).is_some();
        let originals = if counts { calls } else { 0 };
        let expected = (originals as u64, retries as u64);
        assert_eq!(counted(&deps), expected, "{parts:?}");
        assert_eq!(server.calls(), calls + retries, "{parts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn g_3_layers_stacked_twice_count_and_charge_once() {
    use Part::{Breaker, Budget, Retry};
    for parts in [
        &[Budget, Budget, Retry][..],
        &[Budget, Retry, Budget],
        &[Retry, Budget, Budget],
        &[Retry, Retry],
        &[Budget, Retry, Budget, Retry, Budget, Breaker],
    ] {
        for failures in [0, 1, 3, 5] {
            let server = Server::replies(move |_, n| status(if n < failures { 503 } else { 200 }));
            let deps = deps(lenient());
            call(&mut stack(parts, &deps, &server), get())
                .await
                .unwrap();
            let (originals, retries) = counted(&deps);
            assert_eq!(originals, 1, "{parts:?}");
            assert_eq!(server.calls() as u64, 1 + retries, "{parts:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn g_3_one_layer_used_twice_counts_once() {
    let deps = deps(lenient());
    let layer = RetryBudgetLayer::new(deps.clone());
    let mut client = layer.clone().layer(layer.layer(Server::always(200)));
    call(&mut client, get()).await.unwrap();
    let repeat = with(get(), Attempt::retry(1));
    call(&mut client, repeat).await.unwrap();
    assert_eq!(counted(&deps), (1, 1));
}

/// Its own registry has not seen them.
#[tokio::test(start_paused = true)]
async fn g_2_a_client_counts_and_charges_what_another_registry_has_marked() {
    let (ours, theirs) = (deps(lenient()), deps(lenient()));
    let server = Server::replies(|_, n| status(if n == 1 { 503 } else { 200 }));
    let forwarding = RetryBudgetLayer::new(theirs.clone()).layer(server);
    let retrying = RetryLayer::new(ours.clone()).layer(forwarding);
    let mut client = RetryBudgetLayer::new(ours.clone()).layer(retrying);
    for _ in 0..2 {
        assert_eq!(code(&call(&mut client, get()).await), 200);
    }
    assert_eq!((counted(&ours), counted(&theirs)), ((2, 1), (2, 1)));
}

#[tokio::test(start_paused = true)]
async fn g_3_concurrent_calls_are_counted_and_charged_once_each() {
    let server = Server::new(|_, n| async move {
        sleep(Duration::from_millis(5)).await;
        Ok(status(if n == 0 { 503 } else { 200 }))
    });
    let deps = deps(lenient());
    let client = stack(&PARTS, &deps, &server);
    let mut calls = JoinSet::new();
    for i in 0..100 {
        let mut client = client.clone();
        calls.spawn(async move { call(&mut client, numbered(post(), i)).await });
    }
    for result in calls.join_all().await {
        assert_eq!((code(&result), outcome(&result)), (200, Some((2, None))));
    }
    assert_eq!((counted(&deps), server.calls()), ((100, 100), 200));
}

#[tokio::test(start_paused = true)]
async fn g_3_nothing_is_charged_for_a_retry_that_something_else_forbids() {
    let off = || with(get(), RetryOverride::off());
    let large = || {
        let mut request = get();
        let value = "v".repeat(64 * 1024).parse().unwrap();
        request.headers_mut().insert("x-large", value);
        request
    };
    let breaker = || policy().consecutive_failures(1).cooldown(secs(9), secs(9));
    for (name, policy, request, server) in [
        ("attempts", policy(), off(), Server::always(503)),
        (
            "deadline",
            policy().total_timeout(secs(1)),
            get(),
            Server::always(503),
        ),
        ("head", policy(), large(), Server::always(503)),
        ("breaker", breaker(), get(), Server::always(503)),
        (
            "method",
            policy(),
            request(Method::PATCH, HOST),
            Server::always(503),
        ),
        ("status", policy(), get(), Server::always(404)),
        (
            "time asked for",
            policy(),
            get(),
            Server::replies(|_, _| busy(503, 60)),
        ),
    ] {
        let deps = deps(policy);
        let parts = &PARTS[1..];
        let result = call(&mut stack(parts, &deps, &server), request).await;
        assert!(result.is_ok(), "{name}");
        assert_eq!((counted(&deps), server.calls()), ((1, 0), 1), "{name}");
    }
}

// Dependencies

#[tokio::test(start_paused = true)]
async fn g_2_what_one_dependency_does_never_touches_another() {
    let server = Server::replies(|request, n| match request.uri().host() {
        Some("a.example") => busy(503, 20),
        _ => status(if n == 0 { 503 } else { 200 }),
    });
    let deps = deps(policy().budget_floor(1).consecutive_failures(2));
    let mut client = stack(&PARTS, &deps, &server);
    let off = || with(get(), RetryOverride::off());
    for i in 0..5 {
        let _ = call(&mut client, numbered(off(), i)).await;
    }
    let a = deps.get("a.example").status();
    assert!(matches!(a.breaker, BreakerState::Open(_)));
    assert!(a.hold.is_some());

    let start = Instant::now();
    let b = numbered(request(Method::GET, "b.example"), 10);
    let result = call(&mut client, b).await;
    assert_eq!((code(&result), start.elapsed()), (200, secs(1)));
    let b = deps.get("b.example").status();
    assert_eq!((b.originals, b.retries), (1, 1));
    assert_eq!((b.breaker, b.hold), (BreakerState::Closed, None));
    assert_eq!(deps.get("a.example").status().retries, 0);
}

#[tokio::test(start_paused = true)]
async fn g_2_one_budget_used_up_leaves_the_others() {
    let server = Server::always(503);
    let deps = deps(
        policy()
            .budget_floor(2)
            .on_budget_exhausted(Exhaustion::Never),
    );
    let mut client = stack(&[Part::Retry], &deps, &server);
    for (host, attempts) in [("a.example", 3), ("a.example", 1), ("b.example", 3)] {
        let result = call(&mut client, request(Method::GET, host)).await;
        assert_eq!(
            outcome(&result),
            Some((attempts, Some(StopReason::Budget))),
            "{host}"
        );
    }
}
