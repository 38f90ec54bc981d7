//! What replaces reqwest-retry, with a strategy of its own, and axum-idempotent, with keys that are
//! optional. The code before is in the guide, which benches/peers builds.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode, header::AUTHORIZATION},
    routing::{get, post},
};
use reqwest_middleware::ClientBuilder;
use tower::ServiceExt;
use tower_reprise::{
    Dependencies, IdempotencyLayer, Policy,
    server::dialect::{Requirement, Scope},
    stacks::{self, reqwest::TowerMiddleware},
    store::{CrashPolicy, MemoryStore},
};
use tower_reprise_users::{Result, serve};

#[path = "../../../../src/guide/classifier.rs"]
mod classifier;

use classifier::Teapots;

/// A `RetryableStrategy` that retries 418, as a classifier of the whole stack.
async fn from_reqwest_retry() -> Result {
    let requests = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&requests);
    let teapot = move || async move {
        match seen.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => StatusCode::IM_A_TEAPOT,
            _ => StatusCode::OK,
        }
    };
    let address = serve(Router::new().route("/", get(teapot))).await?;
    let policy = Policy::http()
        .service("kitchen")
        .base(std::time::Duration::from_millis(100))
        .budget_floor(10);
    let deps = Dependencies::builder(policy.build()?)
        .with_classifier(Teapots)
        .build();
    let client = ClientBuilder::new(reqwest::Client::new())
        .with(TowerMiddleware::new(stacks::client(deps)))
        .build();
    let reply = client.get(address).send().await?;
    assert_eq!(reply.status(), 200);
    assert_eq!(requests.load(Ordering::SeqCst), 3);
    println!("reqwest-retry: two teapots, then {}", reply.status());
    Ok(())
}

/// A key is optional: without one each request is executed, with one it is once.
async fn from_axum_idempotent() -> Result {
    let idempotency = IdempotencyLayer::builder(MemoryStore::new())
        .scope(Scope::new(|request| {
            request.headers().get(AUTHORIZATION).cloned()
        }))
        .crash_policy(CrashPolicy::Reexecute)
        .requirement(|_| Requirement::Optional)
        .build()?;
    let payments = Arc::new(AtomicUsize::new(0));
    let made = Arc::clone(&payments);
    let pay = move || async move { format!("payment {}", made.fetch_add(1, Ordering::SeqCst)) };
    let app = Router::new()
        .route("/payments", post(pay))
        .layer(idempotency);
    for (key, expected) in [(None, 1), (None, 2), (Some("one"), 3), (Some("one"), 3)] {
        let mut request = Request::post("/payments").header(AUTHORIZATION, "Bearer alice");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let reply = app.clone().oneshot(request.body(Body::empty())?).await?;
        assert_eq!(reply.status(), 200);
        assert_eq!(payments.load(Ordering::SeqCst), expected);
    }
    println!("axum-idempotent: three payments of four requests");
    Ok(())
}

#[tokio::main]
async fn main() -> Result {
    from_reqwest_retry().await?;
    from_axum_idempotent().await
}
