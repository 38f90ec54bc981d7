//! The circuit breaker under and above the retry loop.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::Request;
use tokio::{
    task::JoinSet,
    time::{Instant, advance, sleep, sleep_until},
};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Service, ServiceExt};
use tower_reprise::policy::PolicyBuilder;
use tower_reprise::{
    Dependencies, RetryOverride,
    call::{Attempt, StopReason},
    dependency::BreakerState,
    error::{Refusal, Refused},
};

use crate::{
    setup::{Client, HOST, PARTS, Part, counted, get, numbered, policy, stack, with, with_header},
    support::{
        call, code, deps, outcome, refusal,
        scripted::{Server, status},
        secs,
    },
};

#[tokio::test(start_paused = true)]
async fn cb_7_a_breaker_that_is_open_before_the_wait_yields_the_last_result_at_once() {
    let server = Server::always(503);
    let deps = deps(policy().consecutive_failures(2).cooldown(secs(9), secs(9)));
    let mut client = stack(&PARTS, &deps, &server);
    let start = Instant::now();
    let result = call(&mut client, get()).await;
    assert_eq!(outcome(&result), Some((2, Some(StopReason::Breaker))));
    assert_eq!((code(&result), start.elapsed()), (503, secs(1)));
    assert_eq!((counted(&deps), server.calls()), ((1, 1), 2));
}

#[tokio::test(start_paused = true)]
async fn cb_7_a_breaker_that_another_call_opens_during_the_wait_yields_the_last_result() {
    let server = Server::always(503);
    let deps = deps(policy().consecutive_failures(2).cooldown(secs(9), secs(9)));
    let mut client = stack(&PARTS, &deps, &server);
    let mut other = client.clone();
    client.ready().await.unwrap();
    let mut waiting = task::spawn(client.call(get()));
    assert_pending!(waiting.poll());
    let off = with(get(), RetryOverride::off());
    assert_eq!(code(&call(&mut other, off).await), 503);
    assert!(matches!(
        deps.get(HOST).status().breaker,
        BreakerState::Open(_)
    ));
    advance(secs(1)).await;
    let result = assert_ready!(waiting.poll());
    assert_eq!(code(&result), 503);
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Breaker))));
    drop(waiting);
    assert_eq!(
        (counted(&deps), server.calls()),
        ((2, 0), 2),
        "G-3: nothing is charged"
    );
}

#[tokio::test(start_paused = true)]
async fn cb_7_a_breaker_above_the_loop_stops_its_retries_too() {
    let server = Server::always(503);
    let deps = deps(policy().consecutive_failures(2).cooldown(secs(9), secs(9)));
    let mut client = stack(&[Part::Breaker, Part::Retry], &deps, &server);
    client.ready().await.unwrap();
    let mut waiting = task::spawn(client.call(get()));
    assert_pending!(waiting.poll());
    for _ in 0..2 {
        let mut other = stack(&[Part::Breaker, Part::Retry], &deps, &server);
        let off = with(get(), RetryOverride::off());
        assert_eq!(code(&call(&mut other, off).await), 503);
    }
    assert!(matches!(
        deps.get(HOST).status().breaker,
        BreakerState::Open(_)
    ));
    advance(secs(1)).await;
    let result = assert_ready!(waiting.poll());
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Breaker))));
    drop(waiting);
    assert_eq!((counted(&deps), server.calls()), ((3, 0), 3));
}

#[tokio::test(start_paused = true)]
async fn cb_7_a_retry_that_the_breaker_refuses_waits_for_the_next_probe_and_is_not_charged() {
    let server = Server::always(503);
    let deps = deps(policy().consecutive_failures(2).cooldown(secs(3), secs(3)));
    let mut client = stack(&PARTS, &deps, &server);
    let mut other = client.clone();
    client.ready().await.unwrap();
    let mut waiting = task::spawn(client.call(get()));
    assert_pending!(waiting.poll());
    let off = with(get(), RetryOverride::off());
    assert_eq!(code(&call(&mut other, off).await), 503);

    advance(secs(1)).await;
    assert_pending!(waiting.poll());
    assert_eq!(server.calls(), 2);
    assert_eq!(deps.get(HOST).status().held, 1);
    drop(waiting);
    assert_eq!(deps.get(HOST).status().held, 0);
    assert_eq!(counted(&deps), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn cb_7_without_a_real_result_the_refusal_itself_returns() {
    let server = Server::always(503);
    let deps = deps(policy().consecutive_failures(1).cooldown(secs(9), secs(9)));
    let mut client = stack(&PARTS, &deps, &server);
    call(&mut client, get()).await.unwrap();
    let start = Instant::now();
    let result = call(&mut client, get()).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(refusal(&result), Some(Refusal::Breaker));
    assert_eq!(outcome(&result), Some((0, Some(StopReason::Breaker))));
    assert_eq!(server.calls(), 1);
}

/// A breaker alone, opened by one failure, over a server that fails until told otherwise and
/// then answers after a second.
async fn opened() -> (Dependencies, Client, Server, Arc<AtomicBool>) {
    let well = Arc::new(AtomicBool::new(false));
    let server = Server::new({
        let well = Arc::clone(&well);
        move |_, _| {
            let well = well.load(Ordering::Relaxed);
            async move {
                if well {
                    sleep(secs(1)).await;
                }
                Ok(status(if well { 200 } else { 503 }))
            }
        }
    });
    let deps = deps(fragile());
    let mut client = stack(&[Part::Breaker], &deps, &server);
    assert_eq!(code(&call(&mut client, get()).await), 503);
    (deps, client, server, well)
}

/// One failure opens the breaker for ten seconds.
fn fragile() -> PolicyBuilder {
    policy()
        .consecutive_failures(1)
        .cooldown(secs(10), secs(60))
}

/// The time for which the breaker is open.
fn cooldown(deps: &Dependencies) -> Duration {
    match deps.get(HOST).status().breaker {
        BreakerState::Open(cooldown) => cooldown,
        other => panic!("it should be open, but is {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn cb_2_an_open_breaker_refuses_without_calling_with_what_is_left() {
    let (deps, mut client, server, _) = opened().await;
    let cooldown = cooldown(&deps);
    assert!((secs(8)..=secs(10)).contains(&cooldown), "{cooldown:?}");
    advance(secs(3)).await;
    let error = call(&mut client, get()).await.unwrap_err();
    let refused = Refused::find(&*error).unwrap();
    assert_eq!(
        (refused.kind(), refused.dependency()),
        (Refusal::Breaker, HOST)
    );
    assert_eq!(refused.retry_after(), Some(cooldown - secs(3)));
    assert_eq!(server.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn cb_3_after_the_cooldown_one_probe_passes_and_its_success_closes() {
    let (deps, mut client, server, well) = opened().await;
    well.store(true, Ordering::Relaxed);
    advance(secs(10)).await;
    client.ready().await.unwrap();
    let mut probe = task::spawn(client.call(get()));
    assert_pending!(probe.poll());
    for _ in 0..3 {
        let mut other = client.clone();
        let error = call(&mut other, get()).await.unwrap_err();
        let refused = Refused::find(&*error).unwrap();
        assert_eq!(
            (refused.kind(), refused.retry_after()),
            (Refusal::Breaker, Some(cooldown(&deps)))
        );
    }
    assert_eq!(server.calls(), 2);
    advance(secs(1)).await;
    assert_eq!(code(&assert_ready!(probe.poll())), 200);
    assert_eq!(deps.get(HOST).status().breaker, BreakerState::Recovering);
    assert_eq!(code(&call(&mut client, get()).await), 200);
    assert_eq!(code(&call(&mut client, get()).await), 200);
    assert_eq!(deps.get(HOST).status().breaker, BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn cb_4_a_failed_probe_opens_it_for_longer() {
    let (deps, mut client, server, _) = opened().await;
    advance(secs(10)).await;
    assert_eq!(code(&call(&mut client, get()).await), 503);
    let cooldown = cooldown(&deps);
    assert!((secs(16)..=secs(20)).contains(&cooldown), "{cooldown:?}");
    assert_eq!(
        refusal(&call(&mut client, get()).await),
        Some(Refusal::Breaker)
    );
    assert_eq!(server.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn cb_5_a_dropped_probe_frees_its_slot() {
    let (deps, mut client, server, well) = opened().await;
    well.store(true, Ordering::Relaxed);
    advance(secs(10)).await;
    client.ready().await.unwrap();
    // Polled or not.
    drop(client.call(get()));
    client.ready().await.unwrap();
    let mut probe = task::spawn(client.call(get()));
    assert_pending!(probe.poll());
    drop(probe);
    assert_eq!(code(&call(&mut client, get()).await), 200);
    assert_eq!(server.calls(), 4);
    assert_eq!(deps.get(HOST).status().breaker, BreakerState::Recovering);
}

#[tokio::test(start_paused = true)]
async fn cb_5_a_panicking_service_frees_the_probe_slot() {
    // Panics in `call` for the second request, in its future for the third.
    let server = Server::new(|request, n| {
        let at_once = n == 1;
        assert!(!at_once, "panics in `call`");
        let _ = request;
        async move {
            assert!(n != 2, "panics in the future");
            Ok(status(if n == 0 { 503 } else { 200 }))
        }
    });
    let deps = deps(fragile());
    let client = stack(&[Part::Breaker], &deps, &server);
    let ask = || {
        let mut client = client.clone();
        tokio::spawn(async move { call(&mut client, get()).await })
    };
    assert_eq!(code(&ask().await.unwrap()), 503);
    advance(secs(10)).await;
    for _ in 0..2 {
        assert!(ask().await.unwrap_err().is_panic());
        assert!(matches!(
            deps.get(HOST).status().breaker,
            BreakerState::Open(_)
        ));
    }
    assert_eq!(code(&ask().await.unwrap()), 200);
    assert_eq!(deps.get(HOST).status().breaker, BreakerState::Recovering);
}

#[tokio::test(start_paused = true)]
async fn d_6_dropped_under_the_whole_stack_a_call_gives_back_probe_and_charge() {
    let server = Server::new(|_, n| async move {
        match n {
            0 => Ok(status(503)),
            1 | 2 => pending().await,
            _ => Ok(status(200)),
        }
    });
    let tenth = Duration::from_millis(100);
    let deps = deps(policy().consecutive_failures(1).cooldown(tenth, tenth));
    let mut client = stack(&PARTS, &deps, &server);
    client.ready().await.unwrap();
    let mut future = task::spawn(client.call(get()));
    assert_pending!(future.poll(), "the breaker is open for less than the wait");
    assert_eq!(counted(&deps), (1, 1), "granted");
    advance(secs(1)).await;
    assert_pending!(future.poll());
    drop(future);
    assert_eq!(counted(&deps), (1, 1), "sent");
    assert!(matches!(
        deps.get(HOST).status().breaker,
        BreakerState::Open(_)
    ));

    client.ready().await.unwrap();
    let mut future = task::spawn(client.call(get()));
    assert_pending!(future.poll());
    drop(future);
    assert_eq!(code(&call(&mut client, get()).await), 200);
}

#[tokio::test(start_paused = true)]
async fn d_4_a_call_that_was_refused_and_then_hung_is_no_refusal() {
    let server = Server::new(|_, n| async move {
        match n {
            0 => Ok(status(503)),
            _ => pending().await,
        }
    });
    let deps = deps(policy().consecutive_failures(1).cooldown(secs(3), secs(3)));
    let mut client = stack(&PARTS, &deps, &server);
    let off = with(get(), RetryOverride::off());
    assert_eq!(code(&call(&mut client, off).await), 503);
    let result = call(&mut client, get()).await;
    assert_eq!(refusal(&result), None, "it went out");
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Deadline))));
    assert_eq!(server.calls(), 2);
}

/// A call waits for the next probe, unless that is too far away.
#[tokio::test(start_paused = true)]
async fn cb_7_a_refused_call_waits_for_the_next_probe_if_that_is_worth_it() {
    for (cooldown, waits) in [(1, true), (3, true), (7, false)] {
        let server = Server::replies(|_, n| status(if n == 0 { 503 } else { 200 }));
        let cooldown = secs(cooldown);
        let deps = deps(
            policy()
                .consecutive_failures(1)
                .cooldown(cooldown, cooldown),
        );
        let mut client = stack(&PARTS, &deps, &server);
        let off = with(get(), RetryOverride::off());
        assert_eq!(code(&call(&mut client, off).await), 503);
        let start = Instant::now();
        let result = call(&mut client, get()).await;
        assert_eq!(result.is_ok(), waits, "{cooldown:?}");
        assert_eq!(start.elapsed().is_zero(), !waits, "{cooldown:?}");
    }
}

/// A dependency is well again at once, and a probe finds out later. No call is lost until then, and the
/// calls that waited come back in order and not as a herd.
#[tokio::test(start_paused = true)]
async fn cb_9_calls_that_wait_for_a_probe_come_back_at_a_third_of_their_pace() {
    let is_numbered = |request: &Request<()>| request.headers().contains_key("x-call");
    let server =
        Server::replies(move |request, _| status(if is_numbered(request) { 200 } else { 503 }));
    let deps = deps(policy().consecutive_failures(1).cooldown(secs(2), secs(2)));
    let mut client = stack(&PARTS, &deps, &server);
    let off = with(get(), RetryOverride::off());
    assert_eq!(code(&call(&mut client, off).await), 503);

    let start = Instant::now();
    let tenth = Duration::from_millis(100);
    let mut calls = JoinSet::new();
    for number in 0..20 {
        sleep_until(start + tenth * number).await;
        let mut client = client.clone();
        let request = numbered(get(), number as usize);
        calls.spawn(async move { call(&mut client, request).await });
    }
    for result in calls.join_all().await {
        assert_eq!(code(&result), 200);
    }

    let numbers = server.header("x-call").into_iter().flatten();
    let numbers = numbers.map(|number| number.parse::<u32>().unwrap());
    let came = numbers.zip(server.times().into_iter().skip(1));
    // The first one to wait is the probe.
    let waited: Vec<_> = came
        .filter(|(number, at)| *at > start + tenth * *number + tenth / 2)
        .collect();
    assert!((16..=20).contains(&waited.len()), "all of 1.6 to 2 s");
    let (first, last) = (waited[0].1, waited[waited.len() - 1].1);
    let pace = (last - first) / (waited.len() as u32 - 1);
    assert!(pace >= tenth * 5 / 2, "{pace:?} between two");
}

/// More calls than are refused between two probes do not wait: they would be a herd.
#[tokio::test(start_paused = true)]
async fn cb_9_so_many_calls_wait_for_a_probe_and_no_more() {
    let server = Server::always(503);
    let deps = deps(policy().consecutive_failures(1).cooldown(secs(4), secs(4)));
    let mut client = stack(&PARTS, &deps, &server);
    let off = with(get(), RetryOverride::off());
    assert_eq!(code(&call(&mut client, off).await), 503);

    let mut calls = JoinSet::new();
    for _ in 0..70 {
        client.ready().await.unwrap();
        calls.spawn(client.call(get()));
    }
    sleep(secs(1)).await;
    for _ in 64..70 {
        let ended = calls.try_join_next().unwrap().unwrap();
        assert_eq!(refusal(&ended), Some(Refusal::Breaker));
    }
    assert!(calls.try_join_next().is_none(), "the others wait");
}

/// CB-9: a second chance is not spent before the probe has ended, nor before one goes out: not by calls
/// that come in a burst, and not while the dependency takes its time.
#[tokio::test(start_paused = true)]
async fn cb_9_calls_wait_for_the_end_of_the_probe() {
    let millis = Duration::from_millis;
    // Calls, the time between them, and the time that each takes.
    for (calls, apart, takes) in [(10, 0, 0), (31, 10, 0), (20, 100, 400), (20, 20, 1500)] {
        let server = Server::new(move |request: &Request<()>, _| {
            let well = request.headers().contains_key("x-call");
            async move {
                sleep(millis(if well { takes } else { 0 })).await;
                Ok(status(if well { 200 } else { 503 }))
            }
        });
        let deps = deps(policy().consecutive_failures(1).cooldown(secs(3), secs(3)));
        let mut client = stack(&PARTS, &deps, &server);
        let off = with(get(), RetryOverride::off());
        assert_eq!(code(&call(&mut client, off).await), 503);
        let mut running = JoinSet::new();
        for number in 0..calls {
            sleep(millis(apart)).await;
            let mut client = client.clone();
            running.spawn(async move { call(&mut client, numbered(get(), number)).await });
        }
        for result in running.join_all().await {
            assert_eq!(code(&result), 200, "{calls}, {apart}, {takes}");
        }
    }
}

/// RA-8: a call that was refused before it went out makes its first attempt then.
#[tokio::test(start_paused = true)]
async fn ra_8_a_call_that_was_only_refused_says_nothing_of_an_attempt_before() {
    let server = Server::replies(|_, n| status(if n == 0 { 503 } else { 200 }));
    let deps = deps(policy().consecutive_failures(1).cooldown(secs(3), secs(3)));
    let mut client = stack(&PARTS, &deps, &server);
    let off = with(get(), RetryOverride::off());
    assert_eq!(code(&call(&mut client, off).await), 503);
    let request = with_header(get(), "content-type", "application/grpc");
    assert_eq!(code(&call(&mut client, request).await), 200);
    assert_eq!(server.calls(), 2);
    assert_eq!(server.header("grpc-previous-rpc-attempts"), [None, None]);
    let attempts = server.requests().into_iter();
    let numbers = attempts.map(|request| request.extensions().get().map(Attempt::number));
    assert_eq!(numbers.last(), Some(Some(1)));
}
