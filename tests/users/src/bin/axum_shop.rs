//! An axum application with state, an extractor for its users, nested routers and tower-http's usual
//! layers: a payment that is asked for twice is made once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    body::Body,
    extract::{FromRequestParts, Path, State},
    http::{Request, StatusCode, request::Parts},
    routing::{get, post},
};
use tower::{ServiceBuilder, ServiceExt};
use tower_http::{
    catch_panic::CatchPanicLayer, cors::CorsLayer, limit::RequestBodyLimitLayer,
    timeout::TimeoutLayer, trace::TraceLayer,
};
use tower_reprise::{
    Dependencies, IdempotencyLayer, Policy,
    server::idempotency::Execution,
    stacks::axum::{OwnerLayer, owner, server},
    store::{CrashPolicy, SqliteStore},
};
use tower_reprise_users::Result;

#[derive(Clone, Default)]
struct Shop(Arc<AtomicU64>);

struct User(String);

impl FromRequestParts<Shop> for User {
    type Rejection = StatusCode;

    async fn from_request_parts(
        parts: &mut Parts,
        _: &Shop,
    ) -> std::result::Result<Self, StatusCode> {
        let name = parts
            .headers
            .get("x-user")
            .and_then(|name| name.to_str().ok());
        name.map(|name| Self(name.to_owned()))
            .ok_or(StatusCode::UNAUTHORIZED)
    }
}

async fn pay(
    State(shop): State<Shop>,
    Path(order): Path<u32>,
    user: User,
    execution: Execution,
    Json(cents): Json<u64>,
) -> String {
    let paid = shop.0.fetch_add(cents, Ordering::SeqCst) + cents;
    format!(
        "{}: order {order}, {paid} so far, again: {}",
        user.0,
        execution.is_orphan()
    )
}

fn app(shop: Shop, store: SqliteStore) -> Result<Router> {
    let idempotency = IdempotencyLayer::builder(store)
        .scope(owner())
        .crash_policy(CrashPolicy::Reexecute)
        .build()?;
    let inbound = Dependencies::new(Policy::http().service("shop").build()?);
    let orders = Router::new().route("/{order}/payments", post(pay));
    let api = Router::new()
        .nest("/orders", orders)
        .layer(server(inbound, idempotency))
        .layer(OwnerLayer::new(shop.clone(), |user: &User| user.0.clone()));
    Ok(Router::new()
        .nest("/api", api)
        .route("/health", get(|| async { "ok" }))
        .layer(
            ServiceBuilder::new()
                .layer(TraceLayer::new_for_http())
                .layer(CorsLayer::permissive())
                .layer(CatchPanicLayer::new())
                .layer(RequestBodyLimitLayer::new(1 << 20))
                .layer(TimeoutLayer::with_status_code(
                    StatusCode::GATEWAY_TIMEOUT,
                    Duration::from_secs(9),
                )),
        )
        .with_state(shop))
}

#[tokio::main]
async fn main() -> Result {
    let directory = std::env::temp_dir().join(format!("users-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let shop = Shop::default();
    let app = app(shop.clone(), SqliteStore::open(directory.join("keys.db"))?)?;
    let ask = async |user: Option<&str>, key: &str| -> Result<_> {
        let mut request = Request::post("/api/orders/7/payments")
            .header("content-type", "application/json")
            .header("idempotency-key", key);
        if let Some(user) = user {
            request = request.header("x-user", user);
        }
        let response = app
            .clone()
            .oneshot(request.body(Body::from("100"))?)
            .await?;
        let (head, body) = response.into_parts();
        let body = axum::body::to_bytes(body, 1 << 20).await?;
        Ok((head.status.as_u16(), String::from_utf8(body.to_vec())?))
    };
    assert_eq!(ask(None, "1").await?.0, 401);
    for _ in 0..3 {
        let paid = ask(Some("ada"), "1").await?;
        println!("{paid:?}");
        assert_eq!(
            paid,
            (200, "ada: order 7, 100 so far, again: false".to_owned())
        );
    }
    ask(Some("bob"), "1").await?;
    assert_eq!(shop.0.load(Ordering::SeqCst), 200, "once for each user");
    std::fs::remove_dir_all(directory)?;
    Ok(())
}
