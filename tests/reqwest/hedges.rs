//! Second attempts of a reqwest client, as a service and as a middleware.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use http::{Extensions, Request};
use reqwest::Body;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use tokio::time::{Instant, timeout};
use tower_reprise::{
    Dependencies, Policy, RetryOutcome,
    call::Attempt,
    policy::PolicyBuilder,
    stacks::{self, reqwest::TowerMiddleware},
};

use crate::{
    Form,
    chain::{Count, Handled, answering, get as items, said},
    client, get, post,
    support::{deps, quick, stragglers::Stragglers},
};

const DELAY: Duration = Duration::from_millis(20);

/// A second attempt goes out after 20 ms.
fn hedging(policy: PolicyBuilder) -> Dependencies {
    let policy = policy.send_attempt_count().hedge_delay(DELAY, DELAY);
    deps(policy.hedge_quantile(0.75))
}

/// The same, with room in the budget.
fn rich(policy: PolicyBuilder, server: &str) -> Dependencies {
    let deps = hedging(policy);
    let dependency = deps.get(server);
    (0..2000).for_each(|_| dependency.deposit());
    deps
}

fn straggling(mut request: Request<Body>) -> Request<Body> {
    request.headers_mut().insert("x-straggler", 1.into());
    request
}

#[tokio::test]
async fn h_1_stragglers_are_overtaken_and_cancelled() {
    for form in Form::BOTH {
        let server = Stragglers::start().await;
        let deps = rich(quick(), &server.address.to_string());
        for i in 0..20 {
            let mut request = get(&server.uri());
            if i % 5 == 0 {
                request = straggling(request);
            }
            let response = form.call(&deps, &client(), request).await.unwrap();
            let retried = response.extensions().get::<RetryOutcome>();
            assert!(retried.is_none(), "{form:?}, call {i}: no retry was needed");
            assert_eq!(response.text().await.unwrap(), "ok", "{form:?}");
        }
        server.cancelled(4).await;
        let status = deps.get(&server.address.to_string()).status();
        assert!(status.retries >= 4, "{form:?}: {}", status.retries);
        assert!(server.requests() <= 20 + status.retries, "{form:?}");
    }
}

#[tokio::test]
async fn h_2_a_post_without_a_key_is_never_hedged() {
    for form in Form::BOTH {
        let server = Stragglers::start().await;
        let (authority, client) = (server.address.to_string(), client());
        let keyless = rich(Policy::http(), &authority);
        let call = form.call(&keyless, &client, straggling(post(&server.uri())));
        assert!(timeout(10 * DELAY, call).await.is_err(), "{form:?}");
        assert_eq!(server.requests(), 1, "{form:?}");

        // One whose key the server honours is.
        let keyed = rich(quick(), &authority);
        let call = form.call(&keyed, &client, straggling(post(&server.uri())));
        assert_eq!(call.await.unwrap().text().await.unwrap(), "ok", "{form:?}");
        assert_eq!(server.requests(), 3, "{form:?}");
    }
}

#[tokio::test]
async fn h_3_an_empty_budget_sends_no_second_attempts_and_cancels_nothing() {
    let server = Stragglers::start().await;
    let (deps, client) = (hedging(quick()), client());
    let mut alone = 0;
    for i in 0..50 {
        let mut request = get(&server.uri());
        if i % 5 == 4 {
            request = straggling(request);
        }
        let call = Form::Middleware.call(&deps, &client, request);
        match timeout(5 * DELAY, call).await {
            Ok(response) => assert_eq!(response.unwrap().status(), 200),
            Err(_) => alone += 1,
        }
    }
    let status = deps.get(&server.address.to_string()).status();
    assert_eq!(status.retries + alone, 10);
    assert!((1..=5).contains(&status.retries), "{}", status.retries);
    assert_eq!(server.requests(), 50 + status.retries);
}

/// An end of the chain that says in its extensions which attempt it was, and waits with the first.
struct End(Duration);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Served(u32);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Given(&'static str);

#[async_trait]
impl Middleware for End {
    async fn handle(
        &self,
        _request: reqwest::Request,
        extensions: &mut Extensions,
        _next: Next<'_>,
    ) -> Handled {
        assert_eq!(extensions.get(), Some(&Given("by the caller")));
        assert!(extensions.get::<Served>().is_none(), "another attempt's");
        let number = extensions.get::<Attempt>().map_or(1, Attempt::number);
        extensions.insert(Served(number));
        if number == 1 {
            tokio::time::sleep(self.0).await;
        }
        Ok(said(200))
    }
}

#[tokio::test(start_paused = true)]
async fn h_1_the_extensions_of_the_winner_are_kept() {
    for (first, winner, took) in [(60, 2, 20), (10, 1, 10), (20, 1, 20)] {
        let deps = rich(quick(), "stock.example");
        let client = ClientBuilder::new(client())
            .with(TowerMiddleware::new(stacks::client(deps)))
            .with(End(Duration::from_millis(first)))
            .build();
        let mut extensions = Extensions::new();
        extensions.insert(Given("by the caller"));
        let request = items(&client).build().unwrap();
        let began = Instant::now();
        let called = client.execute_with_extensions(request, &mut extensions);
        assert_eq!(called.await.unwrap().status(), 200);
        assert_eq!(began.elapsed(), Duration::from_millis(took), "{first} ms");
        assert_eq!(extensions.get(), Some(&Served(winner)), "{first} ms");
        assert_eq!(extensions.get(), Some(&Given("by the caller")));
        assert!(extensions.get::<Attempt>().is_none(), "it is of the call");
    }
}

/// Both attempts of a call, and which of them are still out.
fn both(deps: Dependencies) -> (ClientWithMiddleware, Arc<()>) {
    let out = Arc::new(());
    let counted = out.clone();
    let client = answering(stacks::client(deps), move |_, _| {
        let held = counted.clone();
        async move {
            std::future::pending::<()>().await;
            drop(held);
            Ok(said(200))
        }
    });
    (client, out)
}

#[tokio::test(start_paused = true)]
async fn d_6_a_call_that_is_dropped_ends_both_attempts() {
    let (client, out) = both(rich(quick(), "stock.example"));
    let call = tokio::spawn(items(&client).send());
    tokio::time::sleep(DELAY / 2).await;
    assert_eq!(Arc::strong_count(&out), 3, "one is out");
    tokio::time::sleep(DELAY).await;
    assert_eq!(Arc::strong_count(&out), 4, "and one more");
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    assert_eq!(Arc::strong_count(&out), 2);
}

#[tokio::test(start_paused = true)]
async fn h_5_the_first_attempt_may_still_win_when_the_second_failed() {
    let client = answering(
        stacks::client(rich(quick(), "stock.example")),
        |request, n| async move {
            let again = request.headers().contains_key("x-envoy-attempt-count");
            assert_eq!(n, 0, "each attempt has extensions of its own");
            if !again {
                tokio::time::sleep(3 * DELAY).await;
            }
            Ok(said(if again { 500 } else { 200 }))
        },
    );
    let mut extensions = Extensions::new();
    let request = items(&client).build().unwrap();
    let called = client.execute_with_extensions(request, &mut extensions);
    assert_eq!(called.await.unwrap().status(), 200);
    assert_eq!(extensions.get(), Some(&Count(1)));
}
