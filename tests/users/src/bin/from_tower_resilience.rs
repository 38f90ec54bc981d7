//! A client with tower-resilience's retries, and the stack that replaces it, in front of one service.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http::{Method, Request, Response, StatusCode};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_reprise::{
    Dependencies, Policy, RetryOutcome, call::StopReason, error::BoxError, stacks,
};
use tower_reprise_users::Result;

/// The client before, as the guide shows it.
mod before {
    include!("../../../../src/guide/before/tower_resilience.rs");

    pub(super) fn around<S>(
        http: S,
    ) -> impl Service<Request<String>, Response = Response<String>, Error = BoxError> + Clone + use<S>
    where
        S: Service<Request<String>, Response = Response<String>, Error = BoxError>
            + Clone
            + Send
            + 'static,
        S::Future: Send,
    {
        client(http)
    }
}

/// A service whose first answers are 503, and the number of requests that it saw.
fn flaky(
    failures: usize,
) -> (
    impl Service<Request<String>, Response = Response<String>, Error = BoxError, Future: Send>
    + Clone
    + Send
    + 'static,
    Arc<AtomicUsize>,
) {
    let requests = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&requests);
    let service = service_fn(move |_: Request<String>| {
        let status = match seen.fetch_add(1, Ordering::SeqCst) {
            number if number < failures => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::OK,
        };
        async move { Ok::<_, BoxError>(Response::builder().status(status).body(String::new())?) }
    });
    (service, requests)
}

fn request(method: Method) -> Result<Request<String>> {
    let request = Request::builder().method(method);
    Ok(request
        .uri("http://stock.example/items")
        .body(String::new())?)
}

fn deps() -> Result<Dependencies> {
    Ok(Dependencies::new(
        Policy::http().service("checkout").build()?,
    ))
}

/// Both mend two failures of a GET, and leave a POST alone.
async fn one_call() -> Result {
    for (method, sent) in [(Method::GET, 3), (Method::POST, 1)] {
        let (service, requests) = flaky(2);
        let reply = before::around(service).oneshot(request(method.clone())?);
        let theirs = reply.await?.status();
        assert_eq!(requests.load(Ordering::SeqCst), sent, "before: {method}");

        let (service, requests) = flaky(2);
        let stack = ServiceBuilder::new().layer(stacks::client(deps()?));
        let reply = stack
            .service(service)
            .oneshot(request(method.clone())?)
            .await?;
        assert_eq!(requests.load(Ordering::SeqCst), sent, "after: {method}");
        assert_eq!(reply.status(), theirs);
        let stopped = RetryOutcome::of(&reply).and_then(|outcome| outcome.stop_reason());
        let expected = (method == Method::POST).then_some(StopReason::NotIdempotent);
        assert_eq!(stopped, expected);
        println!("{method}: {sent} requests and {theirs}, before and after");
    }
    Ok(())
}

/// The clients of one process in an outage: each layer of theirs has a budget of its own.
async fn outage() -> Result {
    const CLIENTS: usize = 20;
    let (service, theirs) = flaky(usize::MAX);
    for _ in 0..CLIENTS {
        let client = before::around(service.clone());
        for _ in 0..5 {
            let reply = client.clone().oneshot(request(Method::GET)?).await?;
            assert_eq!(reply.status(), 503);
        }
    }
    let (service, ours) = flaky(usize::MAX);
    let deps = deps()?;
    for _ in 0..CLIENTS {
        let client = ServiceBuilder::new()
            .layer(stacks::client(deps.clone()))
            .service(service.clone());
        for _ in 0..5 {
            // The last reply, or a refusal of the breaker.
            let _ = client.clone().oneshot(request(Method::GET)?).await;
        }
    }
    let [theirs, ours] = [theirs, ours].map(|requests| requests.load(Ordering::SeqCst));
    println!("100 calls in an outage: {theirs} requests before, {ours} after");
    assert!(ours < theirs && ours <= 120, "{ours}");
    Ok(())
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result {
    one_call().await?;
    outage().await
}
