//! reqwest with the layers, in both forms, against a server on loopback that fails at first.
//!
//! ```text
//! cargo run --features reqwest-middleware --example reqwest_client
//! ```
//!
//! You see each request as the server saw it, and the response, for a client as the innermost
//! service and for the layers in a reqwest-middleware chain: 503s are retried, a POST with the same
//! key, and an error carries the number of attempts. It takes a second.

use std::{
    convert::Infallible,
    net::Ipv4Addr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use reqwest_middleware::ClientBuilder;
use tokio::net::TcpListener;
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_reprise::{
    Dependencies, Policy, RetryOutcome, RetryOverride,
    error::BoxError,
    stacks,
    stacks::reqwest::{HttpClient, TowerMiddleware},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let server = Stock::start().await?;
    let policy = Policy::http()
        // Every call of this demonstration fails first.
        .budget_floor(10)
        .honours_keys()
        .service("checkout")
        .base(Duration::from_millis(20))
        .build()?;
    let deps = Dependencies::new(policy);

    // Only because this crate's examples bring no TLS of their own.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build()?;

    println!("a client as the innermost service:");
    let mut service = ServiceBuilder::new()
        .layer(stacks::client(deps.clone()))
        .service(HttpClient::new(client.clone()));

    server.fails(2);
    let request = Request::get(server.url("/items")).body(reqwest::Body::default())?;
    let response = service.ready().await?.call(request).await?;
    report("GET, two 503s", &server, &response);

    server.fails(1);
    let request = Request::post(server.url("/orders")).body("3 nails".into())?;
    let response = service.ready().await?.call(request).await?;
    report("POST, one 503", &server, &response);

    println!("the layers as a middleware:");
    let client = ClientBuilder::new(client)
        .with(TowerMiddleware::new(stacks::client(deps.clone())))
        .build();

    server.fails(1);
    let parts = ["100 ", "nails"].map(Ok::<_, std::io::Error>);
    let streaming = reqwest::Body::wrap_stream(tokio_stream::iter(parts));
    let response = client
        .put(server.url("/orders/7"))
        .body(streaming)
        .send()
        .await?;
    report("PUT of a stream, one 503", &server, &response);

    server.fails(9);
    let once = RetryOverride::new().max_retries(1);
    let request = client.get(server.url("/items")).with_extension(once);
    let response = request.send().await?;
    report("GET with one retry at most, only 503s", &server, &response);

    let nobody = format!("http://{}/", free_port().await?);
    let off = RetryOverride::new().max_retries(2);
    let request = client.get(&nobody).with_extension(off);
    if let Err(error) = request.send().await {
        let outcome = RetryOutcome::of_error(&error);
        println!("  nobody listens: {error}");
        println!("    {} attempts", outcome.map_or(0, RetryOutcome::attempts));
    }

    let status = deps.get(&server.address).status();
    println!(
        "{} calls, {} retries out of one budget",
        status.originals, status.retries
    );
    Ok(())
}

fn report(what: &str, server: &Stock, response: &reqwest::Response) {
    println!("  {what}: {}", response.status());
    for seen in server.seen() {
        println!("    {seen}");
    }
    if let Some(reason) = response
        .extensions()
        .get::<RetryOutcome>()
        .and_then(RetryOutcome::stop_reason)
    {
        println!("    given up: {reason}");
    }
}

/// An address that nobody listens to.
async fn free_port() -> std::io::Result<std::net::SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await?
        .local_addr()
}

/// A server that writes down what it saw.
struct Stock {
    address: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    failures: usize,
    seen: Vec<String>,
}

impl Stock {
    async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?.to_string();
        let state = Arc::<Mutex<State>>::default();
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = shared.clone();
                let answer = service_fn(move |request| answer(shared.clone(), request));
                let connection = http1::Builder::new();
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), answer));
            }
        });
        Ok(Self { address, state })
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Fails so many requests from now on.
    fn fails(&self, failures: usize) {
        if let Ok(mut state) = self.state.lock() {
            state.failures = failures;
        }
    }

    /// Returns the requests since the last call of this function.
    fn seen(&self) -> Vec<String> {
        let state = self.state.lock();
        state.map_or_else(|_| Vec::new(), |mut state| std::mem::take(&mut state.seen))
    }
}

async fn answer(
    state: Arc<Mutex<State>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let key = request.headers().get("idempotency-key").cloned();
    let what = format!("{} {}", request.method(), request.uri().path());
    let body = request.into_body().collect().await;
    let body = body.map_or_else(|_| Bytes::new(), http_body_util::Collected::to_bytes);
    let mut response = Response::new(Full::default());
    if let Ok(mut state) = state.lock() {
        if state.failures > 0 {
            state.failures -= 1;
            *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
        }
        let mut seen = format!("{what} {:?} → {}", body, response.status().as_u16());
        if let Some(key) = key {
            seen += &format!(", key {key:?}");
        }
        state.seen.push(seen);
    }
    Ok(response)
}
