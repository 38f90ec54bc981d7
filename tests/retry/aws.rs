//! B-5: the cases of the AWS SDKs' standard retry mode of 2026. Each passes, or is refused by a rule.

use std::time::Duration;

use http::{HeaderValue, Method};
use tokio::time::Instant;
use tower::Layer;
use tower_reprise::{
    Dependencies, Policy, RetryBudgetLayer, RetryLayer, RetryOutcome,
    call::StopReason,
    error::Rule,
    policy::{Exhaustion, PolicyBuilder, RetryQuota},
};

use crate::{
    setup::{get, request},
    support::{
        call, code, outcome,
        scripted::{Server, status},
    },
};

const MS: Duration = Duration::from_millis(1);

/// Three attempts, a base of 50 ms, one of a second for throttling, a cap of 20 s.
fn standard_mode() -> PolicyBuilder {
    Policy::http()
        .max_retries(2)
        .base(50 * MS)
        .throttled_base(1000 * MS)
        .cap(20_000 * MS)
}

/// A reply with a status and perhaps one more header.
type Failure = (u16, Option<(&'static str, &'static str)>);

/// The longest first and second wait before retries over many draws.
async fn longest_waits(policy: &PolicyBuilder, (code, header): Failure) -> [Duration; 2] {
    let mut longest = [Duration::ZERO; 2];
    for seed in 0..200 {
        let server = Server::replies(move |_, _| {
            let mut reply = status(code);
            if let Some((name, value)) = header {
                reply
                    .headers_mut()
                    .insert(name, HeaderValue::from_static(value));
            }
            reply
        });
        let deps = Dependencies::builder(policy.clone().build().unwrap());
        let deps = deps.seed(seed).build();
        let mut client = RetryLayer::new(deps).layer(server.clone());
        let result = call(&mut client, get()).await;
        assert_eq!(
            outcome(&result),
            Some((3, Some(StopReason::Exhausted))),
            "{code}"
        );
        for (longest, wait) in longest.iter_mut().zip(server.waits()) {
            *longest = wait.max(*longest);
        }
    }
    longest
}

#[tokio::test(start_paused = true)]
async fn b_5_throttling_waits_longer_than_a_transient_failure() {
    for (failure, base) in [
        ((500, None), 50),
        ((502, None), 50),
        ((503, None), 50),
        ((504, None), 50),
        ((408, None), 50),
        ((429, None), 1000),
        ((503, Some(("retry-after", "0"))), 1000),
        ((503, Some(("x-amz-retry-after", "0"))), 1000),
    ] {
        let waits = longest_waits(&standard_mode(), failure).await;
        for (wait, bound) in waits.into_iter().zip([base * MS, 2 * base * MS]) {
            // Timers have milliseconds.
            assert!(wait <= bound + MS, "{failure:?}: {wait:?} > {bound:?}");
            assert!(wait > bound * 8 / 10, "{failure:?}: {wait:?} of {bound:?}");
        }
    }
    // Without a base of its own, all are alike.
    let policy = Policy::http().max_retries(2).base(50 * MS);
    let [first, second] = longest_waits(&policy, (429, None)).await;
    assert!(
        first <= 51 * MS && second <= 101 * MS,
        "{first:?}, {second:?}"
    );
}

/// The server's delay is a floor, kept whole: the SDKs wait for it at most 5 s longer than for
/// their backoff.
#[tokio::test(start_paused = true)]
async fn b_5_ra_10_a_server_directed_delay_is_kept() {
    let waits = longest_waits(&standard_mode(), (503, Some(("x-amz-retry-after", "9000")))).await;
    for wait in waits {
        assert!((9000 * MS..=10_001 * MS).contains(&wait), "{wait:?}");
    }
}

/// A share of the budget that is never the bound, so that tokens are.
fn by_tokens(quota: RetryQuota) -> PolicyBuilder {
    standard_mode()
        .retry_quota(quota)
        .budget_floor(10)
        .on_budget_exhausted(Exhaustion::Never)
}

/// G-9: a repeat of another loop that succeeds gives its tokens back, as a retry does.
#[tokio::test(start_paused = true)]
async fn g_9_repeats_that_succeed_give_their_tokens_back() {
    let quota = RetryQuota {
        capacity: 28,
        ..RetryQuota::default()
    };
    let deps = || Dependencies::new(by_tokens(quota).build().unwrap());
    let server = Server::always(200);
    let mut alone = RetryBudgetLayer::new(deps()).layer(server.clone());
    let mut stack = RetryLayer::new(deps())
        .charge_repeats()
        .layer(server.clone());
    for _ in 0..5 {
        let repeat = || {
            let mut repeat = get();
            let second = HeaderValue::from_static("2");
            repeat.headers_mut().insert("x-envoy-attempt-count", second);
            repeat
        };
        assert!(call(&mut alone, repeat()).await.is_ok());
        assert!(call(&mut stack, repeat()).await.is_ok());
    }
}

/// G-9: what retries cost, and what gives tokens back. Each step is the status of each attempt, or none if it
/// times out, and the number of attempts that there are.
#[tokio::test(start_paused = true)]
async fn b_5_g_9_retries_take_tokens_by_the_failure_before_them() {
    let quota = |capacity, failure, timeout, throttled| RetryQuota {
        capacity,
        failure,
        timeout,
        throttled,
    };
    const DOWN: &[Option<u16>] = &[Some(503), Some(503), Some(503)];
    const BUSY: &[Option<u16>] = &[Some(429), Some(429), Some(429)];
    const HUNG: &[Option<u16>] = &[None, None, None];
    const MENDED: &[Option<u16>] = &[Some(503), Some(200)];
    type Step = (&'static [Option<u16>], u32, Option<StopReason>);
    let all = |replies| (replies, 3, Some(StopReason::Exhausted));
    let some = |replies, attempts| (replies, attempts, Some(StopReason::Budget));
    let cases: [(&str, RetryQuota, Vec<Step>); 6] = [
        (
            "14 for a transient failure",
            quota(28, 14, 14, 5),
            vec![all(DOWN), some(DOWN, 1)],
        ),
        (
            "5 for throttling, of what is left",
            quota(33, 14, 14, 5),
            vec![all(DOWN), some(BUSY, 2)],
        ),
        (
            "before 2026: 10 after a time-out",
            quota(20, 5, 10, 5),
            vec![all(HUNG), some(DOWN, 1)],
        ),
        (
            "before 2026: 5 for any other",
            quota(20, 5, 10, 5),
            vec![all(DOWN), all(BUSY), some(BUSY, 1)],
        ),
        (
            "a retry that succeeds gives its tokens back",
            quota(14, 14, 14, 5),
            vec![(MENDED, 2, None), (MENDED, 2, None), some(DOWN, 2)],
        ),
        (
            "a success gives one",
            quota(15, 15, 15, 15),
            vec![some(DOWN, 2), (&[Some(200)], 1, None), some(DOWN, 1)],
        ),
    ];
    for (name, quota, steps) in cases {
        let policy = by_tokens(quota).attempt_timeout(1000 * MS).build().unwrap();
        let deps = Dependencies::new(policy);
        for (n, (replies, attempts, reason)) in steps.into_iter().enumerate() {
            let server = Server::new(move |_, n| async move {
                match replies[n] {
                    Some(code) => Ok(status(code)),
                    None => std::future::pending().await,
                }
            });
            let mut client = RetryLayer::new(deps.clone()).layer(server);
            let result = call(&mut client, get()).await;
            let found = outcome(&result).unwrap_or((1, None));
            assert_eq!(found, (attempts, reason), "{name}, call {n}");
        }
    }
}

/// A share of originals is the bound all the same, however many tokens there are.
#[tokio::test(start_paused = true)]
async fn b_5_r_7_tokens_do_not_widen_the_budget() {
    let policy = standard_mode()
        .retry_quota(RetryQuota::default())
        .budget_floor(1)
        .on_budget_exhausted(Exhaustion::Never);
    let server = Server::always(503);
    let deps = Dependencies::new(policy.build().unwrap());
    let mut client = RetryLayer::new(deps).layer(server.clone());
    let result = call(&mut client, get()).await;
    assert_eq!(outcome(&result), Some((2, Some(StopReason::Budget))));
    for (quota, field) in [
        (
            RetryQuota {
                capacity: 0,
                ..RetryQuota::default()
            },
            "budget.quota.capacity",
        ),
        (
            RetryQuota {
                failure: 501,
                ..RetryQuota::default()
            },
            "budget.quota",
        ),
        (
            RetryQuota {
                timeout: 0,
                ..RetryQuota::default()
            },
            "budget.quota",
        ),
    ] {
        let error = standard_mode().retry_quota(quota).build().unwrap_err();
        assert_eq!(error.field(), field, "{error}");
    }
}

/// An exhausted quota returns the error at once (G-4), also where the SDKs wait before they return it,
/// in long polls: the poller is told how long.
#[tokio::test(start_paused = true)]
async fn b_5_g_4_an_exhausted_quota_never_delays() {
    let policy = standard_mode()
        .budget_floor(1)
        .on_budget_exhausted(Exhaustion::Never);
    let server = Server::always(503);
    let deps = Dependencies::new(policy.build().unwrap());
    let mut client = RetryLayer::new(deps).layer(server.clone());
    call(&mut client, get()).await.unwrap();
    let start = Instant::now();
    let result = call(&mut client, get()).await;
    assert_eq!((code(&result), start.elapsed()), (503, Duration::ZERO));
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Budget))));
    let response = result.unwrap();
    let wait = RetryOutcome::of(&response).unwrap().poll_after();
    assert!(wait.is_some_and(|wait| wait < 50 * MS), "{wait:?}");
}

/// The SDKs retry every operation; here a POST takes a key or a declaration.
#[tokio::test(start_paused = true)]
async fn b_5_c_5_a_post_without_a_key_is_not_repeated() {
    let server = Server::always(503);
    let deps = Dependencies::new(standard_mode().build().unwrap());
    let mut client = RetryLayer::new(deps).layer(server.clone());
    let result = call(&mut client, request(Method::POST)).await;
    assert_eq!(outcome(&result), Some((1, Some(StopReason::NotIdempotent))));
}

/// The numbers of the mode, of DynamoDB's, and what is beyond the standard.
#[test]
fn b_5_r_2_the_numbers_are_inside_the_ranges_or_refused() {
    let cases = [
        ("standard", standard_mode(), None),
        (
            "DynamoDB",
            standard_mode().max_retries(3).base(25 * MS),
            None,
        ),
        ("one attempt", standard_mode().max_retries(0), None),
        (
            "ten retries",
            standard_mode().max_retries(9),
            Some(Rule::R2),
        ),
        (
            "a retry quota alone",
            standard_mode().without_budget(),
            Some(Rule::R7),
        ),
    ];
    for (name, policy, rule) in cases {
        match policy.build() {
            Ok(policy) => assert!(rule.is_none() && policy.audit().is_compliant(), "{name}"),
            Err(error) => assert_eq!(error.rule(), rule, "{name}: {error}"),
        }
    }
    for (base, field) in [
        (Duration::ZERO, "backoff.throttled_base"),
        (21_000 * MS, "backoff.cap"),
    ] {
        let error = standard_mode().throttled_base(base).build().unwrap_err();
        assert_eq!(error.field(), field, "{error}");
    }
}
