//! A reverse proxy that mends what its upstream breaks:
//!
//! ```text
//! cargo run --features axum --example proxy
//! ```
//!
//! The proxy is an axum router whose fallback is a client's stack: bodies stream through it in
//! both directions, and a request that may be repeated is repeated while it is still the proxy's
//! to do so. The upstream fails as it is told. You see what the upstream saw and what the caller
//! got. It takes a second.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::State,
    http::{HeaderMap, HeaderName, Request, Response, StatusCode, Uri, header},
    response::IntoResponse,
};
use bytes::Bytes;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower_reprise::{Dependencies, Policy, ProblemLayer, error::BoxError, stacks};

/// A router that forwards all it gets to one upstream.
fn proxy(upstream: &str) -> Result<Router, BoxError> {
    let policy = Policy::http()
        .honours_keys()
        .service("edge")
        .base(Duration::from_millis(50))
        .build()?;
    let base = upstream.to_owned();
    let client = ServiceBuilder::new()
        .layer(ProblemLayer::new())
        .map_request(move |request| forwarded(request, &base))
        .layer(stacks::client(Dependencies::named("upstream", policy)))
        .service(Client::builder(TokioExecutor::new()).build_http::<Body>());
    // Hop-by-hop headers go no further in either direction.
    let client = ServiceBuilder::new()
        .map_response(|mut response: Response<_>| {
            strip(response.headers_mut());
            response
        })
        .service(client);
    Ok(Router::new().fallback_service(client))
}

fn forwarded(mut request: Request<Body>, upstream: &str) -> Request<Body> {
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", |path| path.as_str());
    if let Ok(uri) = format!("{upstream}{path}").parse::<Uri>() {
        *request.uri_mut() = uri;
    }
    strip(request.headers_mut());
    request.headers_mut().remove(header::HOST);
    request
}

/// Takes away hop-by-hop fields: those that RFC 9110 names, and those that `Connection` does.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let known = [
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "transfer-encoding",
        "upgrade",
    ];
    for name in named {
        headers.remove(name);
    }
    for name in known {
        headers.remove(name);
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let upstream = serve(
        Router::new()
            .fallback(upstream)
            .with_state(Arc::new(AtomicUsize::new(0))),
    )
    .await?;
    let proxy = serve(proxy(&upstream)?).await?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let send = async |what: &str, request: Result<Request<Body>, _>| {
        println!("{what}");
        let response = client.request(request?).await?;
        let (head, body) = response.into_parts();
        let body = to_bytes(Body::new(body), 1 << 20).await?;
        println!("  caller    {}, {} bytes", head.status, body.len());
        if let Some(wait) = head.headers.get("retry-after") {
            println!("            retry-after: {}", wait.to_str()?);
        }
        if head
            .headers
            .get("content-type")
            .is_some_and(|kind| kind == "application/problem+json")
        {
            println!("            {}", String::from_utf8_lossy(&body));
        }
        println!();
        Ok::<_, BoxError>(())
    };

    let get = |path: &str| Request::get(format!("{proxy}{path}")).body(Body::empty());
    let post = |path: &str, size: usize| {
        let frames = vec![Ok::<_, std::convert::Infallible>(Bytes::from(vec![b'x'; 1024])); size];
        let body = Body::from_stream(tokio_stream::iter(frames));
        Request::post(format!("{proxy}{path}")).body(body)
    };
    send("A reply of 64 KiB after a 503", get("/flaky/1")).await?;
    send(
        "An upload of 60 KiB, which is repeated from tape",
        post("/flaky/2", 60),
    )
    .await?;
    send(
        "An upload of 80 KiB, which is too long for that",
        post("/flaky/3", 80),
    )
    .await?;
    for _ in 0..3 {
        send("An upstream that stays down", get("/down")).await?;
    }
    Ok(())
}

async fn serve(app: Router) -> Result<String, BoxError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(format!("http://{address}"))
}

/// Fails every other request to `/flaky`, and every one to `/down`.
async fn upstream(State(calls): State<Arc<AtomicUsize>>, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let size = to_bytes(body, 1 << 20).await.map_or(0, |body| body.len());
    let path = head.uri.path();
    let status = match path {
        "/down" => StatusCode::SERVICE_UNAVAILABLE,
        _ if calls.fetch_add(1, Ordering::Relaxed) % 2 == 0 => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::OK,
    };
    println!("  upstream  {} {path}, {size} bytes: {status}", head.method);
    match status {
        StatusCode::OK => Body::from(vec![b'y'; 64 * 1024]).into_response(),
        status => status.into_response(),
    }
}
