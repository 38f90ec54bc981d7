//! A Retry-After of one call holds the later calls to the same dependency.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Response};
use tokio::{
    task::JoinSet,
    time::{Instant, advance, sleep},
};
use tower::{Service, ServiceExt};
use tower_reprise::{
    Dependencies, RetryOverride,
    call::StopReason,
    error::{Refusal, Refused},
    policy::{PolicyBuilder, RetryAfterMode},
};

use crate::{
    setup::{
        Client, HOST, PARTS, Part, busy, counted, get, numbered, policy, post, request, stack, with,
    },
    support::{
        call, code, deps, outcome, refusal,
        scripted::{Reply, Server, status},
        secs,
    },
};

/// Says once that it is busy for so long, and answers from then on.
fn busy_once(seconds: u64) -> Server {
    let said = AtomicBool::new(false);
    Server::replies(move |request, _| {
        let a = request.uri().host() == Some(HOST);
        if a && !said.swap(true, Ordering::Relaxed) {
            busy(503, seconds)
        } else {
            status(200)
        }
    })
}

fn gate(policy: PolicyBuilder, server: &Server) -> (Dependencies, Client) {
    let deps = deps(policy);
    let client = stack(&[Part::After], &deps, server);
    (deps, client)
}

#[tokio::test(start_paused = true)]
async fn ra_9_later_calls_to_the_same_dependency_wait_and_others_do_not() {
    let server = busy_once(5);
    let (deps, mut client) = gate(policy(), &server);
    let start = Instant::now();
    assert_eq!(code(&call(&mut client, get()).await), 503);
    assert_eq!(deps.get(HOST).status().hold, Some(secs(5)));
    let b = request(Method::GET, "b.example");
    assert_eq!(code(&call(&mut client, b).await), 200);
    assert_eq!(start.elapsed(), Duration::ZERO);

    assert_eq!(code(&call(&mut client, get()).await), 200);
    let waited = start.elapsed();
    assert!(
        (secs(5)..=secs(5) + secs(1) / 2).contains(&waited),
        "{waited:?}"
    );
    assert_eq!(deps.get(HOST).status().hold, None);
    let start = Instant::now();
    assert_eq!(code(&call(&mut client, get()).await), 200);
    assert_eq!(start.elapsed(), Duration::ZERO, "once is enough");
}

/// When calls that were held together reach the server.
async fn wakes(policy: PolicyBuilder, calls: usize) -> Vec<Duration> {
    let server = busy_once(5);
    let (_, mut client) = gate(policy, &server);
    let start = Instant::now();
    call(&mut client, get()).await.unwrap();
    let mut held = JoinSet::new();
    for _ in 0..calls {
        let mut client = client.clone();
        held.spawn(async move { call(&mut client, get()).await });
    }
    let results = held.join_all().await;
    assert!(results.iter().all(|result| code(result) == 200));
    let times = server.times().split_off(1);
    times.into_iter().map(|at| at - start).collect()
}

#[tokio::test(start_paused = true)]
async fn ra_9_held_calls_wake_spread_out_and_never_early() {
    let woken = wakes(policy(), 40).await;
    let soon = secs(5)..=secs(5) + secs(1) / 2;
    assert!(woken.iter().all(|at| soon.contains(at)), "{woken:?}");
    let instants: HashSet<_> = woken.iter().collect();
    assert!(instants.len() > 20, "{woken:?}");
    let together = wakes(policy().retry_after_spread(Duration::ZERO), 5).await;
    assert_eq!(together, [secs(5); 5], "as configured");
}

#[tokio::test(start_paused = true)]
async fn ra_9_in_refuse_mode_calls_are_refused_at_once() {
    let server = busy_once(5);
    let (_, mut client) = gate(policy().retry_after_mode(RetryAfterMode::Refuse), &server);
    call(&mut client, get()).await.unwrap();
    advance(secs(2)).await;
    let start = Instant::now();
    let error = call(&mut client, get()).await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::ZERO);
    let refused = Refused::find(&*error).unwrap();
    assert_eq!(refused.kind(), Refusal::RetryAfter);
    assert_eq!(refused.retry_after(), Some(secs(3)));
    assert_eq!(server.calls(), 1);
    advance(secs(3)).await;
    assert_eq!(code(&call(&mut client, get()).await), 200);
}

#[tokio::test(start_paused = true)]
async fn ra_9_a_wait_that_does_not_fit_is_refused_at_once() {
    let server = busy_once(10);
    let (_, mut client) = gate(policy().total_timeout(secs(10)), &server);
    call(&mut client, get()).await.unwrap();
    let short = with(get(), RetryOverride::new().total_timeout(secs(5)));
    let start = Instant::now();
    for request in [get(), short] {
        let result = call(&mut client, request).await;
        assert_eq!(refusal(&result), Some(Refusal::RetryAfter));
    }
    assert_eq!((start.elapsed(), server.calls()), (Duration::ZERO, 1));
    let patient = with(get(), RetryOverride::new().total_timeout(secs(20)));
    assert_eq!(code(&call(&mut client, patient).await), 200);
}

/// Asks for five seconds, and for `more` in the reply to a call that takes three.
fn asks_for_more(more: u64) -> Server {
    Server::new(move |_, n| async move {
        match n {
            0 => {
                sleep(secs(3)).await;
                Ok(busy(503, more))
            }
            1 => Ok(busy(503, 5)),
            _ => Ok(status(200)),
        }
    })
}

async fn held_meanwhile(more: u64, policy: PolicyBuilder) -> (Reply, Duration, usize) {
    let server = asks_for_more(more);
    let (_, mut client) = gate(policy.retry_after_spread(Duration::ZERO), &server);
    let start = Instant::now();
    client.ready().await.unwrap();
    let slow = tokio::spawn(client.call(get()));
    tokio::task::yield_now().await;
    call(&mut client, get()).await.unwrap();
    let held = call(&mut client, get()).await;
    let ended = start.elapsed();
    assert_eq!(code(&slow.await.unwrap()), 503);
    (held, ended, server.calls())
}

#[tokio::test(start_paused = true)]
async fn ra_9_a_later_response_extends_the_wait_of_those_who_are_held() {
    let (held, ended, calls) = held_meanwhile(10, policy()).await;
    assert_eq!((code(&held), ended, calls), (200, secs(13), 3));

    let (held, ended, calls) = held_meanwhile(10, policy().total_timeout(secs(12))).await;
    assert_eq!(refusal(&held), Some(Refusal::RetryAfter));
    assert_eq!(
        (ended, calls),
        (secs(5), 2),
        "refused when it no longer fits"
    );
}

#[tokio::test(start_paused = true)]
async fn ra_9_a_later_response_never_shortens_the_wait() {
    let server = asks_for_more(1);
    let (deps, mut client) = gate(policy().retry_after_spread(Duration::ZERO), &server);
    let start = Instant::now();
    client.ready().await.unwrap();
    let slow = tokio::spawn(client.call(get()));
    tokio::task::yield_now().await;
    call(&mut client, get()).await.unwrap();
    assert_eq!(code(&slow.await.unwrap()), 503);
    assert_eq!(
        deps.get(HOST).status().hold,
        Some(secs(2)),
        "of five, not one"
    );
    assert_eq!(code(&call(&mut client, get()).await), 200);
    assert_eq!(start.elapsed(), secs(5));
}

#[tokio::test(start_paused = true)]
async fn ra_9_no_dependency_shuts_out_later_calls_for_longer_than_configured() {
    let server = busy_once(3600);
    let policy = policy().retry_after_spread(Duration::ZERO);
    let (_, mut client) = gate(policy.retry_after_longest(secs(10)), &server);
    call(&mut client, get()).await.unwrap();
    let start = Instant::now();
    assert_eq!(code(&call(&mut client, get()).await), 200);
    assert_eq!(start.elapsed(), secs(10));
}

#[tokio::test(start_paused = true)]
async fn ra_9_only_failures_that_name_a_time_hold_later_calls() {
    for (code, name, value, hold) in [
        (503, "retry-after", "5", Some(secs(5))),
        (429, "retry-after", "5", Some(secs(5))),
        (429, "x-ratelimit-reset", "7", Some(secs(7))),
        (502, "retry-after", "5", None),
        (503, "grpc-retry-pushback-ms", "250", None),
        (503, "grpc-retry-pushback-ms", "-1", None),
        (503, "retry-after", "0", None),
        (503, "retry-after", "soon", None),
        (200, "retry-after", "5", None),
        // Only this request is in conflict with something.
        (409, "retry-after", "5", None),
        (503, "x-other", "5", None),
    ] {
        let server = Server::replies(move |_, _| {
            let response = Response::builder().status(code).header(name, value);
            response.body(Bytes::new()).unwrap()
        });
        let (deps, mut client) = gate(policy(), &server);
        call(&mut client, get()).await.unwrap();
        assert_eq!(deps.get(HOST).status().hold, hold, "{code} {name}: {value}");
    }
}

#[tokio::test(start_paused = true)]
async fn ra_9_a_retry_waits_out_what_another_call_was_told() {
    let server = Server::replies(|request, n| match (request.method(), n) {
        (&Method::GET, 0) => status(503),
        (&Method::GET, _) => status(200),
        _ => busy(503, 8),
    });
    let deps = deps(policy().retry_after_spread(Duration::ZERO));
    let mut client = stack(&PARTS[1..], &deps, &server);
    let told = with(request(Method::PUT, HOST), RetryOverride::off());
    assert_eq!(code(&call(&mut client, numbered(told, 1)).await), 503);
    let start = Instant::now();
    // Held first, then answered.
    let result = call(&mut client, numbered(get(), 2)).await;
    assert_eq!((code(&result), outcome(&result)), (200, Some((2, None))));
    assert_eq!(start.elapsed(), secs(9), "8 s held, then the backoff");
}

#[tokio::test(start_paused = true)]
async fn ra_9_a_retry_that_another_calls_answer_makes_too_late_is_not_waited_for() {
    for (asked, end, ended) in [
        (5, (200, Some((2, None))), secs(8)),
        (60, (503, Some((1, Some(StopReason::Deadline)))), secs(2)),
    ] {
        let server = Server::new(move |request, n| {
            let put = request.method() == Method::PUT;
            async move {
                sleep(secs(if put { 1 } else { 2 })).await;
                Ok(match (put, n) {
                    (true, _) => busy(503, asked),
                    (false, 0) => status(503),
                    (false, _) => status(200),
                })
            }
        });
        let deps = deps(policy().retry_after_spread(Duration::ZERO));
        let mut client = stack(&PARTS[1..], &deps, &server);
        let mut other = client.clone();
        let put = with(request(Method::PUT, HOST), RetryOverride::off());
        let told = tokio::spawn(async move { call(&mut other, numbered(put, 1)).await });
        let start = Instant::now();
        let result = call(&mut client, numbered(get(), 2)).await;
        assert_eq!((code(&result), outcome(&result)), end);
        assert_eq!(start.elapsed(), ended);
        assert_eq!(code(&told.await.unwrap()), 503);
    }
}

#[tokio::test(start_paused = true)]
async fn ra_9_a_retry_held_below_keeps_the_deadline_of_the_whole_call() {
    // When the retry goes out after a second, 24 s are left and 24.5 s are asked for.
    let server = Server::new(|request, n| {
        let put = request.method() == Method::PUT;
        async move {
            match (put, n) {
                (true, _) => {
                    sleep(Duration::from_millis(500)).await;
                    Ok(busy(503, 25))
                }
                (false, 0) => Ok(status(503)),
                (false, _) => Ok(status(200)),
            }
        }
    });
    let policy = policy()
        .retry_after_spread(Duration::ZERO)
        .total_timeout(secs(25));
    let deps = deps(policy);
    let mut client = stack(&PARTS[1..], &deps, &server);
    let mut other = client.clone();
    let start = Instant::now();
    let put = with(request(Method::PUT, HOST), RetryOverride::off());
    let told = tokio::spawn(async move { call(&mut other, numbered(put, 1)).await });
    let result = call(&mut client, numbered(get(), 2)).await;
    assert_eq!((code(&result), start.elapsed()), (503, secs(1)));
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Pushback))));
    assert_eq!(code(&told.await.unwrap()), 503);
    assert_eq!((counted(&deps), server.calls()), ((2, 0), 2), "G-3");
}

#[tokio::test(start_paused = true)]
async fn ra_9_the_time_a_call_is_held_is_not_its_attempts_time() {
    let server = busy_once(5);
    let policy = policy().retry_after_spread(Duration::ZERO);
    let deps = deps(policy.attempt_timeout(secs(2)));
    let mut client = stack(&PARTS[1..], &deps, &server);
    let told = with(get(), RetryOverride::off());
    assert_eq!(code(&call(&mut client, told).await), 503);
    let start = Instant::now();
    // Not even one that may not be repeated is lost by it.
    let result = call(&mut client, post()).await;
    assert_eq!((code(&result), start.elapsed()), (200, secs(5)));
    assert_eq!(outcome(&result), None);
    assert_eq!((counted(&deps), server.calls()), ((2, 0), 2), "G-3");
}
