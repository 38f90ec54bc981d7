//! A client's log, spans and metrics.
//!
//! ```sh
//! cargo run --example observability
//! ```
//!
//! You see
//!
//! - for a call that succeeds with its third attempt: two lines `retry 1 of 3` and `retry 2 of 3` with
//!   their cause, and three spans `attempt`, of which the second and third have
//!   `http.request.resend_count` and each its own `traceparent`;
//! - for a call that fails for good: the retries, and one warning `gave up` with the reason;
//! - the text that Prometheus scrapes, with help, in which `calls_total` has both calls.
//!
//! `examples/operate` has a dashboard and alert rules for these metrics.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use http::{HeaderMap, HeaderValue, Request, Response};
use metrics_exporter_prometheus::PrometheusBuilder;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_reprise::{Dependencies, Policy, RetryOutcome, error::BoxError, stacks, telemetry};
use tracing::Span;
use tracing_subscriber::fmt::format::FmtSpan;

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), BoxError> {
    tracing_subscriber::fmt()
        .with_span_events(FmtSpan::CLOSE)
        .init();
    let recorder = PrometheusBuilder::new().build_recorder();
    let scrape = recorder.handle();
    metrics::set_global_recorder(recorder)?;
    telemetry::describe();

    // A new client has few retries to spend: this one makes five within two calls.
    let deps = Dependencies::new(
        Policy::http()
            .service("checkout")
            .budget_floor(10)
            .build()?,
    );
    let mut client = ServiceBuilder::new()
        .layer(stacks::traced(deps, propagator()))
        .service(stock());

    println!("-- a call that succeeds with its third attempt");
    let response = client.ready().await?.call(get("req-1")?).await?;
    let outcome = RetryOutcome::of(&response).ok_or("no outcome")?;
    assert_eq!((response.status().as_u16(), outcome.attempts()), (200, 3));

    println!("-- a call that fails for good");
    let response = client.ready().await?.call(get("req-2")?).await?;
    assert_eq!(response.status(), 503);

    println!("-- what Prometheus scrapes");
    let text = scrape.render();
    println!("{text}");
    for outcome in ["success_after_retry", "exhausted"] {
        assert!(text.contains(&format!("outcome=\"{outcome}\"}} 1")));
    }
    Ok(())
}

fn get(id: &str) -> Result<Request<String>, http::Error> {
    Request::get("http://stock.example/items")
        .header("x-request-id", id)
        .body(String::new())
}

/// Writes a `traceparent` of its own. With OpenTelemetry this is one line: see
/// [`attempt_span`](tower_reprise::client::attempt_span).
fn propagator() -> impl Fn(&Span, &mut HeaderMap) + Clone {
    let sent = Arc::new(AtomicU64::new(1));
    move |_, headers| {
        let span = sent.fetch_add(1, Ordering::Relaxed);
        let context = format!("00-0af7651916cd43dd8448eb211c80319c-{span:016x}-01");
        if let Ok(context) = HeaderValue::from_str(&context) {
            headers.insert("traceparent", context);
        }
    }
}

/// A server that is busy but for the third request.
fn stock()
-> impl Service<Request<String>, Response = Response<String>, Error = Infallible, Future: Send> + Clone
{
    let requests = Arc::new(AtomicUsize::new(0));
    service_fn(move |request: Request<String>| {
        let number = requests.fetch_add(1, Ordering::Relaxed) + 1;
        println!(
            "   the server sees {:?}",
            request.headers().get("traceparent")
        );
        let mut response = Response::new(String::new());
        if number != 3 {
            *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
        }
        std::future::ready(Ok(response))
    })
}
