//! Routers within routers, which see only their part of the path.

use axum::{Router, body::Body, routing::post};
use http::Request;
use http_body_util::BodyExt;
use tower::ServiceExt;
use tower_reprise::{
    DeadlineLayer,
    call::CallerContext,
    server::idempotency::IdempotencyLayer,
    store::{CrashPolicy, MemoryStore},
};

use crate::setup::tenant;

async fn send(app: &Router, path: &str) -> String {
    let request = Request::post(path)
        .header("x-tenant", "alice")
        .header("idempotency-key", "k")
        .body(Body::empty())
        .unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap();
    String::from_utf8(body.to_bytes().to_vec()).unwrap()
}

/// I-19: another operation with the same key, below another router, is another operation.
#[tokio::test]
async fn i_19_nested_routers_with_a_layer_each_share_no_replies() {
    let store = MemoryStore::new();
    let part = |reply: &'static str| {
        let layer = IdempotencyLayer::builder(store.clone())
            .scope(tenant())
            .crash_policy(CrashPolicy::Unknown);
        Router::new()
            .route("/", post(move || async move { reply }))
            .layer(layer.build().unwrap())
    };
    let app = Router::new()
        .nest("/payments", part("paid"))
        .nest("/v2", Router::new().nest("/payments", part("paid by v2")))
        .nest("/refunds", part("refunded"));
    for _ in 0..2 {
        assert_eq!(send(&app, "/payments").await, "paid");
        assert_eq!(send(&app, "/refunds").await, "refunded");
        assert_eq!(send(&app, "/v2/payments").await, "paid by v2");
    }
    assert_eq!(store.len(), 3);
}

/// an execution that goes on on a task of its own still knows its caller.
#[tokio::test]
async fn x_1_an_execution_keeps_its_caller_on_its_own_task() {
    let idempotency = IdempotencyLayer::builder(MemoryStore::new())
        .scope(tenant())
        .crash_policy(CrashPolicy::Unknown)
        .build()
        .unwrap();
    let handler = async || {
        tokio::task::yield_now().await;
        let caller = CallerContext::current().and_then(|caller| caller.deadline());
        format!("{}", caller.is_some())
    };
    let deadlines = DeadlineLayer::new();
    let deadlines = deadlines.default_deadline(std::time::Duration::from_secs(60));
    let app = Router::new()
        .route("/", post(handler))
        .layer(idempotency)
        .layer(deadlines.unwrap());
    assert_eq!(send(&app, "/").await, "true");
}
