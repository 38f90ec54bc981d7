//! What a first-time user writes: named types, functions, hooks, and criteria that are switched off.

use std::{
    error::Error,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, header::AUTHORIZATION};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, IdempotencyKey, Policy, RetryLayer,
    call::{Attempt, Cause, Verdict},
    client::retry::{ClonedRequests, RequestIds, Retry},
    dependency::{BoxDependencies, BreakerState},
    error::BoxError,
    policy::PolicyBuilder,
    stacks,
};

use crate::{
    setup::{HOST, get, lenient, post, with_header},
    support::{
        call,
        scripted::{Server, status},
        secs,
    },
};

/// One lifetime for reply and error.
fn busy<'a>(outcome: Result<&'a Response<Bytes>, &'a (dyn Error + 'static)>) -> Verdict {
    match outcome {
        Ok(reply) if reply.status() == 418 => Verdict::transient(Cause::Other("busy")),
        Ok(_) => Verdict::SUCCESS,
        Err(_) => Verdict::transient(Cause::Unknown),
    }
}

/// Two of them.
fn busy_too(outcome: Result<&Response<Bytes>, &(dyn Error + 'static)>) -> Verdict {
    busy(outcome)
}

#[tokio::test(start_paused = true)]
async fn c_5_functions_with_one_lifetime_or_two_are_classifiers() {
    let builder = || Dependencies::builder(lenient().build().unwrap());
    for two in [false, true] {
        let server = Server::replies(|_, _| status(418));
        let client = match two {
            false => RetryLayer::new(builder().with_classifier(busy).build())
                .layer(server.clone())
                .boxed_clone(),
            true => RetryLayer::new(builder().with_classifier(busy_too).build())
                .layer(server.clone())
                .boxed_clone(),
        };
        let _ = call(&mut { client }, get()).await;
        assert_eq!(server.calls(), 4);
    }
}

#[derive(Debug, Clone, Default)]
struct Order {
    attempt: Option<u32>,
}

impl RequestIds for Order {
    fn set_attempt(&mut self, attempt: Attempt) {
        self.attempt = Some(attempt.number());
    }
}

/// A struct whose fields have types that can be written down, though they come from closures.
struct Consumer<S> {
    deps: BoxDependencies<Order, ()>,
    retry: RetryLayer<
        tower_reprise::classify::BoxClassify<Order, ()>,
        tower_reprise::dependency::BoxLocate<Order>,
        ClonedRequests<tower_reprise::client::retry::WithIds>,
    >,
    orders: S,
}

#[tokio::test(start_paused = true)]
async fn o_4_cloned_calls_tell_their_attempts_in_a_registry_with_a_name() {
    let judge = |outcome: Result<&(), &(dyn Error + 'static)>| match outcome {
        Ok(()) => Verdict::SUCCESS,
        Err(_) => Verdict::transient(Cause::Unknown),
    };
    let deps = Dependencies::builder(Policy::batch_item().build().unwrap())
        .with_classifier(judge)
        .with_locate_message(|_: &Order| "orders".into())
        .boxed()
        .build();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let orders = service_fn({
        let seen = Arc::clone(&seen);
        move |order: Order| {
            seen.lock().unwrap().push(order.attempt);
            async { Err::<(), BoxError>("down".into()) }
        }
    });
    let consumer = Consumer {
        retry: RetryLayer::new(deps.clone()).cloning().with_request_ids(),
        deps,
        orders,
    };
    let service: Retry<_, _, _, _> = consumer.retry.layer(consumer.orders);
    assert!(service.oneshot(Order::default()).await.is_err());
    assert_eq!(*seen.lock().unwrap(), [None, Some(2), Some(3), Some(4)]);
    assert_eq!(consumer.deps.get("orders").status().retries, 3);
}

/// Counts what its hooks are asked for.
#[derive(Debug, Clone, Default)]
struct Hooks(Arc<Mutex<Vec<String>>>);

type Persist =
    fn(IdempotencyKey, &Request<Full<Bytes>>) -> std::future::Ready<Result<(), BoxError>>;
type Refreshed = std::future::Ready<Result<Request<Full<Bytes>>, BoxError>>;
type Renew = fn(Request<Full<Bytes>>, Attempt) -> Refreshed;

/// The stack with every option, as a field.
struct Api<S> {
    client: stacks::Client<
        S,
        tower_reprise::classify::Standard,
        tower_reprise::dependency::ByAuthority,
        Persist,
        tower_reprise::client::retry::Refresh<Renew>,
    >,
}

#[tokio::test(start_paused = true)]
async fn k_4_s_1_the_stack_takes_hooks_and_its_service_has_a_name() {
    let server = Server::replies(|request, _| match request.headers().get(AUTHORIZATION) {
        Some(token) if token == "Bearer fresh" => status(200),
        _ => status(401),
    });
    let persist: Persist = |key, request| {
        let ok = key.as_str().len() == 36 && request.method() == "POST";
        std::future::ready(ok.then_some(()).ok_or_else(|| "no key".into()))
    };
    let renew: Renew = |mut request, _| {
        let token = "Bearer fresh".parse().unwrap();
        request.headers_mut().insert(AUTHORIZATION, token);
        std::future::ready(Ok(request))
    };
    let inner = server.clone();
    let inner = service_fn(move |request: Request<Full<Bytes>>| {
        let server = inner.clone();
        async move { Ok::<_, BoxError>(server.oneshot(request.map(|_| ())).await?.map(Full::new)) }
    });
    let deps = Dependencies::new(lenient().build().unwrap());
    let layers = stacks::ClientBuilder::new(deps)
        .with_persist(persist)
        .with_refresh(renew)
        .build();
    let api = Api {
        client: layers.layer(inner),
    };
    let request = with_header(post(), "authorization", "Bearer stale").map(|()| Full::default());
    let reply = api.client.oneshot(request).await.unwrap();
    assert_eq!((reply.status().as_u16(), server.calls()), (200, 2));
}

#[tokio::test(start_paused = true)]
async fn k_2_the_stack_stamps_no_key_if_told_so_and_sends_those_that_are_given() {
    let hooks = Hooks::default();
    let stored = hooks.clone();
    let server = Server::replies(|_, _| status(200));
    let inner = server.clone();
    let deps = Dependencies::new(lenient().build().unwrap());
    let client =
        stacks::ClientBuilder::new(deps)
            .with_persist(move |key: IdempotencyKey, _: &Request<Full<Bytes>>| {
                stored.0.lock().unwrap().push(key.as_str().to_owned());
                async { Ok(()) }
            })
            .without_keys()
            .build()
            .layer(service_fn(move |request: Request<Full<Bytes>>| {
                let server = inner.clone();
                async move {
                    Ok::<_, BoxError>(server.oneshot(request.map(|_| ())).await?.map(Full::new))
                }
            }));
    for request in [post(), with_header(post(), "idempotency-key", "mine")] {
        let request = request.map(|()| Full::default());
        client.clone().oneshot(request).await.unwrap();
    }
    let sent = server.header("idempotency-key");
    assert_eq!(sent, [None, Some("mine".into())]);
    assert_eq!(*hooks.0.lock().unwrap(), ["mine"]);
}

/// CB-11: each criterion can be switched off by itself, and the counts of the window are seen.
#[tokio::test(start_paused = true)]
async fn cb_11_each_criterion_can_be_switched_off() {
    let counts = || {
        Policy::http()
            .consecutive_failures(3)
            .failure_rate(0.5, 4, secs(30))
            .without_throttle()
    };
    type Change = fn(PolicyBuilder) -> PolicyBuilder;
    let cases: [(Change, usize); 4] = [
        (|policy| policy, 3),
        (PolicyBuilder::without_failure_rate, 3),
        (PolicyBuilder::without_consecutive_failures, 4),
        (PolicyBuilder::without_breaker, 10),
    ];
    for (change, expected) in cases {
        let policy = change(counts()).build().unwrap();
        let deps = Dependencies::new(policy);
        let server = Server::steps(|_| {
            crate::support::scripted::Step::Fail(
                io::Error::from(io::ErrorKind::ConnectionReset).into(),
            )
        });
        let mut client = CircuitBreakerLayer::new(deps.clone()).layer(server.clone());
        for _ in 0..10 {
            let _ = call(&mut client, get()).await;
        }
        assert_eq!(server.calls(), expected);
        let status = deps.get(HOST).status();
        let closed = status.breaker == BreakerState::Closed;
        assert_eq!(closed, expected == 10);
        if closed {
            let window = status.window;
            assert_eq!((window.calls, window.failures), (10, 10));
            assert_eq!(window.failures_in_a_row, 10);
            tokio::time::advance(Duration::from_secs(60)).await;
            let window = deps.get(HOST).status().window;
            assert_eq!((window.calls, window.failures), (0, 0), "it moves");
        }
    }
}
