//! When no second attempt goes out, though a call is late.

use tokio::time::sleep;
use tower::{Layer, ServiceBuilder};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, HedgeLayer, RetryAfterLayer,
    dependency::{BreakerState, Dependency},
};

use super::{counting_drops, funded, ms, policy, retries};
use crate::{
    setup::{Client, HOST, busy, get, numbered},
    support::{
        call, code,
        scripted::{Server, Step, status},
        secs,
    },
};

/// Gate, breaker and hedge, as in the stack.
fn guarded(deps: &Dependencies, server: &Server) -> Client {
    let stack = ServiceBuilder::new()
        .layer(RetryAfterLayer::new(deps.clone()))
        .layer(CircuitBreakerLayer::new(deps.clone()))
        .layer(HedgeLayer::new(deps.clone()));
    Client::new(stack.service(server.clone()))
}

#[tokio::test(start_paused = true)]
async fn h_4_a_late_call_is_not_hedged_while_breaker_throttle_or_gate_forbid_calls() {
    type Meanwhile = fn(&Dependency);
    let nothing: Meanwhile = |_| {};
    for (name, meanwhile, other, expected) in [
        ("nothing", nothing, status(200), 2),
        ("another fails", nothing, status(503), 2),
        ("the breaker opens", Dependency::force_open, status(200), 1),
        ("the gate holds", nothing, busy(503, 9), 1),
        ("there are signs of overload", nothing, status(429), 1),
    ] {
        let server = Server::new(move |request, _| {
            let slow = request.headers()["x-call"] == "1";
            let other = other.clone();
            async move {
                if slow {
                    sleep(ms(50)).await;
                    return Ok(status(200));
                }
                Ok(other)
            }
        });
        let deps = funded(policy());
        let mut client = guarded(&deps, &server);
        let mut slow = client.clone();
        let slow = tokio::spawn(async move { call(&mut slow, numbered(get(), 1)).await });
        sleep(ms(5)).await;
        let _ = call(&mut client, numbered(get(), 2)).await;
        meanwhile(&deps.get(HOST));
        assert_eq!(code(&slow.await.unwrap()), 200, "{name}");
        let of_slow = server.header("x-call");
        let of_slow = of_slow.iter().filter(|call| call.as_deref() == Some("1"));
        assert_eq!(of_slow.count(), expected, "{name}");
    }
}

/// A breaker that closes lets more and more calls in, and none of them twice.
#[tokio::test(start_paused = true)]
async fn h_4_a_probe_is_not_hedged() {
    let server = Server::new(|request, _| {
        let fails = request.headers()["x-call"] == "1";
        async move {
            sleep(ms(if fails { 0 } else { 100 })).await;
            Ok(status(if fails { 503 } else { 200 }))
        }
    });
    let deps = funded(policy().consecutive_failures(1).cooldown(ms(500), secs(5)));
    let mut client = guarded(&deps, &server);
    let _ = call(&mut client, numbered(get(), 1)).await;
    assert!(matches!(
        deps.get(HOST).status().breaker,
        BreakerState::Open(_)
    ));
    sleep(secs(2)).await;
    let before = server.calls();
    let probe = call(&mut client, numbered(get(), 2)).await;
    assert_eq!((code(&probe), server.calls() - before), (200, 1));
}

#[tokio::test(start_paused = true)]
async fn h_4_no_more_than_four_times_the_usual_number_is_hedged_at_a_time() {
    let server = Server::steps(|_| Step::status(200).after(secs(1)));
    let deps = funded(policy());
    let client = HedgeLayer::new(deps.clone()).layer(server.clone());
    let calls = (0..200).map(|i| {
        let mut client = client.clone();
        tokio::spawn(async move { call(&mut client, numbered(get(), i)).await })
    });
    for running in calls.collect::<Vec<_>>() {
        running.await.unwrap().unwrap();
    }
    // Of 32 calls 1.6 are usually late, of which four times as many are 6.4.
    assert_eq!((server.calls(), retries(&deps)), (207, 7));
}

/// CB-5: a hedge's permit, where the breaker is below, is freed, and a cancelled attempt says nothing
/// about health, wherever the breaker is.
#[tokio::test(start_paused = true)]
async fn h_4_a_cancelled_attempt_says_nothing_about_health() {
    for below in [false, true] {
        let (server, cancelled) = counting_drops(|n| async move {
            if n % 2 == 0 {
                std::future::pending::<()>().await;
            }
            status(200)
        });
        let deps = funded(policy().consecutive_failures(1));
        let hedge = || HedgeLayer::new(deps.clone());
        let breaker = || CircuitBreakerLayer::new(deps.clone());
        let mut client = match below {
            true => Client::new(hedge().layer(breaker().layer(server.clone()))),
            false => Client::new(breaker().layer(hedge().layer(server.clone()))),
        };
        for i in 1..=5 {
            assert_eq!(code(&call(&mut client, get()).await), 200);
            assert_eq!(cancelled.load(std::sync::atomic::Ordering::Relaxed), i);
            assert_eq!(deps.get(HOST).status().breaker, BreakerState::Closed);
        }
    }
}
