//! The wait before a retry: budget, Retry-After, pushback and jitter.

use std::{collections::HashSet, time::Duration};

use http::header::RETRY_AFTER;
use tokio::time::{Instant, sleep};
use tower::Layer;
use tower_reprise::{
    Dependencies, Policy, RetryLayer,
    backoff::Backoff,
    call::StopReason,
    error::Rule,
    policy::{Exhaustion, PolicyBuilder},
};

use crate::{
    setup::{HOST, client, get, grpc, policy},
    support::{
        Fixed, call, code, outcome,
        scripted::{Server, Step},
        secs,
    },
};

#[tokio::test(start_paused = true)]
async fn g_4_an_exhausted_budget_returns_the_original_result_at_once() {
    let server = Server::steps(|_| Step::status(503));
    let policy = policy()
        .budget_floor(2)
        .on_budget_exhausted(Exhaustion::Never);
    let (deps, mut client) = client(policy, &server);
    let result = call(&mut client, get()).await;
    assert_eq!(
        outcome(&result),
        Some((3, Some(StopReason::Budget))),
        "two of three"
    );
    let start = Instant::now();
    let result = call(&mut client, get()).await;
    assert_eq!((code(&result), start.elapsed()), (503, Duration::ZERO));
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Budget))));
    assert_eq!(server.calls(), 4);
    let status = deps.get(HOST).status();
    assert_eq!((status.originals, status.retries), (2, 2));

    sleep(secs(31)).await;
    let result = call(&mut client, get()).await;
    assert_eq!(
        outcome(&result),
        Some((1, Some(StopReason::Budget))),
        "30 s later: only successes bring it back"
    );
}

#[cfg(feature = "metrics")]
#[tokio::test(start_paused = true)]
async fn g_4_a_suppressed_retry_is_counted() {
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _local = metrics::set_default_local_recorder(&recorder);
    let server = Server::steps(|_| Step::status(503));
    let (_, mut client) = client(policy().budget_ratio(0.0).budget_floor(0), &server);
    for _ in 0..3 {
        call(&mut client, get()).await.unwrap();
    }
    let metrics = snapshotter.snapshot().into_vec();
    let suppressed = metrics
        .iter()
        .find_map(|(key, _, _, value)| (key.key().name() == "retry_suppressed").then_some(value));
    let three = metrics_util::debugging::DebugValue::Counter(3);
    assert_eq!(suppressed, Some(&three));
}

// Retry-After and pushback

async fn wait_of(policy: PolicyBuilder, name: &'static str, value: &'static str) -> Duration {
    let server = Server::steps(move |n| match n {
        0 => Step::with_header(503, name, value),
        _ => Step::status(200),
    });
    let (_, mut client) = client(policy, &server);
    assert_eq!(code(&call(&mut client, get()).await), 200);
    server.waits()[0]
}

#[tokio::test(start_paused = true)]
async fn ra_7_a_retry_after_above_the_backoff_wins_and_is_spread_upward_only() {
    let mut waits = HashSet::new();
    for _ in 0..50 {
        let wait = wait_of(policy(), "retry-after", "5").await;
        assert!(
            (secs(5)..=secs(5) + secs(1) / 2).contains(&wait),
            "{wait:?}"
        );
        waits.insert(wait);
    }
    assert!(waits.len() > 10, "they do not wake together");
    // A tenth of 20 s is more than a second.
    for _ in 0..20 {
        let wait = wait_of(policy(), "retry-after", "20").await;
        assert!((secs(20)..=secs(21)).contains(&wait), "{wait:?}");
    }
    let exact = policy().retry_after_spread(Duration::ZERO);
    assert_eq!(wait_of(exact, "retry-after", "5").await, secs(5));
}

#[tokio::test(start_paused = true)]
async fn ra_7_a_backoff_above_the_retry_after_wins() {
    let slow = || policy().backoff(Fixed(secs(8)));
    let wait = wait_of(slow(), "retry-after", "5").await;
    assert!((secs(8)..secs(9)).contains(&wait), "{wait:?}");
    assert_eq!(wait_of(slow(), "retry-after", "0").await, secs(8));
    assert_eq!(wait_of(slow(), "retry-after", "soon").await, secs(8));
}

#[tokio::test(start_paused = true)]
async fn ra_7_a_retry_after_beyond_the_remaining_time_fails_at_once() {
    for value in ["10", "3600", "99999999999999999999999999"] {
        let server = Server::steps(move |_| Step::with_header(429, "retry-after", value));
        let (deps, mut client) = client(policy().total_timeout(secs(10)), &server);
        let start = Instant::now();
        let result = call(&mut client, get()).await;
        assert_eq!((code(&result), start.elapsed()), (429, Duration::ZERO));
        assert_eq!(outcome(&result), Some((1, Some(StopReason::Deadline))));
        assert_eq!(result.unwrap().headers()[RETRY_AFTER], value);
        assert_eq!(deps.get(HOST).status().retries, 0, "G-3");
    }
}

#[tokio::test(start_paused = true)]
async fn ra_8_a_pushback_replaces_the_backoff() {
    let name = "grpc-retry-pushback-ms";
    let exact = || {
        let policy = policy().backoff(Fixed(secs(8)));
        policy.retry_after_spread(Duration::ZERO)
    };
    for (value, millis) in [("0", 0), ("1", 1), ("250", 250), ("9000", 9000)] {
        let wait = wait_of(exact(), name, value).await;
        assert_eq!(wait, Duration::from_millis(millis));
    }
    for _ in 0..20 {
        let wait = wait_of(policy(), name, "5000").await;
        assert!(
            (secs(5)..=secs(5) + secs(1) / 2).contains(&wait),
            "{wait:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn ra_8_a_negative_or_unreadable_pushback_stops() {
    for value in ["-1", "-250", "soon", "", "1.5", "+5"] {
        let server =
            Server::steps(move |_| Step::with_header(503, "grpc-retry-pushback-ms", value));
        let (_, mut client) = client(policy(), &server);
        let result = call(&mut client, get()).await;
        assert_eq!(
            outcome(&result),
            Some((1, Some(StopReason::Pushback))),
            "{value:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn ra_8_a_pushback_never_overrides_the_attempt_bound_or_the_table() {
    let server = Server::steps(|_| Step::with_header(503, "grpc-retry-pushback-ms", "0"));
    let (_, mut client) = client(policy().max_retries(2), &server);
    let result = call(&mut client, get()).await;
    assert_eq!(outcome(&result), Some((3, Some(StopReason::Exhausted))));

    let server = Server::steps(|_| Step::with_header(404, "grpc-retry-pushback-ms", "0"));
    let (_, mut client) = self::client(policy(), &server);
    let result = call(&mut client, get()).await;
    assert_eq!(outcome(&result), Some((1, Some(StopReason::NotRetryable))));
}

#[tokio::test(start_paused = true)]
async fn ra_8_previous_attempts_are_told_from_the_second_attempt_on() {
    let name = "grpc-previous-rpc-attempts";
    let told = |values: [&str; 3]| values.map(|v| Some(v.to_owned())).to_vec();
    let server = Server::steps(|_| Step::with_header(200, "grpc-status", "14"));
    let (_, mut client) = client(Policy::grpc_unary(), &server);
    call(&mut client, grpc(true)).await.unwrap();
    let seen = server.header(name);
    assert_eq!(seen[0], None);
    assert_eq!(seen[1..], told(["1", "2", "3"]));

    let server = Server::statuses([503, 200]);
    let (_, mut client) = self::client(policy(), &server);
    call(&mut client, get()).await.unwrap();
    assert_eq!(server.header(name), [None, None], "this is not gRPC");
}

/// Doubles from a second.
#[derive(Debug)]
struct Doubling;

impl Backoff for Doubling {
    fn delay(&self, retry: u32, _previous: Duration, _uniform: f64) -> Duration {
        secs(1 << retry)
    }
}

#[tokio::test(start_paused = true)]
async fn ra_8_a_pushback_begins_the_backoff_anew() {
    let server = Server::steps(|n| match n {
        2 => Step::with_header(503, "grpc-retry-pushback-ms", "0"),
        5 => Step::status(200),
        _ => Step::status(503),
    });
    let policy = policy().max_retries(5).backoff(Doubling);
    let (_, mut client) = client(policy, &server);
    assert_eq!(code(&call(&mut client, get()).await), 200);
    assert_eq!(server.waits(), [1, 2, 0, 1, 2].map(secs));
}

// Jitter

async fn waits_of_calls(seed: Option<u64>, calls: usize) -> Vec<Duration> {
    let server = Server::steps(|n| Step::status(if n % 2 == 0 { 503 } else { 200 }));
    let policy = policy().approve(Rule::R7, "test").budget_floor(1000);
    let mut deps = Dependencies::builder(policy.build().unwrap());
    if let Some(seed) = seed {
        deps = deps.seed(seed);
    }
    let mut client = RetryLayer::new(deps.build()).layer(server.clone());
    for _ in 0..calls {
        call(&mut client, get()).await.unwrap();
    }
    server.waits().into_iter().step_by(2).collect()
}

#[tokio::test(start_paused = true)]
async fn b_4_two_calls_of_one_client_draw_different_waits() {
    let waits = waits_of_calls(None, 40).await;
    assert!(waits.iter().all(|wait| *wait <= secs(1)), "{waits:?}");
    let distinct: HashSet<_> = waits.iter().collect();
    assert!(distinct.len() > 20, "{waits:?}");
    assert!(
        waits.iter().any(|wait| *wait < secs(1) / 2),
        "full jitter: {waits:?}"
    );
    assert!(
        waits.iter().any(|wait| *wait > secs(1) / 2),
        "full jitter: {waits:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn b_4_a_seed_makes_runs_repeat() {
    let runs = (
        waits_of_calls(Some(7), 10).await,
        waits_of_calls(Some(7), 10).await,
        waits_of_calls(Some(8), 10).await,
    );
    assert_eq!(runs.0, runs.1);
    assert_ne!(runs.0, runs.2);
}
