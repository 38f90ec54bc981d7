//! The service below is readied for every attempt, and never held between them.

use std::{future::pending, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response};
use tokio::time::{advance, sleep, timeout};
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer, service_fn,
    util::BoxCloneService,
};
use tower_reprise::{
    CircuitBreakerLayer, IdempotencyKey, IdempotencyKeyLayer, RetryAfterLayer, RetryBudgetLayer,
    RetryLayer,
    call::Attempt,
    error::{BoxError, Rule},
};

use crate::{
    setup::{Client, HOST, MILLISECOND, Marked, get, policy, request},
    support::{
        Fixed, call, code, deps, outcome,
        scripted::{Server, Step},
        secs,
    },
};

#[tokio::test(start_paused = true)]
async fn d_7_every_attempt_waits_for_readiness() {
    let (mock, mut handle) = tower_test::mock::pair::<Request<()>, Response<()>>();
    handle.allow(1);
    let deps = deps(policy().backoff(Fixed(secs(1))));
    let mut client = task::spawn(RetryLayer::new(deps).layer(mock));
    assert_ready_ok!(client.enter(|cx, mut client| client.poll_ready(cx)));
    let mut future = task::spawn(client.call(get()));
    let fail = |reply: tower_test::mock::SendResponse<Response<()>>| {
        reply.send_response(Response::builder().status(503).body(()).unwrap());
    };

    assert_pending!(future.poll());
    let (first, reply) = assert_ready!(handle.poll_request()).unwrap();
    assert!(first.extensions().get::<Attempt>().is_none());
    fail(reply);
    assert_pending!(future.poll(), "in its wait");
    assert_pending!(handle.poll_request());

    advance(secs(1)).await;
    assert!(future.is_woken());
    assert_pending!(future.poll(), "the service is not ready");
    assert_pending!(handle.poll_request());

    handle.allow(1);
    assert!(future.is_woken());
    assert_pending!(future.poll());
    let (second, reply) = assert_ready!(handle.poll_request()).unwrap();
    let attempt = second.extensions().get::<Attempt>().copied();
    assert_eq!(attempt.map(|attempt| attempt.number()), Some(2));

    handle.allow(1);
    reply.send_response(Response::new(()));
    let response = assert_ready_ok!(future.poll());
    assert_eq!(response.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn d_7_a_readiness_error_returns_unchanged() {
    let (mock, mut handle) = tower_test::mock::pair::<Request<()>, Response<()>>();
    let deps = deps(policy().backoff(Fixed(secs(1))));
    let mut client = task::spawn(RetryLayer::new(deps.clone()).layer(mock));
    let broken = || Marked("closed".into());

    handle.send_error(broken());
    let error = assert_ready_err!(client.enter(|cx, mut client| client.poll_ready(cx)));
    assert!(error.is::<Marked>(), "before the first attempt: {error:?}");

    assert_ready_ok!(client.enter(|cx, mut client| client.poll_ready(cx)));
    let mut future = task::spawn(client.call(get()));
    assert_pending!(future.poll());
    let (_, reply) = assert_ready!(handle.poll_request()).unwrap();
    reply.send_response(Response::builder().status(503).body(()).unwrap());
    assert_pending!(future.poll());
    handle.send_error(broken());
    advance(secs(1)).await;
    let error = assert_ready_err!(future.poll());
    assert!(error.is::<Marked>(), "before a retry: {error:?}");
    drop(future);
    assert_eq!(deps.get(HOST).status().retries, 0, "it was not sent");
}

#[tokio::test(start_paused = true)]
async fn d_7_a_concurrency_limit_of_one_below_never_deadlocks() {
    for stacked in [false, true] {
        let deps = deps(
            policy()
                .backoff(Fixed(MILLISECOND))
                .approve(Rule::R7, "test")
                .budget_floor(100)
                .consecutive_failures(100)
                .failure_rate(1.0, 1000, secs(30)),
        );
        // Fails the first attempt of each call, and takes a while for each.
        let server = service_fn(|request: Request<()>| async move {
            sleep(Duration::from_millis(10)).await;
            let retry = request.extensions().get::<Attempt>().is_some();
            let status = if retry { 200 } else { 503 };
            let response = Response::builder().status(status);
            Ok::<_, BoxError>(response.body(Bytes::new())?)
        });
        let limited = ConcurrencyLimitLayer::new(1).layer(server);
        let client: Client = if stacked {
            BoxCloneService::new(
                ServiceBuilder::new()
                    .layer(IdempotencyKeyLayer::new().with_persist(|_, _: &_| async {
                        sleep(MILLISECOND).await;
                        Ok::<_, BoxError>(())
                    }))
                    .layer(RetryBudgetLayer::new(deps.clone()))
                    .layer(RetryLayer::new(deps.clone()))
                    .layer(RetryAfterLayer::new(deps.clone()))
                    .layer(CircuitBreakerLayer::new(deps.clone()))
                    .service(limited),
            )
        } else {
            BoxCloneService::new(RetryLayer::new(deps.clone()).layer(limited))
        };
        // One service, as a caller with a loop has it.
        let mut own = client.clone();
        for method in [Method::PUT, Method::GET, Method::POST] {
            let keyless = method == Method::POST && !stacked;
            let call = call(&mut own, request(method));
            let result = timeout(secs(3600), call).await.expect("a deadlock");
            assert_eq!(code(&result), if keyless { 503 } else { 200 });
        }
        // And many clones at a time, while that one is idle but alive.
        let mut tasks = tokio::task::JoinSet::new();
        for i in 0..20 {
            let mut client = client.clone();
            let method = if stacked && i % 2 == 0 {
                Method::POST
            } else {
                Method::GET
            };
            tasks.spawn(async move { call(&mut client, request(method)).await });
        }
        let results = timeout(secs(3600), tasks.join_all()).await;
        for result in results.expect("a deadlock") {
            assert_eq!((code(&result), outcome(&result)), (200, Some((2, None))));
        }
    }
}

/// Whether the place in a concurrency limit is free again once `layer` has `refused` a call,
/// though that service and its future are alive.
async fn frees_the_place<L>(layer: L, first: Option<Request<()>>, refused: Request<()>)
where
    L: Layer<tower::limit::ConcurrencyLimit<Server>>,
    L::Service:
        Service<Request<()>, Response = Response<Bytes>, Error = BoxError> + Clone + Send + 'static,
    <L::Service as Service<Request<()>>>::Future: Send,
{
    let server = Server::steps(|_| Step::with_header(503, "retry-after", "5"));
    let limited = ConcurrencyLimitLayer::new(1).layer(server.clone());
    let mut one = layer.layer(limited);
    let mut other = one.clone();
    let mut calls = 0;
    if let Some(first) = first {
        assert_eq!(code(&call(&mut one, first).await), 503);
        calls = 1;
    }
    one.ready().await.unwrap();
    let mut waiting = task::spawn(other.ready());
    assert!(waiting.poll().is_pending(), "the place is taken");
    let mut future = task::spawn(one.call(refused));
    let _refused = future.poll();
    assert_eq!(server.calls(), calls, "it was refused, or waits");
    assert!(waiting.is_woken());
    assert!(waiting.poll().is_ready());
}

#[tokio::test(start_paused = true)]
async fn d_7_a_refused_or_waiting_call_keeps_no_place_in_a_limit_below() {
    let breaker = deps(policy().consecutive_failures(1));
    frees_the_place(CircuitBreakerLayer::new(breaker), Some(get()), get()).await;

    let gate = deps(policy());
    frees_the_place(RetryAfterLayer::new(gate), Some(get()), get()).await;

    let gate = deps(policy().total_timeout(secs(1)));
    frees_the_place(RetryAfterLayer::new(gate), Some(get()), get()).await;

    let budget = deps(policy().budget_ratio(0.0).budget_floor(0));
    let mut repeat = get();
    repeat.extensions_mut().insert(Attempt::retry(1));
    frees_the_place(RetryBudgetLayer::new(budget), None, repeat).await;

    let keys = IdempotencyKeyLayer::new();
    let mut long = request(Method::POST);
    let key = IdempotencyKey::new("k".repeat(65)).unwrap();
    long.extensions_mut().insert(key);
    frees_the_place(keys.clone(), None, long).await;

    let persist = keys.with_persist(|_, _: &_| pending::<Result<(), BoxError>>());
    frees_the_place(persist, None, request(Method::POST)).await;
}

#[tokio::test(start_paused = true)]
async fn d_7_between_attempts_a_call_keeps_no_place_in_a_limit_below() {
    let server = Server::statuses([503, 200, 200]);
    let limited = ConcurrencyLimitLayer::new(1).layer(server.clone());
    let deps = deps(policy().backoff(Fixed(secs(5))));
    let mut one = RetryLayer::new(deps).layer(limited);
    let mut other = one.clone();
    one.ready().await.unwrap();
    let mut future = task::spawn(one.call(get()));
    assert_pending!(future.poll(), "in its wait");
    assert_eq!(code(&call(&mut other, get()).await), 200);
    advance(secs(5)).await;
    assert_eq!(code(&assert_ready!(future.poll())), 200);
}
