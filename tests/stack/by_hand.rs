//! Breakers that people see and steer, and hooks.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::{Instant, advance};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Layer, Service, ServiceExt};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, RetryLayer,
    call::Attempt,
    dependency::{BreakerReason, BreakerState},
    error::Refusal,
};

use crate::{
    setup::{HOST, PARTS, Part, counted, get, policy, stack},
    support::{
        call, code, deps, refusal,
        scripted::{Server, status},
        secs,
    },
};

#[tokio::test(start_paused = true)]
async fn cb_11_a_person_opens_closes_and_resets_a_breaker() {
    let server = Server::always(200);
    let deps = deps(policy());
    let mut client = stack(&PARTS, &deps, &server);
    let dependency = deps.get(HOST);
    dependency.force_open();
    assert_eq!(
        refusal(&call(&mut client, get()).await),
        Some(Refusal::Breaker)
    );
    advance(secs(3600)).await;
    assert_eq!(
        refusal(&call(&mut client, get()).await),
        Some(Refusal::Breaker)
    );
    let changed = dependency.status().breaker_changed;
    assert_eq!(changed, Some((BreakerReason::ByHand, secs(3600))));
    dependency.reset();
    assert_eq!(code(&call(&mut client, get()).await), 200);
    assert_eq!(
        counted(&deps),
        (1, 0),
        "G-1: what was refused is no original"
    );

    dependency.force_open();
    let mut client = stack(&[Part::Budget, Part::Breaker], &deps, &server);
    let mut repeat = get();
    repeat.extensions_mut().insert(Attempt::retry(1));
    let refused = refusal(&call(&mut client, repeat).await);
    assert_eq!(refused, Some(Refusal::Breaker));
    assert_eq!(counted(&deps), (1, 0), "R-7: what was refused is no retry");

    let server = Server::always(503);
    let mut client = stack(&[Part::Breaker], &deps, &server);
    dependency.force_closed();
    for _ in 0..50 {
        advance(secs(1)).await;
        assert_eq!(code(&call(&mut client, get()).await), 503);
    }
    assert_eq!(dependency.status().breaker, BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn ra_9_a_reset_lets_calls_pass_that_were_told_to_wait() {
    let server = Server::replies(|_, n| match n {
        0 => crate::setup::busy(503, 30),
        _ => status(200),
    });
    let deps = deps(policy());
    let mut client = stack(&[Part::After], &deps, &server);
    assert_eq!(code(&call(&mut client, get()).await), 503);
    deps.get(HOST).reset();
    let start = Instant::now();
    assert_eq!(code(&call(&mut client, get()).await), 200);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn cb_11_a_hook_is_told_of_retries_of_giving_up_and_of_breakers() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let policy = policy().consecutive_failures(2).cooldown(secs(9), secs(9));
    let deps = Dependencies::builder(policy.build().unwrap())
        .on_event({
            let told = Arc::clone(&told);
            move |event| told.lock().unwrap().push(format!("{event:?}"))
        })
        .build();
    let mut client = stack(&PARTS, &deps, &Server::always(503));
    call(&mut client, get()).await.unwrap();
    let told = told.lock().unwrap();
    let kinds: Vec<_> = told
        .iter()
        .map(|event| event.split(' ').next().unwrap())
        .collect();
    assert_eq!(kinds, ["Retry", "Breaker", "GaveUp"], "{told:?}");
    assert!(
        told[0].contains("retry: 1") && told[0].contains("503"),
        "{told:?}"
    );
    assert!(told[1].contains("reason: Failures"), "{told:?}");
    assert!(told[2].contains("attempts: 2, reason: Breaker"), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn cb_11_slow_calls_count_as_failures() {
    for (time, opens) in [(1, false), (2, true)] {
        let server = Server::new(move |_, _| async move {
            tokio::time::sleep(secs(time)).await;
            Ok(status(200))
        });
        let deps = deps(policy().consecutive_failures(3).slow_call(secs(2)));
        let mut client = stack(&[Part::Breaker], &deps, &server);
        for _ in 0..3 {
            assert_eq!(code(&call(&mut client, get()).await), 200);
        }
        assert_eq!(call(&mut client, get()).await.is_err(), opens, "{time} s");
    }
}

#[tokio::test(start_paused = true)]
async fn cb_11_an_open_breaker_is_seen_in_poll_ready_where_that_is_asked_for() {
    let server = Server::always(503);
    let registry = Dependencies::new(policy().consecutive_failures(1).build().unwrap());
    let endpoints = ["stock@1", "stock@2"].map(|name| registry.clone().at(name));
    let [first, second] = endpoints.map(|deps| CircuitBreakerLayer::new(deps).in_poll_ready());
    let mut first = task::spawn(first.layer(server.clone()));
    let mut second = task::spawn(second.layer(server.clone()));
    assert!(assert_ready!(first.enter(|cx, mut service| service.poll_ready(cx))).is_ok());
    assert_eq!(first.call(get()).await.unwrap().status(), 503);
    assert_pending!(
        first.enter(|cx, mut service| service.poll_ready(cx)),
        "a balancer takes the other"
    );
    assert!(assert_ready!(second.enter(|cx, mut service| service.poll_ready(cx))).is_ok());
    advance(Duration::from_millis(500)).await;
    assert!(first.is_woken());
    assert!(
        assert_ready!(first.enter(|cx, mut service| service.poll_ready(cx))).is_ok(),
        "a probe is due"
    );
}

#[tokio::test(start_paused = true)]
async fn g_1_a_loop_of_ones_own_is_charged_too() {
    let deps = deps(policy().budget_floor(2));
    let dependency = deps.get(HOST);
    assert!(dependency.charge_retry().is_ok());
    assert!(dependency.charge_retry().is_ok());
    let refused = dependency.charge_retry().unwrap_err();
    assert_eq!(refused.kind(), Refusal::Budget);
    // And a layer's retries are part of the same budget.
    let mut client = RetryLayer::new(deps).layer(Server::always(503));
    assert_eq!(
        client
            .ready()
            .await
            .unwrap()
            .call(get())
            .await
            .unwrap()
            .status(),
        503
    );
    assert_eq!(dependency.status().retries, 2);
}
