//! The errors and outcomes that a caller sees.

use std::time::Duration;

use h2::Reason;
use http::Request;
use hyper_util::client::legacy::{self};
use tower::ServiceExt;
use tower_reprise::{
    call::{Cause, Health, Retryable, StopReason},
    error::{BoxError, Refusal, Refused},
};

use crate::{
    client::{
        Body, get, http2, keyless, outcome, parts, plain, post, send, send_keyless, stack, text,
    },
    support::{
        authority::{Authority, Identity},
        deps, find,
        http1::{Act, Server, reply},
        http2::{Act2, Server2},
        outcome_of,
        ports::deaf_uri,
        quick, verdict,
    },
    tls::{TlsServer, https},
};

#[tokio::test]
async fn d_4_the_last_real_response_says_why_there_were_no_more() {
    let starved = quick().budget_floor(0).budget_ratio(0.0);
    let brittle = quick().consecutive_failures(2);
    let cases = [
        (quick(), reply(503, ""), 4, StopReason::Exhausted),
        (quick(), reply(404, ""), 1, StopReason::NotRetryable),
        (
            quick(),
            reply(503, "retry-after: 3600\r\n"),
            1,
            StopReason::Deadline,
        ),
        (
            quick(),
            reply(503, "grpc-retry-pushback-ms: -1\r\n"),
            1,
            StopReason::Pushback,
        ),
        (starved, reply(503, ""), 1, StopReason::Budget),
        (brittle, reply(503, ""), 2, StopReason::Breaker),
    ];
    for (policy, act, attempts, reason) in cases {
        let deps = deps(policy);
        let server = Server::start(vec![act]).await;
        let response = stack(&deps, plain())
            .oneshot(get(&server.uri()))
            .await
            .unwrap();
        assert_eq!(outcome(&response), (attempts, Some(reason)));
        assert_eq!(server.requests().len(), attempts as usize, "{reason}");
        assert_eq!(text(response).await, "ok", "{reason}: unmodified");
    }
}

#[tokio::test]
async fn d_4_hypers_own_errors_are_reached_by_their_sources() {
    let server = Server::start(vec![Act::ReadAndClose]).await;
    let error = send(get(&server.uri())).await.unwrap_err();
    let client: &legacy::Error = find(&*error).expect("hyper-util's error");
    assert!(!client.is_connect());
    let hyper: &hyper::Error = find(&*error).expect("hyper's error");
    assert!(hyper.is_incomplete_message());
    let text = error.to_string();
    let dependency = server.uri().replace("http://", "");
    let dependency = dependency.trim_end_matches('/');
    assert_eq!(
        text,
        format!("{dependency}: reply incomplete (4 attempts, retries exhausted)")
    );

    let (_socket, uri) = deaf_uri();
    let error = send(get(&uri)).await.unwrap_err();
    assert!(find::<legacy::Error>(&*error).unwrap().is_connect());

    let server = Server2::start(vec![(Act2::Reset(Reason::INTERNAL_ERROR), false)]).await;
    let error = keyless(&deps(quick()), http2())
        .oneshot(post(&server.uri()))
        .await
        .unwrap_err();
    let h2: &h2::Error = find(&*error).expect("h2's error");
    assert_eq!(h2.reason(), Some(Reason::INTERNAL_ERROR));
}

#[tokio::test]
async fn s_2_an_error_holds_nothing_of_the_request() {
    const SECRETS: [&str; 4] = ["hunter2", "s3cret-query", "s3cret-token", "s3cret-body"];
    let secret = |uri: &str| {
        let uri = uri.replace("://", "://user:hunter2@") + "?card=s3cret-query";
        Request::put(uri)
            .header("authorization", "Bearer s3cret-token")
            .body(Body::from("s3cret-body"))
            .unwrap()
    };
    let mut errors = Vec::new();
    let (_socket, uri) = deaf_uri();
    errors.push(send(secret(&uri)).await);
    let garbage = Act::Say("s3cret-body\r\n\r\n".into());
    for act in [Act::ReadAndClose, Act::Reset, garbage] {
        let server = Server::start(vec![act]).await;
        errors.push(send(secret(&server.uri())).await);
    }
    let server = Server2::start(vec![(Act2::Reset(Reason::INTERNAL_ERROR), false); 4]).await;
    errors.push(
        stack(&deps(quick()), http2())
            .oneshot(secret(&server.uri()))
            .await,
    );
    let server = TlsServer::start(Identity::self_signed("127.0.0.1"), 0).await;
    let client = stack(&deps(quick()), https(&Authority::new()));
    errors.push(client.oneshot(secret(&server.uri())).await);
    for error in errors {
        let error = error.unwrap_err();
        let text = format!("{error} {error:?}");
        for secret in SECRETS {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

#[tokio::test]
async fn cb_7_an_open_breaker_refuses_without_connecting() {
    let server = Server::start(vec![Act::ReadAndClose]).await;
    let policy = quick()
        .consecutive_failures(2)
        .cooldown(Duration::from_secs(9), Duration::from_secs(9));
    let client = stack(&deps(policy), plain());
    let error = client
        .clone()
        .oneshot(get(&server.uri()))
        .await
        .unwrap_err();
    assert_eq!(outcome_of(&error), (2, Some(StopReason::Breaker)));
    assert!(
        find::<hyper::Error>(&*error).is_some(),
        "the last real error"
    );

    let error = client.oneshot(get(&server.uri())).await.unwrap_err();
    let refused = Refused::find(&*error).expect("a refusal");
    assert_eq!(refused.kind(), Refusal::Breaker);
    assert_eq!(refused.dependency(), server.address.to_string());
    assert_eq!(verdict(&error).cause, Cause::Refused(Refusal::Breaker));
    assert_eq!(server.connections(), 2);
}

// ---- configuration

#[tokio::test]
async fn c_3_a_uri_that_the_connector_can_not_use_is_never_retried() {
    let never = |error: BoxError| {
        assert_eq!(outcome_of(&error), (1, Some(StopReason::NotRetryable)));
        assert_eq!(
            parts(&error),
            (
                Cause::Configuration,
                Retryable::Never,
                Health::Neutral,
                true
            )
        );
    };
    let plain = keyless(&deps(quick()), plain());
    never(
        plain
            .oneshot(get("https://127.0.0.1:1/"))
            .await
            .unwrap_err(),
    );
    let https = keyless(&deps(quick()), https(&Authority::new()));
    never(
        https
            .clone()
            .oneshot(get("http://127.0.0.1:1/"))
            .await
            .unwrap_err(),
    );
    // Not a name that a certificate could hold.
    never(
        https
            .oneshot(get("https://a..example:1/"))
            .await
            .unwrap_err(),
    );
}

#[tokio::test]
async fn c_3_a_request_that_hyper_can_not_send_is_never_retried() {
    let error = send_keyless(get("/relative")).await.unwrap_err();
    assert_eq!(outcome_of(&error), (1, Some(StopReason::NotRetryable)));
    assert_eq!(verdict(&error).retry, Retryable::Never);
    assert_eq!(
        verdict(&error).health,
        Health::Neutral,
        "no fault of the dependency's"
    );
}
