//! When a second attempt goes out, and which answer counts.

use std::{future::pending, sync::atomic::Ordering};

use tokio::time::{Instant, advance, sleep};
use tower::{Service, ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer};
use tower_reprise::{HedgeLayer, call::Attempt, error::BoxError};

use super::{counting_drops, funded, hedged, ms, policy, retries};
use crate::{
    setup::{HOST, get, numbered, with_header},
    support::{
        call, code,
        scripted::{Server, Step, status},
        secs,
    },
};

#[tokio::test(start_paused = true)]
async fn h_1_the_first_good_answer_counts() {
    type Answer = (u64, u16);
    // The first attempt, the second, which goes out after 10 ms, and what comes of it.
    let cases: [(&str, Answer, Answer, Answer, usize); 8] = [
        ("in time", (9, 200), (1, 200), (9, 200), 1),
        ("a failure in time", (9, 503), (1, 200), (9, 503), 1),
        ("the first is sooner", (15, 200), (20, 200), (15, 200), 2),
        ("the second is sooner", (50, 200), (5, 200), (15, 200), 2),
        ("the first fails", (12, 503), (5, 200), (15, 200), 2),
        ("the second fails", (50, 200), (1, 503), (50, 200), 2),
        ("both fail", (30, 503), (5, 503), (30, 503), 2),
        ("H-5: a final answer", (50, 200), (5, 404), (15, 404), 2),
    ];
    for (name, first, second, expected, attempts) in cases {
        let server = Server::steps(move |n| {
            let (after, code) = [first, second][n];
            Step::status(code).after(ms(after))
        });
        let deps = funded(policy());
        let start = Instant::now();
        let result = call(&mut hedged(&deps, &server), get()).await;
        let took = start.elapsed();
        assert_eq!(
            (took, code(&result)),
            (ms(expected.0), expected.1),
            "{name}"
        );
        assert_eq!(server.calls(), attempts, "{name}");
        assert_eq!(retries(&deps), attempts as u64 - 1, "{name}");
        if attempts == 2 {
            assert_eq!(server.waits(), [ms(10)], "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn h_1_the_other_attempt_is_cancelled() {
    for (first, second) in [(None, Some(5)), (Some(20), None)] {
        let (server, cancelled) = counting_drops(move |n| async move {
            match [first, second][n] {
                Some(after) => sleep(ms(after)).await,
                None => pending().await,
            }
            status(200)
        });
        let mut client = hedged(&funded(policy()), &server);
        // As `select!` does, the future is kept after its end.
        let mut kept = client.ready().await.unwrap().call(get());
        let result = kept.as_mut().await;
        assert_eq!((code(&result), server.calls()), (200, 2));
        assert_eq!(cancelled.load(Ordering::Relaxed), 1);
        drop(kept);
    }
    // D-6: and both if the caller leaves.
    let (server, cancelled) = counting_drops(|_| pending());
    let deps = funded(policy());
    let mut client = hedged(&deps, &server);
    let given_up = tokio::time::timeout(ms(30), call(&mut client, get())).await;
    assert!(given_up.is_err());
    assert_eq!((server.calls(), cancelled.load(Ordering::Relaxed)), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn h_1_the_delay_follows_the_dependencys_own_latency() {
    let server = Server::new(|request, _| {
        let call: u64 = request.headers()["x-call"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        async move {
            // Of 100 calls one takes each number of milliseconds.
            sleep(ms(call % 100 + 1)).await;
            Ok(status(200))
        }
    });
    let deps = funded(policy().hedge_delay(ms(1), secs(10)));
    let mut client = hedged(&deps, &server);
    assert_eq!(deps.get(HOST).status().hedge_delay, None);
    for i in 0..1000 {
        call(&mut client, numbered(get(), i)).await.unwrap();
    }
    let delay = deps.get(HOST).status().hedge_delay.unwrap();
    assert!((ms(90)..ms(98)).contains(&delay), "{delay:?}");
    let hedges = retries(&deps);
    assert!((20..=60).contains(&hedges), "about 5 %: {hedges}");
}

#[tokio::test(start_paused = true)]
async fn h_5_what_a_failed_attempt_asked_for_counts_for_the_call() {
    // The second attempt is told to wait, and the first succeeds: others wait.
    let server = Server::steps(|n| match n {
        0 => Step::status(200).after(ms(50)),
        _ => Step::with_header(429, "retry-after", "5"),
    });
    let deps = funded(policy());
    let result = call(&mut hedged(&deps, &server), get()).await;
    assert_eq!(code(&result), 200);
    let hold = deps.get(HOST).status().hold.unwrap();
    assert!((secs(4)..=secs(5)).contains(&hold), "{hold:?}");
    // Both fail: the one that asks for more is the call's, whichever it is.
    for asking in [0, 1] {
        let server = Server::steps(move |n| {
            let busy = Step::with_header(503, "retry-after", "7");
            let step = if n == asking { busy } else { Step::status(503) };
            step.after(ms(30))
        });
        let deps = funded(policy());
        let result = call(&mut hedged(&deps, &server), get()).await;
        assert_eq!(result.unwrap().headers()["retry-after"], "7", "{asking}");
    }
}

#[tokio::test(start_paused = true)]
async fn h_1_the_second_attempt_says_that_it_is_one() {
    let server = Server::steps(|n| match n {
        0 => Step::Never,
        _ => Step::status(200),
    });
    let deps = funded(policy().send_attempt_count().idempotent_methods(["a.B/C"]));
    let request = with_header(get(), "content-type", "application/grpc");
    let mut request = with_header(request, "grpc-timeout", "2S");
    *request.uri_mut() = format!("http://{HOST}/a.B/C").parse().unwrap();
    let request = with_header(request, "idempotency-key", "order-1");
    call(&mut hedged(&deps, &server), request).await.unwrap();
    let [first, second] = &server.requests()[..] else {
        panic!("two attempts");
    };
    let attempt = |request: &http::Request<()>| request.extensions().get::<Attempt>().copied();
    assert_eq!(attempt(first), None);
    let attempt = attempt(second).unwrap();
    assert_eq!((attempt.number(), attempt.is_hedge()), (2, true));
    let header = |request: &http::Request<()>, name| {
        let value = request.headers().get(name);
        value.map(|value| value.to_str().unwrap().to_owned())
    };
    for (name, before, after) in [
        ("idempotency-key", Some("order-1"), Some("order-1")),
        ("x-envoy-attempt-count", None, Some("2")),
        ("grpc-previous-rpc-attempts", None, Some("1")),
        ("grpc-timeout", Some("2S"), Some("1990000u")),
    ] {
        let found = (header(first, name), header(second, name));
        let expected = (before.map(str::to_owned), after.map(str::to_owned));
        assert_eq!(found, expected, "{name}");
    }
    assert_eq!(first.uri(), second.uri());
}

/// D-7: a limit below has one place, which the first attempt holds.
#[tokio::test(start_paused = true)]
async fn h_1_a_second_attempt_that_gets_no_place_is_not_sent() {
    let server = Server::steps(|_| Step::status(200).after(ms(50)));
    let deps = funded(policy());
    let mut client = ServiceBuilder::new()
        .layer(HedgeLayer::new(deps.clone()))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(server.clone());
    for _ in 0..3 {
        let result: Result<_, BoxError> = call(&mut client, get()).await;
        assert_eq!(code(&result), 200);
    }
    assert_eq!((server.calls(), retries(&deps)), (3, 0));
}

/// A hedge's answer that comes in the same moment as the deadline is not waited for.
#[tokio::test(start_paused = true)]
async fn h_1_no_second_attempt_after_the_deadline() {
    let server = Server::steps(|_| Step::status(200).after(secs(1)));
    let deps = funded(policy());
    let request = with_header(get(), "content-type", "application/grpc");
    let mut request = with_header(request, "grpc-timeout", "10m");
    request.headers_mut().insert("x-call", 1.into());
    let deps_ = deps.clone();
    let mut client = hedged(&deps_, &server);
    let future = client.ready().await.unwrap().call(request);
    let running = tokio::spawn(future);
    advance(ms(500)).await;
    assert_eq!(running.await.unwrap().unwrap().status(), 200);
    assert_eq!(server.calls(), 1);
}
