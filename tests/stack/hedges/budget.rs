//! Hedges and retries share one budget.

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::Layer;
use tower_reprise::{HedgeLayer, RetryLayer, policy::RetryQuota};

use super::{funded, hedged, ms, policy, retries};
use crate::{
    setup::{Client, HOST, counted, get, numbered},
    support::{
        call, code, deps,
        scripted::{Server, Step, status},
        secs,
    },
};

#[tokio::test(start_paused = true)]
async fn h_3_an_exhausted_budget_stops_new_hedges_and_not_those_in_flight() {
    let server = Server::new(|_, n| async move {
        // Of the first call the hedge answers late, of the second none would be sooner.
        sleep(if n == 0 { secs(60) } else { ms(500) }).await;
        Ok(status(200))
    });
    let deps = funded(policy());
    let mut client = hedged(&deps, &server);
    let mut first = client.clone();
    let start = Instant::now();
    let first = tokio::spawn(async move { call(&mut first, numbered(get(), 1)).await });
    sleep(ms(100)).await;
    assert_eq!(server.calls(), 2, "its hedge is out");
    let dependency = deps.get(HOST);
    while dependency.charge_retry().is_ok() {}
    let second = call(&mut client, numbered(get(), 2)).await;
    assert_eq!((code(&second), server.calls()), (200, 3), "it has no hedge");
    assert_eq!(code(&first.await.unwrap()), 200);
    assert!(start.elapsed() < secs(61), "{:?}", start.elapsed());
    assert_eq!(server.calls(), 3);
}

/// A call in flight whose hedge was sent before the budget was used up is answered by it.
#[tokio::test(start_paused = true)]
async fn h_3_a_hedge_in_flight_still_answers_its_call() {
    let server = Server::steps(|n| match n {
        0 => Step::Never,
        _ => Step::status(200).after(ms(500)),
    });
    let deps = funded(policy());
    let mut client = hedged(&deps, &server);
    let running = tokio::spawn(async move { call(&mut client, get()).await });
    sleep(ms(100)).await;
    while deps.get(HOST).charge_retry().is_ok() {}
    assert_eq!(code(&running.await.unwrap()), 200);
}

#[tokio::test(start_paused = true)]
async fn h_3_retries_and_hedges_of_64_tasks_never_exceed_a_fifth() {
    let server = Server::new(|_, n| async move {
        sleep(ms(15)).await;
        Ok(status(if n % 3 == 0 { 503 } else { 200 }))
    });
    let policy = policy().hedge_quantile(0.75).budget_floor(0);
    let policy = policy.consecutive_failures(100_000).without_throttle();
    let deps = deps(policy);
    let client = Client::new(RetryLayer::new(deps.clone()).layer(hedged(&deps, &server)));
    let mut tasks = JoinSet::new();
    for task in 0..64 {
        let (mut client, deps) = (client.clone(), deps.clone());
        tasks.spawn(async move {
            for i in 0..20 {
                let _ = call(&mut client, numbered(get(), task * 100 + i)).await;
                let (originals, retries) = counted(&deps);
                assert!(5 * retries <= originals, "{retries} of {originals}");
            }
        });
    }
    tasks.join_all().await;
    let (originals, retries) = counted(&deps);
    assert_eq!(originals, 64 * 20);
    assert_eq!(server.calls() as u64, originals + retries);
    assert!(5 * retries >= originals * 9 / 10, "it is used: {retries}");
}

/// H-4: the quantile moves with the dependency, and meanwhile the share of late calls and the budget
/// keep hedges from adding to its load.
#[tokio::test(start_paused = true)]
async fn h_4_everything_ten_times_slower_is_not_hedged() {
    let slow_from = Instant::now() + secs(20);
    let server = Server::new(move |request, n| {
        let call = request.headers()["x-call"].to_str().unwrap();
        let part = ms(40 + (call.parse::<u64>().unwrap() + 7 * n as u64) % 20);
        let slow = Instant::now() >= slow_from;
        async move {
            sleep(if slow { 10 * part } else { part }).await;
            Ok(status(200))
        }
    });
    let deps = deps(policy().hedge_delay(ms(1), secs(10)));
    let client = HedgeLayer::new(deps.clone()).layer(server.clone());
    let mut tasks = JoinSet::new();
    for task in 0..100_u64 {
        let mut client = client.clone();
        tasks.spawn(async move {
            for i in 0..100 {
                sleep(ms(400)).await;
                call(&mut client, numbered(get(), (task * 1000 + i) as usize))
                    .await
                    .unwrap();
            }
        });
    }
    sleep(secs(19)).await;
    let before = (counted(&deps).0, server.calls() as u64);
    let usual = before.1 - before.0;
    assert!(usual * 100 <= 6 * before.0, "{usual} of {before:?}");
    while tasks.join_next().await.is_some() {
        let (originals, hedges) = counted(&deps);
        assert!(10 * hedges <= originals, "{hedges} of {originals}");
    }
    let hedges = server.calls() as u64 - 100 * 100;
    assert!(10 * hedges <= 100 * 100, "{hedges}");
    let delay = deps.get(HOST).status().hedge_delay.unwrap();
    assert!(delay > ms(400), "{delay:?}");
    assert!(retries(&deps) > 0, "it is hedged again");
}

/// G-9: a hedge that wins gives its tokens back, as a retry that succeeds does, and one that does not win
/// gives none.
#[tokio::test(start_paused = true)]
async fn g_9_h_3_hedges_that_win_give_their_tokens_back() {
    for (first_takes, calls, hedges) in [(secs(1), 4, 4), (ms(20), 4, 1)] {
        let server = Server::new(move |_, n| async move {
            sleep(if n == 0 { first_takes } else { ms(50) }).await;
            Ok(status(200))
        });
        // Enough for one hedge, and a success earns one token.
        let quota = RetryQuota {
            capacity: 19,
            ..RetryQuota::default()
        };
        let deps = funded(policy().retry_quota(quota));
        let mut client = hedged(&deps, &server);
        for number in 0..calls {
            let result = call(&mut client, numbered(get(), number)).await;
            assert_eq!(code(&result), 200);
        }
        assert_eq!(server.calls(), calls + hedges, "{first_takes:?}");
    }
}
