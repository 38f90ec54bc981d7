//! An axum router that protects itself, and clients that do not:
//!
//! ```text
//! cargo run --features axum --example axum_server
//! ```
//!
//! `/stock` has a circuit breaker around a handler that fails, `/slow` has a deadline, and in
//! front of both a budget refuses inbound retries over a fifth of the originals of the last 30 s.
//! No layer needs a `HandleErrorLayer`: refusals and deadlines are responses.
//!
//! You see the responses: five 500s and then 503s of the breaker, a 504, and about 120 of 300
//! requests served to a proxy that sends each call three times. It takes a second.

use std::{net::Ipv4Addr, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Request, Response, StatusCode},
    routing::get,
};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::net::TcpListener;
use tower::{ServiceBuilder, timeout::TimeoutLayer};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, InboundBudgetLayer, Policy, ProblemLayer, error::BoxError,
};

fn app() -> Result<Router, BoxError> {
    let policy = Policy::http().service("axum-example").build()?;
    // One breaker for the handler, whatever host a client asks for.
    let stock = Dependencies::named("stock", policy.clone());
    let inbound = Dependencies::new(policy);

    let router = Router::new()
        .route(
            "/stock",
            get(|| async { StatusCode::INTERNAL_SERVER_ERROR }),
        )
        .route_layer(
            ServiceBuilder::new()
                .layer(ProblemLayer::new())
                .layer(CircuitBreakerLayer::new(stock)),
        );
    let slow = Router::new()
        .route("/slow", get(std::future::pending::<&str>))
        .route_layer(
            ServiceBuilder::new()
                .layer(ProblemLayer::new())
                .layer(TimeoutLayer::new(Duration::from_millis(200))),
        );
    Ok(router
        .merge(slow)
        .route("/health", get(|| async { "ok" }))
        .layer(InboundBudgetLayer::new(inbound)))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let caller = Caller {
        client: Client::builder(TokioExecutor::new()).build_http(),
        server: format!("http://{}", listener.local_addr()?),
    };
    let app = app()?;
    tokio::spawn(async move { axum::serve(listener, app).await });

    println!("A handler that fails: after five failures its breaker answers for it");
    for _ in 0..6 {
        caller.get("/stock", &[]).await?.tell();
    }
    println!("\nThe same for a gRPC client: a status, and when to come back");
    let grpc = [("content-type", "application/grpc")];
    caller.get("/stock", &grpc).await?.tell();

    println!("\nA handler that never answers");
    caller.get("/slow", &[]).await?.tell();

    println!("\nA proxy in front that repeats everything: 100 calls, each sent three times");
    let (mut served, mut refused) = (0, None);
    for _ in 0..100 {
        for attempt in ["1", "2", "3"] {
            let reply = caller
                .get("/health", &[("x-envoy-attempt-count", attempt)])
                .await?;
            match reply.status {
                StatusCode::OK => served += 1,
                _ => refused = Some(reply),
            }
        }
    }
    println!("  served  {served} of 300");
    if let Some(reply) = refused {
        println!("  the others got this");
        reply.tell();
    }
    Ok(())
}

struct Caller {
    client: Client<HttpConnector, Full<Bytes>>,
    server: String,
}

impl Caller {
    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Result<Reply, BoxError> {
        let mut request = Request::get(format!("{}{path}", self.server));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.client.request(request.body(Full::default())?).await?;
        let response: Response<Body> = response.map(Body::new);
        let (head, body) = response.into_parts();
        let told = [
            "retry-after",
            "x-should-retry",
            "grpc-status",
            "grpc-retry-pushback-ms",
            "grpc-message",
        ];
        let header = |name: &&str| {
            let value = head.headers.get(*name)?.to_str().ok()?;
            Some(format!("{name}: {value}"))
        };
        Ok(Reply {
            status: head.status,
            headers: told
                .iter()
                .filter_map(header)
                .collect::<Vec<_>>()
                .join(", "),
            body: String::from_utf8(body.collect().await?.to_bytes().to_vec())?,
        })
    }
}

struct Reply {
    status: StatusCode,
    headers: String,
    body: String,
}

impl Reply {
    fn tell(&self) {
        match self.headers.as_str() {
            "" => println!("  {}", self.status),
            headers => println!("  {}, {headers}", self.status),
        }
        if !self.body.is_empty() {
            println!("    {}", self.body);
        }
    }
}
