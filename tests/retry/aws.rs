//! B-5: the cases of the AWS SDKs' standard retry mode of 2026. Each passes, or is refused by a rule.

use std::time::Duration;

use http::{HeaderValue, Method};
use tokio::time::Instant;
use tower::Layer;
use tower_reprise::{
    Dependencies, Policy, RetryLayer,
    call::StopReason,
    error::Rule,
    policy::{Exhaustion, PolicyBuilder},
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

/// An exhausted quota returns the error at once (G-4), also where the SDKs wait before they return it,
/// in long polls.
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
