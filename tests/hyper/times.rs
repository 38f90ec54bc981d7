//! Attempts and calls that take too long, and names that do not resolve.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::connect::{HttpConnector, dns::Name};
use tower::{ServiceBuilder, ServiceExt, service_fn, timeout::TimeoutLayer};
use tower_reprise::{
    RetryLayer,
    call::{Cause, Health, Retryable, StopReason},
    error::Elapsed,
};

use crate::{
    client::{get, impatient, keyless, outcome, over, parts, plain, post, send, stack},
    support::{
        deps, find,
        http1::{Act, Server, reply},
        outcome_of, quick, verdict,
    },
    tls::trusting,
};

#[tokio::test]
async fn d_3_an_attempt_that_stalls_is_given_up_and_retried() {
    let server = Server::start(vec![Act::Stall, reply(200, "")]).await;
    let response = stack(&impatient(), plain())
        .oneshot(get(&server.uri()))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert!(outcome(&response).0 >= 2);
    assert!(server.requests().len() >= 2);
}

#[tokio::test]
async fn d_3_stalls_to_the_end_are_a_timeout() {
    let server = Server::start(vec![Act::Stall]).await;
    let policy = quick()
        .max_retries(1)
        .attempt_timeout(Duration::from_millis(20));
    let deps = deps(policy);
    let error = stack(&deps, plain())
        .oneshot(get(&server.uri()))
        .await
        .unwrap_err();
    assert_eq!(outcome_of(&error), (2, Some(StopReason::Exhausted)));
    assert_eq!(
        parts(&error),
        (Cause::Timeout, Retryable::Yes, Health::Neutral, false),
        "C-10: to layers above, a nested call's"
    );
    let elapsed: &Elapsed = find(&*error).unwrap();
    assert!(!elapsed.is_whole_call());
    assert_eq!(elapsed.limit(), Duration::from_millis(20));
}

#[tokio::test]
async fn d_1_a_stall_of_the_whole_call_is_not_retried() {
    let server = Server::start(vec![Act::Stall]).await;
    let policy = quick().total_timeout(Duration::from_millis(50));
    let deps = deps(policy);
    let error = stack(&deps, plain())
        .oneshot(get(&server.uri()))
        .await
        .unwrap_err();
    assert_eq!(outcome_of(&error), (1, Some(StopReason::Deadline)));
    assert_eq!(
        parts(&error),
        (Cause::Timeout, Retryable::Never, Health::Neutral, false)
    );
    assert!(find::<Elapsed>(&*error).unwrap().is_whole_call());
}

#[tokio::test]
async fn c_3_a_timeout_of_towers_is_retried() {
    let limit = Duration::from_millis(150);
    let layered = |script| async move {
        let server = Server::start(script).await;
        let client = ServiceBuilder::new()
            .layer(RetryLayer::new(deps(quick())))
            .layer(TimeoutLayer::new(limit))
            .service(plain());
        let result = client.oneshot(get(&server.uri())).await;
        (server, result)
    };
    let (server, result) = layered(vec![Act::Stall, reply(200, "")]).await;
    assert_eq!(result.unwrap().status(), 200);
    assert!(server.requests().len() >= 2);

    let (_server, result) = layered(vec![Act::Stall]).await;
    let error = result.unwrap_err();
    assert_eq!(outcome_of(&error), (4, Some(StopReason::Exhausted)));
    assert!(find::<tower::timeout::error::Elapsed>(&*error).is_some());
    assert_eq!(
        parts(&error),
        (Cause::Timeout, Retryable::Yes, Health::Failure, false)
    );
}

#[tokio::test]
async fn c_3_a_connect_timeout_is_retried_for_any_method() {
    let timed_out = |connects: Arc<AtomicUsize>| {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let resolver = service_fn(move |_: Name| {
            connects.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok::<_, io::Error>(vec![address].into_iter()))
        });
        // A connector that takes too long, as seen from the client.
        let connector = ServiceBuilder::new()
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))
            .service(HttpConnector::new_with_resolver(resolver));
        over(connector)
    };
    let connects = Arc::new(AtomicUsize::new(0));
    let error = keyless(&deps(quick()), timed_out(connects.clone()))
        .oneshot(post("http://slow.example/"))
        .await
        .unwrap_err();
    assert_eq!(connects.load(Ordering::SeqCst), 4);
    assert_eq!(
        parts(&error),
        (Cause::Timeout, Retryable::Yes, Health::Failure, true)
    );
}

// ---- names

#[tokio::test]
async fn c_3_a_name_that_does_not_resolve_is_looked_up_twice_at_most() {
    for request in [
        get("http://nowhere.invalid/"),
        post("http://nowhere.invalid/"),
    ] {
        let lookups = Arc::new(AtomicUsize::new(0));
        let counted = lookups.clone();
        let resolver = service_fn(move |_: Name| {
            counted.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Err::<std::vec::IntoIter<SocketAddr>, _>(io::Error::other(
                "no such name",
            )))
        });
        let error = keyless(
            &deps(quick()),
            over(HttpConnector::new_with_resolver(resolver)),
        )
        .oneshot(request)
        .await
        .unwrap_err();
        assert_eq!(lookups.load(Ordering::SeqCst), 2);
        assert_eq!(outcome_of(&error), (2, Some(StopReason::Exhausted)));
        assert_eq!(
            parts(&error),
            (Cause::Dns, Retryable::MaxPerCause(1), Health::Failure, true)
        );
    }
}

#[tokio::test]
async fn c_3_a_lookup_that_times_out_is_a_dns_failure_still() {
    let resolver = service_fn(|_: Name| {
        std::future::ready(Err::<std::vec::IntoIter<SocketAddr>, _>(io::Error::from(
            io::ErrorKind::TimedOut,
        )))
    });
    let error = stack(
        &deps(quick()),
        over(HttpConnector::new_with_resolver(resolver)),
    )
    .oneshot(get("http://nowhere.invalid/"))
    .await
    .unwrap_err();
    assert_eq!(verdict(&error).cause, Cause::Dns);
    assert_eq!(outcome_of(&error).0, 2);
}

#[tokio::test]
async fn c_3_the_systems_resolver_is_recognised() {
    let error = send(get("http://nowhere.invalid/")).await.unwrap_err();
    assert_eq!(
        parts(&error),
        (Cause::Dns, Retryable::MaxPerCause(1), Health::Failure, true)
    );
    assert_eq!(outcome_of(&error), (2, Some(StopReason::Exhausted)));

    let https = HttpsConnectorBuilder::new()
        .with_tls_config(trusting([]))
        .https_only()
        .enable_http1()
        .build();
    let error = stack(&deps(quick()), over(https))
        .oneshot(get("https://nowhere.invalid/"))
        .await
        .unwrap_err();
    assert_eq!(verdict(&error).cause, Cause::Dns);
}
