//! The middleware beside others in one chain.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use http::{Extensions, HeaderValue};
use reqwest_middleware::{ClientBuilder, Middleware, Next};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, RetryAfterLayer, RetryLayer, RetryOverride,
    call::{Attempt, StopReason},
    error::{BoxError, Refused},
    stacks::{self, reqwest::TowerMiddleware},
};

use super::{Handled, Inner, answering, get, said};
use crate::{
    client, outcome,
    support::{
        deps,
        http1::{Server, reply},
        outcome_of, quick,
    },
};

/// Writes down what passes.
#[derive(Clone)]
struct Log(&'static str, Arc<Mutex<Vec<String>>>);

impl Log {
    fn note(&self, what: &str) {
        self.1.lock().unwrap().push(format!("{} {what}", self.0));
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Tag(&'static str);

#[async_trait]
impl Middleware for Log {
    async fn handle(
        &self,
        mut request: reqwest::Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Handled {
        let tag = extensions.get::<Tag>().cloned();
        let attempt = extensions.get::<Attempt>().map(Attempt::number);
        self.note(&format!("in {tag:?} {attempt:?}"));
        let value = HeaderValue::from_static(self.0);
        request.headers_mut().append("x-passed", value);
        let response = next.run(request, extensions).await?;
        let attempt = extensions.get::<Attempt>().map(Attempt::number);
        self.note(&format!("out {} {attempt:?}", response.status().as_u16()));
        Ok(response)
    }
}

#[tokio::test]
async fn d_5_middlewares_before_see_one_call_and_those_after_each_attempt() {
    let server = Server::start(vec![reply(503, ""), reply(200, "")]).await;
    let log = Arc::new(Mutex::new(Vec::new()));
    let client = ClientBuilder::new(client())
        .with(Log("outer", log.clone()))
        .with(TowerMiddleware::new(stacks::client(deps(quick()))))
        .with(Log("inner", log.clone()))
        .build();
    let response = client
        .get(server.uri())
        .with_extension(Tag("mine"))
        .send()
        .await
        .unwrap();
    assert_eq!(outcome(&response), (2, None));
    let log = log.lock().unwrap();
    let expected = [
        r#"outer in Some(Tag("mine")) None"#,
        r#"inner in Some(Tag("mine")) None"#,
        "inner out 503 None",
        r#"inner in Some(Tag("mine")) Some(2)"#,
        "inner out 200 Some(2)",
        "outer out 200 None",
    ];
    assert_eq!(*log, expected);
    for request in server.requests() {
        let passed: Vec<_> = request
            .lines()
            .filter(|l| l.starts_with("x-passed"))
            .collect();
        assert_eq!(passed, ["x-passed: outer", "x-passed: inner"]);
    }
}

/// Runs what comes after it twice.
struct Twice;

#[async_trait]
impl Middleware for Twice {
    async fn handle(
        &self,
        request: reqwest::Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Handled {
        let again = request.try_clone().unwrap();
        next.clone().run(request, extensions).await?;
        next.run(again, extensions).await
    }
}

#[tokio::test(start_paused = true)]
async fn g_3_a_chain_that_is_run_again_is_another_call() {
    let deps = deps(quick());
    let client = ClientBuilder::new(client())
        .with(Twice)
        .with(TowerMiddleware::new(RetryLayer::new(deps.clone())))
        .with(Inner(|_, n| async move {
            Ok(said(if n % 2 == 0 { 503 } else { 200 }))
        }))
        .build();
    assert_eq!(outcome(&get(&client).send().await.unwrap()), (2, None));
    let status = deps.get("stock.example").status();
    assert_eq!((status.originals, status.retries), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn g_6_an_attempt_of_a_loop_above_is_no_original() {
    let deps = deps(quick());
    let client = answering(RetryLayer::new(deps.clone()), |_, _| async {
        Ok(said(200))
    });
    let request = client.get("http://stock.example/").build().unwrap();
    let mut extensions = Extensions::new();
    extensions.insert(Attempt::retry(4));
    client
        .execute_with_extensions(request, &mut extensions)
        .await
        .unwrap();
    assert_eq!(deps.get("stock.example").status().originals, 0);
    assert_eq!(
        extensions.get(),
        Some(&Attempt::retry(4)),
        "as it was given"
    );
}

#[tokio::test(start_paused = true)]
async fn d_5_overrides_for_one_request() {
    let deps = deps(quick());
    let client = answering(RetryLayer::new(deps.clone()), |_, _| async {
        Ok(said(503))
    });
    let with = |wish: RetryOverride| get(&client).with_extension(wish).send();
    assert_eq!(outcome(&get(&client).send().await.unwrap()).0, 4);
    let response = with(RetryOverride::new().max_retries(1)).await.unwrap();
    assert_eq!(outcome(&response), (2, Some(StopReason::Exhausted)));
    let response = with(RetryOverride::off().dependency("other"))
        .await
        .unwrap();
    assert_eq!(outcome(&response), (1, Some(StopReason::Exhausted)));
    assert_eq!(deps.get("other").status().originals, 1);
    assert_eq!(deps.get("stock.example").status().originals, 2);
}

#[tokio::test(start_paused = true)]
async fn d_7_two_stacks_in_one_chain() {
    let deps = deps(quick());
    let client = ClientBuilder::new(client())
        .with(TowerMiddleware::new(RetryLayer::new(deps.clone())))
        .with(TowerMiddleware::new((
            RetryAfterLayer::new(deps.clone()),
            CircuitBreakerLayer::new(deps),
        )))
        .with(Inner(|_, n| async move {
            Ok(said(if n == 0 { 503 } else { 200 }))
        }))
        .build();
    assert_eq!(outcome(&get(&client).send().await.unwrap()), (2, None));

    // The outer layer recognizes a refusal by the inner one.
    let far = std::time::Duration::from_secs(9);
    let policy = quick().max_retries(1).consecutive_failures(5);
    let deps = self::deps(policy.cooldown(far, far));
    let client = ClientBuilder::new(self::client())
        .with(TowerMiddleware::new(RetryLayer::new(Dependencies::new(
            quick().build().unwrap(),
        ))))
        .with(TowerMiddleware::new(CircuitBreakerLayer::new(deps)))
        .with(Inner(|_, _| async { Ok(said(500)) }))
        .build();
    let mut last = None;
    for _ in 0..3 {
        last = Some(get(&client).send().await);
    }
    let error: BoxError = last.unwrap().unwrap_err().into();
    assert!(Refused::find(&*error).is_some());
    assert_eq!(outcome_of(&error), (0, Some(StopReason::Breaker)));
}
