//! A hyper client with the layers, and a server that has a bad minute:
//!
//! ```text
//! cargo run --example hyper_client
//! ```
//!
//! The same stack stands on a client for HTTP/1 with bodies that are at hand, and on one for
//! HTTP/2 with bodies that stream. You see each request as the server saw it, and what the caller
//! got. It takes two seconds.

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::to_bytes,
    extract::{Request as Inbound, State},
    http::{Request, Response, StatusCode},
    response::IntoResponse,
};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::net::TcpListener;
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_reprise::{
    Dependencies, Policy, RetryOutcome,
    error::{BoxError, Refused},
    stacks,
};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let server = serve().await?;
    let policy = Policy::http()
        // Every call of this demonstration fails first.
        .budget_floor(10)
        .honours_keys()
        .service("hyper-example")
        .base(Duration::from_millis(50))
        .build()?;
    let deps = Dependencies::new(policy);

    println!("HTTP/1, a body that is at hand");
    let mut client = ServiceBuilder::new()
        .layer(stacks::client(deps.clone()))
        .service(Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>());
    let body = || Full::from("one book");
    let post = |path: &str| Request::post(format!("{server}{path}")).body(body());
    tell(&call(&mut client, post("/flaky")?).await);
    tell(&call(&mut client, post("/busy")?).await);
    tell(&call(&mut client, post("/nonsense")?).await);

    println!("HTTP/2, a body that streams");
    let mut client = ServiceBuilder::new().layer(stacks::client(deps)).service(
        Client::builder(TokioExecutor::new())
            .http2_only(true)
            .build_http::<UnsyncBoxBody<Bytes, BoxError>>(),
    );
    let frames = ["one ", "book, ", "page by page"].map(|page| {
        let frame = http_body::Frame::data(Bytes::from_static(page.as_bytes()));
        Ok::<_, BoxError>(frame)
    });
    let body = StreamBody::new(tokio_stream::iter(frames)).boxed_unsync();
    let upload = Request::put(format!("{server}/flaky-upload")).body(body)?;
    tell(&call(&mut client, upload).await);

    println!("A server that stays down");
    for _ in 0..3 {
        let request = Request::get(format!("{server}/down")).body(UnsyncBoxBody::default())?;
        tell(&call(&mut client, request).await);
    }
    Ok(())
}

async fn call<S, B>(client: &mut S, request: Request<B>) -> Result<S::Response, S::Error>
where
    S: Service<Request<B>>,
{
    client.ready().await?.call(request).await
}

/// Prints the caller's result, and its attempts and stop reason.
fn tell<B>(result: &Result<Response<B>, BoxError>) {
    match result {
        Ok(response) => {
            let how = match RetryOutcome::of(response) {
                None => "at once".to_owned(),
                Some(outcome) => match (outcome.attempts(), outcome.stop_reason()) {
                    (attempts, None) => format!("at attempt {attempts}"),
                    (attempts, Some(why)) => format!("at attempt {attempts}, the last: {why}"),
                },
            };
            println!("  caller  {} {how}\n", response.status());
        }
        Err(error) => match Refused::find(&**error) {
            Some(refused) => println!("  caller  {refused}\n"),
            None => println!("  caller  {error}\n"),
        },
    }
}

/// The number of requests for each path.
type Visits = Arc<Mutex<HashMap<String, u32>>>;

async fn serve() -> Result<String, BoxError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let app = Router::new().fallback(answer).with_state(Visits::default());
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(format!("http://{address}"))
}

async fn answer(State(visits): State<Visits>, request: Inbound) -> axum::response::Response {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let size = to_bytes(body, 1 << 20).await.map_or(0, |body| body.len());
    let visit = {
        let mut visits = visits.lock().unwrap_or_else(PoisonError::into_inner);
        let visit = visits.entry(path.clone()).or_default();
        *visit += 1;
        *visit
    };
    let status = match (path.as_str(), visit) {
        ("/flaky" | "/flaky-upload", ..3) | ("/busy", 1) => StatusCode::SERVICE_UNAVAILABLE,
        ("/nonsense", _) => StatusCode::BAD_REQUEST,
        ("/down", _) => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::OK,
    };
    let key = head.headers.get("idempotency-key");
    let key = key.and_then(|key| key.to_str().ok()).unwrap_or("none");
    println!(
        "  server  {} {path}, {size} bytes, key {key:.8}: {status}",
        head.method
    );
    match path.as_str() {
        "/busy" if status != StatusCode::OK => (status, [("retry-after", "1")]).into_response(),
        _ => status.into_response(),
    }
}
