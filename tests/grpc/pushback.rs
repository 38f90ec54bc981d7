//! Pushback, details, and the timeouts of a call.

use std::time::Duration;

use tonic::{Code, Request};
use tonic_health::pb::health_client::HealthClient;
use tower_reprise::{
    Dependencies,
    call::{Cause, StopReason},
    error::Elapsed,
    policy::PolicyBuilder,
};

use crate::{
    client::{
        CHECK, Deps, channel, check, endpoint, full, keyless, named, outcome, policy, served,
        verdict,
    },
    support::grpc::{Act, Server},
};

/// A policy whose own wait never fits into the call, by a draw that is known.
fn slow() -> Deps {
    Dependencies::builder(slow_policy().build().unwrap())
        .named("ledger")
        .seed(7)
        .build()
}

#[tokio::test]
async fn ra_8_pushback_decides_alone_when_to_call_again() {
    // Without a word from the server there is no second attempt.
    let server = Server::start(vec![Act::fail(14), Act::Serve]).await;
    let mut client = HealthClient::new(keyless(&slow(), channel(server.address)));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(outcome(&status), (1, Some(StopReason::Deadline)));

    for pushback in ["0", "1"] {
        let with: &[_] = Box::leak(Box::new([("grpc-retry-pushback-ms", pushback)]));
        for act in [Act::fail_with(14, with), Act::late(14, with)] {
            let server = Server::start(vec![act, Act::Serve]).await;
            let deps = unary(slow_policy());
            let mut client = HealthClient::new(keyless(&deps, channel(server.address)));
            assert_eq!(served(&client.check(check()).await.unwrap()), 2);
        }
    }
}

fn slow_policy() -> PolicyBuilder {
    policy()
        .base(Duration::from_secs(3600))
        .cap(Duration::from_secs(3600))
}

fn unary(policy: PolicyBuilder) -> Deps {
    named(policy.unary_methods([CHECK]))
}

#[tokio::test]
async fn s_3_details_that_are_no_base64_do_no_harm() {
    let with = &[
        ("grpc-status-details-bin", "{}.."),
        ("grpc-retry-pushback-ms", "-1"),
    ];
    let server = Server::start(vec![Act::fail_with(14, with)]).await;
    let mut client = HealthClient::new(full(&unary(policy()), channel(server.address)));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.details(), b"");
    assert_eq!(outcome(&status), (1, Some(StopReason::Pushback)));
}

#[tokio::test]
async fn ra_8_pushback_below_zero_or_unreadable_stops() {
    for pushback in ["-1", "soon", ""] {
        let with: &[_] = Box::leak(Box::new([("grpc-retry-pushback-ms", pushback)]));
        for act in [Act::fail_with(14, with), Act::late(14, with)] {
            let server = Server::start(vec![act.clone(), Act::Serve]).await;
            let deps = unary(policy());
            let mut client = HealthClient::new(full(&deps, channel(server.address)));
            let status = client.check(check()).await.unwrap_err();
            assert_eq!(status.code(), Code::Unavailable, "{pushback:?}");
            assert_eq!(server.requests().len(), 1, "{pushback:?}");
            if matches!(act, Act::Fail { .. }) {
                assert_eq!(outcome(&status), (1, Some(StopReason::Pushback)));
            }
        }
    }
}

#[tokio::test]
async fn ra_8_pushback_beyond_the_deadline_returns_at_once_and_never_lifts_the_bound() {
    let with = &[("grpc-retry-pushback-ms", "3600000")];
    let server = Server::start(vec![Act::fail_with(14, with)]).await;
    let mut client = HealthClient::new(keyless(&named(policy()), channel(server.address)));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(outcome(&status), (1, Some(StopReason::Deadline)));
    let asked = status.metadata().get("grpc-retry-pushback-ms").unwrap();
    assert_eq!(asked, "3600000", "the status is what the server said");

    let with = &[("grpc-retry-pushback-ms", "0")];
    let server = Server::start(vec![Act::fail_with(14, with)]).await;
    let mut client = HealthClient::new(keyless(&named(policy()), channel(server.address)));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(outcome(&status), (4, Some(StopReason::Exhausted)));
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test]
async fn ra_8_attempts_are_numbered_from_the_second_on() {
    let server = Server::start(vec![Act::fail(14), Act::fail(14), Act::Serve]).await;
    let mut client = HealthClient::new(full(&named(policy()), channel(server.address)));
    client.check(check()).await.unwrap();
    let previous = server.header("grpc-previous-rpc-attempts");
    assert_eq!(previous, [None, Some("1".into()), Some("2".into())]);
}

#[tokio::test]
async fn d_1_the_timeout_is_shortened_to_what_remains() {
    let server = Server::start(vec![Act::fail(14), Act::fail(14), Act::Serve]).await;
    let mut client = HealthClient::new(full(&named(policy()), channel(server.address)));
    let mut request = Request::new(check());
    request.set_timeout(Duration::from_secs(10));
    client.check(request).await.unwrap();
    let micros = |value: Option<String>| -> u64 {
        let value = value.expect("a grpc-timeout");
        value.strip_suffix('u').expect(&value).parse().unwrap()
    };
    let given: Vec<u64> = server
        .header("grpc-timeout")
        .into_iter()
        .map(micros)
        .collect();
    assert_eq!(given[0], 10_000_000);
    assert!(given[0] > given[1] && given[1] > given[2], "{given:?}");
}

// ---- time

#[tokio::test]
async fn d_1_a_call_without_an_answer_ends_by_its_deadline() {
    let server = Server::start(vec![Act::Stall]).await;
    let deps = named(policy().total_timeout(Duration::from_millis(80)));
    let mut client = HealthClient::new(full(&deps, channel(server.address)));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(outcome(&status), (1, Some(StopReason::Deadline)));
    let source = std::error::Error::source(&status).and_then(std::error::Error::source);
    let elapsed: &Elapsed = source.unwrap().downcast_ref().unwrap();
    assert!(elapsed.is_whole_call());
    assert_eq!(status.message(), elapsed.to_string());
}

#[tokio::test]
async fn d_1_the_callers_own_timeout_is_a_deadline() {
    // The channel keeps time too; whichever is first, the code is the same.
    let server = Server::start(vec![Act::Stall]).await;
    let mut client = HealthClient::new(full(&named(policy()), channel(server.address)));
    let mut request = Request::new(check());
    request.set_timeout(Duration::from_millis(80));
    let status = client.check(request).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    assert_eq!(outcome(&status), (1, Some(StopReason::Deadline)));
}

#[tokio::test]
async fn c_3_a_timeout_of_the_channels_is_retried() {
    let server = Server::start(vec![Act::Stall, Act::Serve]).await;
    let impatient = endpoint(server.address).timeout(Duration::from_millis(150));
    let deps = named(policy().budget_floor(10));
    let mut client = HealthClient::new(keyless(&deps, impatient.connect_lazy()));
    assert!(served(&client.check(check()).await.unwrap()) >= 2);

    let server = Server::start(vec![Act::Stall]).await;
    let impatient = endpoint(server.address).timeout(Duration::from_millis(20));
    let mut client = HealthClient::new(keyless(&deps, impatient.connect_lazy()));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(outcome(&status), (4, Some(StopReason::Exhausted)));
    assert_eq!(verdict(&status).cause, Cause::Timeout);
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn d_3_an_attempt_that_takes_too_long_is_retried() {
    let server = Server::start(vec![Act::Stall, Act::Serve]).await;
    let deps = named(policy().attempt_timeout(Duration::from_millis(150)));
    let mut client = HealthClient::new(keyless(&deps, channel(server.address)));
    assert!(served(&client.check(check()).await.unwrap()) >= 2);
}
