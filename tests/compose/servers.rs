//! An axum router and a tonic server with our layers, as a user writes them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    body::Body,
    extract::{FromRequestParts, State},
    http::{Request, StatusCode, request::Parts},
    routing::{get, post},
};
use tonic::{Code, service::Routes};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower::{Layer, ServiceExt};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, IdempotencyKeyLayer, IdempotencyLayer, Policy,
    RetryAfterLayer, RetryBudgetLayer, RetryLayer,
    server::{dialect::Scope, idempotency::Execution},
    stacks::{
        self,
        axum::{OwnerLayer, infallible, owner, server},
    },
    store::{CrashPolicy, MemoryStore},
};

use crate::layers::deps;

struct User(String);

/// Tokens, and the payments that were made.
#[derive(Clone, Default)]
struct App {
    admits: &'static str,
    payments: Arc<AtomicUsize>,
}

impl FromRequestParts<App> for User {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, StatusCode> {
        let token = parts.headers.get("authorization");
        let token = token.and_then(|token| token.to_str().ok());
        let token = token.filter(|token| token.starts_with(app.admits));
        token
            .map(|token| Self(token.to_owned()))
            .ok_or(StatusCode::UNAUTHORIZED)
    }
}

async fn pay(State(app): State<App>, user: User, execution: Execution) -> String {
    let number = app.payments.fetch_add(1, Ordering::SeqCst);
    format!("{} {number} {}", user.0, execution.is_orphan())
}

async fn ask(router: &Router, token: &str, key: Option<&str>) -> (StatusCode, String) {
    let mut request = Request::post("/v1/payments").header("authorization", token);
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    let request = request.body(Body::from("100 EUR")).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), 1 << 20)
        .await
        .unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// I-19: the scope is that of an extractor with state, above all that is nested.
#[tokio::test]
async fn i_19_a_router_gets_its_scope_from_an_extractor() {
    let app = App {
        admits: "user-",
        ..App::default()
    };
    let idempotency = IdempotencyLayer::builder(MemoryStore::new())
        .scope(owner())
        .crash_policy(CrashPolicy::Reexecute)
        .build()
        .unwrap();
    let payments = Router::new().route("/payments", post(pay));
    let router = Router::new()
        .nest("/v1", payments)
        .layer(server(deps(), idempotency))
        .layer(OwnerLayer::new(app.clone(), |user: &User| user.0.clone()))
        .with_state(app.clone());

    assert_eq!(ask(&router, "nobody", Some("k")).await.0, 401);
    assert_eq!(ask(&router, "user-a", None).await.0, 400);
    for _ in 0..2 {
        let (status, body) = ask(&router, "user-a", Some("k")).await;
        assert_eq!((status.as_u16(), &*body), (200, "user-a 0 false"));
        let (_, other) = ask(&router, "user-b", Some("k")).await;
        assert_eq!(other, "user-b 1 false", "another's key");
    }
    assert_eq!(app.payments.load(Ordering::SeqCst), 2);
}

/// An execution is there only under an idempotency layer.
#[tokio::test]
async fn a_handler_without_an_execution_says_so() {
    let optional = async |execution: Option<Execution>| execution.is_none().to_string();
    let app: Router = Router::new()
        .route("/v1/payments", post(async |_: Execution| "paid"))
        .route("/optional", get(optional));
    let (status, text) = ask(&app, "", None).await;
    assert_eq!(status, 500);
    assert!(text.contains("IdempotencyLayer"), "{text}");
    let request = Request::get("/optional").body(Body::empty()).unwrap();
    let response = app.oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
}

/// All client layers on a router, one by one and together, without a `HandleErrorLayer`.
#[tokio::test]
async fn client_layers_go_onto_a_router() {
    let named = || Dependencies::named("stock", Policy::http().build().unwrap());
    let app: Router = Router::new()
        .route("/v1/payments", post(async || "paid"))
        .layer(infallible(CircuitBreakerLayer::new(named())))
        .layer(infallible(RetryAfterLayer::new(named())))
        .layer(infallible(RetryLayer::new(named())))
        .layer(infallible(RetryBudgetLayer::new(named())))
        .layer(infallible(IdempotencyKeyLayer::new()))
        .layer(infallible(stacks::client(named())));
    assert_eq!(
        ask(&app, "", None).await,
        (StatusCode::OK, "paid".to_owned())
    );
}

/// Unary methods that are named need keys, and streams beside them pass.
#[tokio::test]
async fn a_tonic_server_has_keys_beside_streams() {
    let idempotency = IdempotencyLayer::builder(MemoryStore::new())
        .scope(Scope::anonymous("everybody"))
        .crash_policy(CrashPolicy::Reexecute)
        .requirement(stacks::tonic::keys_for(["grpc.health.v1.Health/Check"]))
        .build()
        .unwrap();
    let (_, health) = tonic_health::server::health_reporter();
    let server = idempotency.layer(Routes::new(health).prepare());
    let mut client = HealthClient::new(server);

    let mut stream = client
        .watch(HealthCheckRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert!(stream.message().await.unwrap().is_some());

    let keyless = client
        .check(HealthCheckRequest::default())
        .await
        .unwrap_err();
    assert_eq!(keyless.code(), Code::InvalidArgument);
    for replayed in [false, true] {
        let mut call = tonic::Request::new(HealthCheckRequest::default());
        call.metadata_mut()
            .insert("idempotency-key", "k".parse().unwrap());
        let reply = client.check(call).await.unwrap();
        assert_eq!(
            reply.metadata().contains_key("idempotent-replayed"),
            replayed
        );
    }
}

/// Server layers over boxed bodies, as hyper's and others' services have them.
#[tokio::test]
async fn boxed_bodies_pass_through_every_server_layer() {
    use bytes::Bytes;
    use http_body_util::{BodyExt, Full, combinators::BoxBody};
    use tower::service_fn;
    use tower_reprise::{
        InboundBudgetLayer,
        delivery::{
            replay::Replay,
            webhooks::verify::{Verifier, WebhookVerifyLayer},
        },
        error::BoxError,
    };

    type Boxed = BoxBody<Bytes, BoxError>;
    fn boxed(data: &'static str) -> Boxed {
        Full::from(data).map_err(|never| match never {}).boxed()
    }

    let idempotency = || {
        IdempotencyLayer::builder(MemoryStore::new())
            .scope(Scope::anonymous("everybody"))
            .crash_policy(CrashPolicy::Reexecute)
            .build()
            .unwrap()
    };
    let handler = || {
        service_fn(|request: Request<Boxed>| async {
            let body = request.into_body().collect().await?.to_bytes();
            Ok::<_, BoxError>(http::Response::new(boxed(match &*body {
                b"100 EUR" => "paid",
                _ => "what?",
            })))
        })
    };
    let request = || {
        Request::post("/payments")
            .header("idempotency-key", "one")
            .body(boxed("100 EUR"))
            .unwrap()
    };
    let once = tower::ServiceBuilder::new()
        .layer(InboundBudgetLayer::new(deps()))
        .layer(idempotency())
        .service(handler());
    let mut bodies = Vec::new();
    for _ in 0..2 {
        let response = once.clone().oneshot(request()).await.unwrap();
        bodies.push(response.into_body().collect().await.unwrap().to_bytes());
    }
    assert_eq!(bodies, ["paid", "paid"]);

    let replay = Replay::builder(MemoryStore::new(), Scope::anonymous("everybody"))
        .build()
        .unwrap();
    let later = replay.layer().layer(idempotency().layer(handler()));
    let response = later.oneshot(request()).await.unwrap();
    assert_eq!(response.status(), 200);

    let verifier = Verifier::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let hooks = WebhookVerifyLayer::new(verifier).layer(handler());
    let response: Result<_, BoxError> = hooks.oneshot(request()).await;
    assert_eq!(response.unwrap().status(), 401, "not signed");
}
