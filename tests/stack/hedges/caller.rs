//! Second attempts of calls that are made to serve a request.

use http::Request;
use tokio::time::sleep;
use tower::{Layer, ServiceBuilder, limit::ConcurrencyLimitLayer};
use tower_reprise::{HedgeLayer, RetryLayer, call::CallerContext, policy::PolicyBuilder};

use super::{funded, hedged, ms, policy};
use crate::{
    setup::{self, Client, Part, counted, get, numbered, post, stack, with, with_header},
    support::{
        call, code,
        scripted::{Server, Step, status},
        secs,
    },
};

/// A call takes 50 ms, and is late after 10 ms.
fn slow() -> Server {
    Server::steps(|_| Step::status(200).after(ms(50)))
}

#[tokio::test(start_paused = true)]
async fn x_3_without_a_retry_loop_no_hedge_starts_after_the_callers_deadline() {
    let within = |millis| CallerContext::within(ms(millis));
    for (name, caller, expected) in [
        ("none", None, 2),
        ("time enough", Some(within(60_000)), 2),
        ("the deadline comes before the delay", Some(within(9)), 1),
        ("the deadline has passed", Some(within(0)), 1),
        ("X-2: a retry", Some(CallerContext::default().retry(1)), 1),
    ] {
        for in_scope in [false, true] {
            let server = slow();
            let mut client = hedged(&funded(policy()), &server);
            let result = match caller.clone() {
                None => call(&mut client, get()).await,
                Some(caller) if in_scope => caller.scope(call(&mut client, get())).await,
                Some(caller) => call(&mut client, with(get(), caller)).await,
            };
            let seen = (code(&result), server.calls());
            assert_eq!(seen, (200, expected), "{name}, in scope: {in_scope}");
        }
    }
}

/// Also where the layers above tell the next hop nothing, or retry nothing themselves.
#[tokio::test(start_paused = true)]
async fn x_2_a_call_that_serves_a_retry_is_not_hedged() {
    for with in [
        |policy: PolicyBuilder| policy,
        |policy: PolicyBuilder| policy.send_deadline(false),
        |policy: PolicyBuilder| policy.max_retries(0),
    ] {
        for (previous, expected) in [(0, 2), (1, 1)] {
            for parts in [&[Part::Hedge][..], &[Part::Retry, Part::Hedge]] {
                let server = slow();
                let mut client = stack(parts, &funded(with(policy())), &server);
                let caller = CallerContext::within(secs(60)).retry(previous);
                let result = call(&mut client, setup::with(get(), caller)).await;
                let seen = (code(&result), server.calls());
                assert_eq!(seen, (200, expected), "{previous}, {parts:?}");
            }
        }
    }
}

/// Nor where the loop above charges the call as a repeat that its own header names.
#[tokio::test(start_paused = true)]
async fn x_2_a_repeat_that_is_charged_is_not_hedged_if_the_chain_stops() {
    for (previous, expected) in [(0, 2), (1, 1)] {
        let server = slow();
        let deps = funded(policy());
        let client = ServiceBuilder::new()
            .layer(RetryLayer::new(deps.clone()).charge_repeats())
            .layer(HedgeLayer::new(deps))
            .service(server.clone());
        let caller = CallerContext::within(secs(60)).retry(previous);
        let repeat = with_header(with(get(), caller), "x-envoy-attempt-count", "2");
        let result = call(&mut { client }, repeat).await;
        assert_eq!(
            (code(&result), server.calls()),
            (200, expected),
            "{previous}"
        );
    }
}

/// It passes a retry of the caller's on.
#[tokio::test(start_paused = true)]
async fn x_2_a_call_that_serves_a_retry_is_no_original_to_any_layer() {
    for parts in [&[Part::Hedge][..], &[Part::Retry, Part::Hedge]] {
        for (previous, expected) in [(0, 1001), (1, 1000)] {
            let deps = funded(policy());
            let mut client = stack(parts, &deps, &Server::always(200));
            let caller = CallerContext::within(secs(60)).retry(previous);
            let result = call(&mut client, with(get(), caller)).await;
            let seen = (code(&result), counted(&deps));
            assert_eq!(seen, (200, (expected, 0)), "{parts:?}, {previous}");
        }
    }
}

/// a hedge that waited for its service says what is left when it goes out.
#[tokio::test(start_paused = true)]
async fn x_1_a_hedge_that_waited_tells_the_next_hop_what_is_left() {
    let server = Server::new(|request: &Request<()>, _| {
        let wait = ms(if request.method() == "POST" { 30 } else { 50 });
        async move {
            sleep(wait).await;
            Ok(status(200))
        }
    });
    let deps = funded(policy());
    let limited = ConcurrencyLimitLayer::new(2).layer(server.clone());
    let layers = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()))
        .layer(HedgeLayer::new(deps.clone()));
    let mut client = Client::new(layers.service(limited));
    let mut other = client.clone();
    let other = tokio::spawn(async move { call(&mut other, post()).await });
    tokio::task::yield_now().await;
    let request = with(numbered(get(), 1), CallerContext::within(ms(100)));
    assert_eq!(code(&call(&mut client, request).await), 200);
    assert_eq!(code(&other.await.unwrap()), 200);
    let left = server.header("x-envoy-expected-rq-timeout-ms");
    let of_call = left.iter().flatten().map(String::as_str);
    assert_eq!(of_call.collect::<Vec<_>>(), ["100", "70"]);
}
