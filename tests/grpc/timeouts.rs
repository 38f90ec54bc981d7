//! The retry layer for gRPC, with the plain types of `http`.

use std::{
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{HeaderMap, Request, Response, header::CONTENT_TYPE};
use proptest::prelude::*;
use tokio::time::{Instant, sleep};
use tower::{Layer, service_fn};
use tower_reprise::{
    Dependencies, Policy, RetryLayer, RetryOverride,
    call::{Attempt, StopReason},
    error::BoxError,
    policy::PolicyBuilder,
};

use crate::support::{call, outcome};

const METHOD: &str = "bank.Ledger/Balance";

fn policy() -> PolicyBuilder {
    Policy::grpc_unary().idempotent_methods([METHOD])
}

fn request(method: &str) -> Request<()> {
    let request = Request::post(format!("http://a.example/{method}"));
    let request = request.header(CONTENT_TYPE, "application/grpc");
    request.body(()).unwrap()
}

fn limited(timeout: &str) -> Request<()> {
    let mut request = request(METHOD);
    let timeout = timeout.parse().unwrap();
    request.headers_mut().insert("grpc-timeout", timeout);
    request
}

type Outcome = Result<Response<()>, BoxError>;

/// A call to a server that answers UNAVAILABLE after these times, and after that never, and the
/// heads that it saw.
async fn answered_after(
    policy: PolicyBuilder,
    request: Request<()>,
    after: &[Duration],
) -> (Outcome, Vec<HeaderMap>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (log, after) = (Arc::clone(&seen), after.to_vec());
    let server = service_fn(move |request: Request<()>| {
        let mut log = log.lock().unwrap();
        let after = after.get(log.len()).copied();
        log.push(request.headers().clone());
        async move {
            match after {
                Some(time) => sleep(time).await,
                None => pending().await,
            }
            let response = Response::builder().header("grpc-status", 14);
            Ok::<_, BoxError>(response.body(()).unwrap())
        }
    });
    let deps = Dependencies::new(policy.build().unwrap());
    let mut client = RetryLayer::new(deps).layer(server);
    let result = call(&mut client, request).await;
    let seen = seen.lock().unwrap().clone();
    (result, seen)
}

fn told(seen: &[HeaderMap], name: &str) -> Vec<Option<String>> {
    let text = |head: &HeaderMap| Some(head.get(name)?.to_str().unwrap().to_owned());
    seen.iter().map(text).collect()
}

fn parse(timeout: &str) -> Duration {
    let (digits, unit) = timeout.split_at(timeout.len() - 1);
    assert!((1..=8).contains(&digits.len()), "{timeout}");
    let number: u64 = digits.parse().unwrap();
    match unit {
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        other => unreachable!("{other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn d_1_a_grpc_timeout_bounds_the_whole_call() {
    let second = Duration::from_secs(1);
    for (timeout, bound) in [
        ("5S", 5000),
        ("4500m", 4500),
        ("1M", 30_000),
        ("100000u", 100),
        ("1H", 30_000),
    ] {
        let start = Instant::now();
        let (result, _) = answered_after(policy(), limited(timeout), &[]).await;
        assert_eq!(start.elapsed(), Duration::from_millis(bound), "{timeout}");
        assert_eq!(outcome(&result), Some((1, Some(StopReason::Deadline))));
    }
    // Waits and later attempts included.
    let start = Instant::now();
    let (result, seen) = answered_after(policy(), limited("5S"), &[second]).await;
    assert_eq!(start.elapsed(), 5 * second);
    assert_eq!(outcome(&result), Some((2, Some(StopReason::Deadline))));
    assert_eq!(seen.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn d_1_a_grpc_timeout_bounds_a_call_that_is_not_retried_too() {
    let mut request = limited("5S");
    request.extensions_mut().insert(RetryOverride::off());
    let start = Instant::now();
    let (result, _) = answered_after(policy(), request, &[]).await;
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Deadline))));
    // Nor can its head be too long for it.
    let start = Instant::now();
    let mut large = limited("5S");
    let value = "v".repeat(64 * 1024).parse().unwrap();
    large.headers_mut().insert("x-large", value);
    let (result, _) = answered_after(policy(), large, &[]).await;
    result.unwrap_err();
    assert_eq!(start.elapsed(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn d_1_a_grpc_timeout_that_can_not_be_read_bounds_nothing() {
    for timeout in [
        "",
        "S",
        "5",
        "5s",
        "-1S",
        "+1S",
        "123456789S",
        "1.5S",
        "5 S",
        "0x1S",
    ] {
        let start = Instant::now();
        let (result, _) = answered_after(policy(), limited(timeout), &[]).await;
        assert_eq!(start.elapsed(), Duration::from_secs(30), "{timeout}");
        assert_eq!(outcome(&result), Some((1, Some(StopReason::Deadline))));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn d_1_each_attempt_is_told_what_is_left(
        total in 2_000_u64..40_000,
        first in 0_u64..900,
        second in 0_u64..900,
        prepared in 0_u64..500,
    ) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let start = Instant::now();
            let seen = Arc::new(Mutex::new(Vec::new()));
            let log = Arc::clone(&seen);
            let server = service_fn(move |request: Request<()>| {
                let mut log = log.lock().unwrap();
                let timeout = request.headers()["grpc-timeout"].to_str().unwrap().to_owned();
                log.push((start.elapsed(), timeout));
                let time = if log.len() == 1 { first } else { second };
                async move {
                    sleep(Duration::from_millis(time)).await;
                    let response = Response::builder().header("grpc-status", 14);
                    Ok::<_, BoxError>(response.body(()).unwrap())
                }
            });
            // The time that the hook takes counts against the timeout, too.
            let slow = move |request: Request<()>, _: Attempt| async move {
                sleep(Duration::from_millis(prepared)).await;
                Ok::<_, BoxError>(request)
            };
            let deps = Dependencies::new(policy().build().unwrap());
            let mut client = RetryLayer::new(deps).with_prepare(slow).layer(server);
            let original = format!("{total}m");
            call(&mut client, limited(&original)).await.unwrap();
            let seen = seen.lock().unwrap().clone();
            assert_eq!(seen[0].1, original, "the first attempt is as the caller made it");
            let deadline = Duration::from_millis(total).min(Duration::from_secs(30));
            for (at, timeout) in &seen[1..] {
                let (left, told) = (deadline - *at, parse(timeout));
                assert!(told <= left && left - told < Duration::from_millis(1), "{told:?} of {left:?}");
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn d_1_only_grpc_calls_are_told() {
    let mut plain = Request::get("http://a.example/").body(()).unwrap();
    plain
        .headers_mut()
        .insert("grpc-timeout", "9S".parse().unwrap());
    let (_, seen) = answered_after(policy(), plain, &[Duration::ZERO; 4]).await;
    assert_eq!(told(&seen, "grpc-timeout"), vec![Some("9S".to_owned()); 4]);
    assert_eq!(
        told(&seen, "grpc-previous-rpc-attempts"),
        [None, None, None, None]
    );
    // And those that have no limit get none.
    let (_, seen) = answered_after(policy(), request(METHOD), &[Duration::ZERO; 4]).await;
    assert_eq!(told(&seen, "grpc-timeout"), [None, None, None, None]);
}

#[tokio::test(start_paused = true)]
async fn ra_8_each_retry_tells_how_many_attempts_came_before() {
    let (result, seen) = answered_after(policy(), request(METHOD), &[Duration::ZERO; 4]).await;
    assert_eq!(outcome(&result), Some((4, Some(StopReason::Exhausted))));
    let attempts = told(&seen, "grpc-previous-rpc-attempts");
    let expected = [None, Some("1"), Some("2"), Some("3")].map(|n| n.map(str::to_owned));
    assert_eq!(attempts, expected);
}

#[tokio::test(start_paused = true)]
async fn c_5_methods_are_declared_idempotent_one_by_one_or_by_service() {
    let declared = ["bank.Ledger/Balance", "bank.Audit", "plain"];
    let cases = [
        ("bank.Ledger/Balance", true),
        ("bank.Ledger/Pay", false),
        ("bank.Ledger/BalanceAll", false),
        ("bank.Ledger/balance", false),
        ("bank.Ledger", false),
        ("bank.Audit/Read", true),
        ("bank.Audit/Write", true),
        ("bank.AuditLog/Read", false),
        ("bank.audit/Read", false),
        ("xbank.Audit/Read", false),
        ("x/bank.Audit/Read", false),
        ("bank.Audit/Read/More", false),
        ("plain/Method", true),
    ];
    for (method, repeatable) in cases {
        let policy = Policy::grpc_unary().idempotent_methods(declared);
        let (result, seen) = answered_after(policy, request(method), &[Duration::ZERO; 4]).await;
        let expected = match repeatable {
            true => (4, Some(StopReason::Exhausted)),
            false => (1, Some(StopReason::NotIdempotent)),
        };
        assert_eq!(outcome(&result), Some(expected), "{method}");
        assert_eq!(seen.len(), expected.0 as usize);
    }
    // A list is for gRPC: a POST that has the path of a method is not that method.
    let policy = Policy::http().idempotent_methods(declared);
    let mut plain = request("bank.Audit/Read");
    plain
        .headers_mut()
        .insert(CONTENT_TYPE, "application/json".parse().unwrap());
    let (result, _) = answered_after(policy, plain, &[Duration::ZERO; 4]).await;
    assert_eq!(outcome(&result), Some((1, Some(StopReason::NotIdempotent))));
}

#[test]
fn p_2_methods_that_could_never_match_are_refused() {
    for method in ["", "/bank.Ledger/Balance"] {
        for (field, policy) in [
            (
                "rules.idempotent_methods",
                Policy::grpc_unary().idempotent_methods([method]),
            ),
            (
                "rules.unary_methods",
                Policy::grpc_unary().unary_methods([method]),
            ),
        ] {
            let error = policy.build().unwrap_err().to_string();
            let expected = format!(
                "{field} is {method:?}, allowed: `package.Service/Method`, or `package.Service`"
            );
            assert_eq!(error, expected);
        }
    }
}
