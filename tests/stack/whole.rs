//! Behaviour of the layers of `stacks::client` that are one layer there and two or more by hand.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::{Instant, advance};
use tower::ServiceBuilder;
use tower_reprise::{
    Dependencies, RetryOverride,
    call::Attempt,
    error::{BoxError, Refusal, Refused},
    stacks,
};

use crate::{
    honoured::stacked,
    setup::{HOST, busy, counted, get, lenient, policy, with},
    support::{
        call, code, deps, refusal,
        scripted::{Server, status},
        secs,
    },
};

fn repeat() -> Request<()> {
    with(get(), Attempt::retry(1))
}

/// One for the retry layer, and one for all layers of an attempt, hedged or not.
#[tokio::test(start_paused = true)]
async fn h_6_a_call_looks_its_dependency_up_twice() {
    let ms = Duration::from_millis;
    for policy in [policy(), policy().hedge_delay(ms(10), ms(10))] {
        let (looks, server) = (Arc::new(AtomicUsize::new(0)), Server::always(200));
        let counter = Arc::clone(&looks);
        let deps = Dependencies::builder(policy.build().unwrap())
            .with_locate(move |_: &Request<()>| {
                counter.fetch_add(1, Ordering::Relaxed);
                HOST.into()
            })
            .build();
        let mut client = ServiceBuilder::new()
            .layer(stacks::client(deps))
            .map_response(|reply: Response<Bytes>| reply.map(Full::new))
            .service(server.clone());
        // The first call asks the registry.
        for expected in [None, Some(2), Some(2)] {
            looks.store(0, Ordering::Relaxed);
            let reply: Result<_, BoxError> = call(&mut client, get()).await;
            assert_eq!(code(&reply), 200);
            let looks = looks.load(Ordering::Relaxed);
            assert!(expected.is_none_or(|expected| expected == looks), "{looks}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn g_6_the_stack_charges_repeats_of_a_loop_above_it() {
    let deps = deps(policy().budget_floor(1));
    let server = Server::always(200);
    let mut client = stacked(deps.clone(), &server);
    assert_eq!(code(&call(&mut client, get()).await), 200);
    assert_eq!(code(&call(&mut client, repeat()).await), 200);
    assert_eq!(counted(&deps), (1, 1));
    let error = call(&mut client, repeat()).await.unwrap_err();
    assert_eq!(
        Refused::find(&*error).map(Refused::kind),
        Some(Refusal::Budget)
    );
    assert_eq!((server.calls(), counted(&deps)), (2, (1, 1)));
}

#[tokio::test(start_paused = true)]
async fn g_3_a_repeat_that_a_guard_of_the_stack_refused_is_not_charged() {
    let deps = deps(policy());
    let server = Server::always(200);
    let mut client = stacked(deps.clone(), &server);
    deps.get(HOST).force_open();
    for request in [repeat(), get()] {
        assert_eq!(
            refusal(&call(&mut client, request).await),
            Some(Refusal::Breaker)
        );
    }
    assert_eq!((server.calls(), counted(&deps)), (0, (0, 0)));
}

/// A repeat that fails is retried as an original is, and each of the retries is charged.
#[tokio::test(start_paused = true)]
async fn g_3_a_repeat_and_its_own_retries_are_charged_once_each() {
    let deps = deps(lenient());
    let server = Server::replies(|_, n| status(if n < 2 { 503 } else { 200 }));
    let mut client = stacked(deps.clone(), &server);
    assert_eq!(code(&call(&mut client, repeat()).await), 200);
    assert_eq!((server.calls(), counted(&deps)), (3, (0, 3)));
}

fn once(deps: &Dependencies) -> (Server, crate::setup::Client) {
    let server = Server::replies(|_, n| match n {
        0 => busy(503, 5),
        _ => status(200),
    });
    (server.clone(), stacked(deps.clone(), &server))
}

#[tokio::test(start_paused = true)]
async fn ra_9_the_stack_learns_a_wait_and_holds_later_calls_back() {
    let deps = deps(policy());
    let (server, mut client) = once(&deps);
    let off = || with(get(), RetryOverride::off());
    assert_eq!(code(&call(&mut client, off()).await), 503);
    let began = Instant::now();
    assert_eq!(code(&call(&mut client, off()).await), 200);
    assert!(began.elapsed() >= secs(5), "{:?}", began.elapsed());
    assert_eq!((server.calls(), counted(&deps)), (2, (2, 0)));
}

#[tokio::test(start_paused = true)]
async fn cb_2_a_call_of_the_stack_that_was_held_back_still_asks_the_breaker() {
    let deps = deps(policy());
    let (server, mut client) = once(&deps);
    let off = || with(get(), RetryOverride::off());
    assert_eq!(code(&call(&mut client, off()).await), 503);
    let held = tokio::spawn(async move { call(&mut client, off()).await });
    advance(secs(1)).await;
    deps.get(HOST).force_open();
    let result = held.await.expect("no panic");
    assert_eq!(refusal(&result), Some(Refusal::Breaker));
    assert_eq!((server.calls(), counted(&deps)), (1, (1, 0)));
}
