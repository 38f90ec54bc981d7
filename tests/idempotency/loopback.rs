//! An axum router, over real connections.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    body::Body,
    extract::{Request, State},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::Bytes;
use http::StatusCode;
use http_body_util::Full;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{io::AsyncWriteExt, net::TcpStream, sync::Semaphore, task::JoinSet};
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    IdempotencyLayer,
    server::idempotency::Execution,
    store::{CrashPolicy, MemoryStore},
};

use crate::setup::{Answer, read};

#[derive(Clone)]
struct Principal {
    id: String,
}

/// Stands for authentication.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let id = request.headers().get("authorization").cloned();
    if let Some(id) = id.as_ref().and_then(|id| id.to_str().ok()) {
        request.extensions_mut().insert(Principal { id: id.into() });
    }
    next.run(request).await
}

#[derive(Clone)]
struct Payments {
    made: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
}

async fn pay(
    State(payments): State<Payments>,
    axum::Extension(execution): axum::Extension<Execution>,
    Json(amount): Json<u64>,
) -> impl IntoResponse {
    let number = payments.made.fetch_add(1, Ordering::SeqCst) + 1;
    assert!(execution.token().get() > 0);
    payments.gate.acquire().await.unwrap().forget();
    (StatusCode::CREATED, Json((number, amount)))
}

struct Shop {
    address: SocketAddr,
    payments: Payments,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Shop {
    async fn open(free: usize) -> Self {
        let payments = Payments {
            made: Arc::default(),
            gate: Arc::new(Semaphore::new(free)),
        };
        let layer = IdempotencyLayer::builder(MemoryStore::new())
            .scope(Scope::new(|req| {
                req.extensions().get::<Principal>().map(|p| p.id.clone())
            }))
            .crash_policy(CrashPolicy::Reexecute)
            .wait(Duration::from_secs(60))
            .build()
            .unwrap();
        let app = Router::new()
            .route("/payments", post(pay))
            .layer(layer)
            .layer(from_fn(authenticate))
            .with_state(payments.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self {
            address,
            payments,
            client,
        }
    }

    fn pay(&self, who: &str) -> impl Future<Output = Answer> + use<> {
        let request = http::Request::post(format!("http://{}/payments", self.address))
            .header("authorization", who)
            .header("content-type", "application/json")
            .header("idempotency-key", "7c4a8d09-ca95-4c6d-8f3b-91a7e6e0b9d2")
            .body(Full::from("100"))
            .unwrap();
        let client = self.client.clone();
        async move { read(client.request(request).await.unwrap()).await }
    }

    fn made(&self) -> usize {
        self.payments.made.load(Ordering::SeqCst)
    }

    async fn until_made(&self, number: usize) {
        while self.made() < number {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn i_8_i_19_over_axum() {
    let shop = Shop::open(9).await;
    let first = shop.pay("alice").await;
    assert_eq!((first.status, &*first.body), (201, "[1,100]"));
    let again = shop.pay("alice").await;
    assert_eq!((again.status, &*again.body), (201, "[1,100]"));
    assert!(again.is_replayed() && !first.is_replayed());
    assert_eq!(again.headers["content-type"], "application/json");
    let other = shop.pay("bob").await;
    assert_eq!((&*other.body, other.is_replayed()), ("[2,100]", false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i_6_a_hundred_at_once_over_axum() {
    let shop = Shop::open(0).await;
    let mut calls: JoinSet<_> = (0..100).map(|_| shop.pay("alice")).collect();
    shop.until_made(1).await;
    shop.payments.gate.add_permits(1);
    while let Some(answer) = calls.join_next().await {
        let answer = answer.unwrap();
        assert_eq!((answer.status, &*answer.body), (201, "[1,100]"));
    }
    assert_eq!(shop.made(), 1);
}

/// I-16: the connection is gone while the payment is being made.
#[tokio::test]
async fn i_16_a_connection_that_breaks_over_axum() {
    let shop = Shop::open(0).await;
    let mut connection = TcpStream::connect(shop.address).await.unwrap();
    let request = "POST /payments HTTP/1.1\r\nhost: shop\r\nauthorization: alice\r\n\
        content-type: application/json\r\ncontent-length: 3\r\n\
        idempotency-key: 7c4a8d09-ca95-4c6d-8f3b-91a7e6e0b9d2\r\n\r\n100";
    connection.write_all(request.as_bytes()).await.unwrap();
    shop.until_made(1).await;
    connection.set_zero_linger().unwrap();
    drop(connection);
    let again = shop.pay("alice");
    shop.payments.gate.add_permits(1);
    let again = again.await;
    assert_eq!((&*again.body, again.is_replayed()), ("[1,100]", true));
    assert_eq!(shop.made(), 1);
}

/// A router with the layer is a router like any other.
#[tokio::test]
async fn a_router_stays_a_router() {
    let layer = IdempotencyLayer::builder(MemoryStore::new())
        .scope(Scope::new(|_| Some("all")))
        .crash_policy(CrashPolicy::Unknown)
        .build()
        .unwrap();
    let app: Router = Router::new()
        .route("/", post(async |body: Body| Body::new(body)))
        .layer(layer);
    let request = http::Request::post("/")
        .header("idempotency-key", "k")
        .body(Body::from("echo"))
        .unwrap();
    let response = tower::ServiceExt::oneshot(app, request).await.unwrap();
    assert_eq!(read(response).await.body, "echo");
}
