//! S-2: no secret is logged, counted or printed. O-3: nobody has to listen.

use std::{fmt::Debug, io, task::Poll};

use http::{HeaderValue, Request, Response};
use metrics_exporter_prometheus::PrometheusBuilder;
use tower::{Layer as _, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, IdempotencyKey, IdempotencyKeyLayer, Policy,
    RetryAfterLayer, RetryLayer,
    call::Attempt,
    error::{BoxError, Refused},
};
use tracing_subscriber::{Layer, Registry, prelude::*};

use crate::{
    setup::{Body, Reply, URI, deps, get, peer, policy, reply, stack},
    support::telemetry::{Log, measured},
};

/// Every one of them is somewhere in a request, in a response or in an error below.
const SECRETS: [&str; 12] = [
    "s3cret-token",
    "s3cret-proxy",
    "s3cret-cookie",
    "s3cret-api-key",
    "s3cret-user",
    "s3cret-password",
    "s3cret-query",
    "s3cret-path",
    "s3cret-body",
    "s3cret-set-cookie",
    "s3cret-reply",
    "s3cret-error",
];

fn secret_request(method: &str) -> Request<Body> {
    Request::builder()
        .method(method)
        .uri("http://s3cret-user:s3cret-password@stock.example:8080/s3cret-path?card=s3cret-query")
        .header("authorization", "Bearer s3cret-token")
        .header("proxy-authorization", "Basic s3cret-proxy")
        .header("cookie", "session=s3cret-cookie")
        .header("x-api-key", "s3cret-api-key")
        .body(Body::from("s3cret-body"))
        .unwrap()
}

fn secret_reply(status: u16) -> Reply {
    let response = Response::builder()
        .status(status)
        .header("set-cookie", "session=s3cret-set-cookie")
        .header("www-authenticate", "Bearer realm=\"s3cret-reply\"")
        .header("grpc-message", "s3cret-reply");
    Ok(response.body(Body::from("s3cret-reply")).unwrap())
}

/// An error with a secret in its text, as some clients put the whole URI there.
fn secret_error() -> Reply {
    let kind = io::ErrorKind::ConnectionReset;
    Err(io::Error::new(kind, "s3cret-error").into())
}

pub(crate) fn assert_no_secrets(text: &str) {
    let lower = text.to_ascii_lowercase();
    for secret in SECRETS {
        assert!(!lower.contains(secret), "{secret} in {text}");
    }
}

/// Calls that end in every way there is.
async fn secret_calls() {
    let all = |status| (0..4).map(move |_| secret_reply(status));
    let starved = || policy().budget_floor(0).budget_ratio(0.0).build().unwrap();
    let brittle = || policy().consecutive_failures(2).build().unwrap();
    let scenarios: Vec<(Policy, Vec<Reply>)> = vec![
        (policy().build().unwrap(), vec![secret_reply(503)]),
        (policy().build().unwrap(), all(503).collect()),
        (policy().build().unwrap(), all(401).collect()),
        (
            policy().build().unwrap(),
            (0..4).map(|_| secret_error()).collect(),
        ),
        (starved(), all(503).collect()),
        (brittle(), all(503).collect()),
        (brittle(), (0..4).map(|_| secret_error()).collect()),
    ];
    for (policy, replies) in scenarios {
        for method in ["GET", "POST"] {
            let replies = replies.iter().map(|reply| match reply {
                Ok(response) => secret_reply(response.status().as_u16()),
                Err(_) => secret_error(),
            });
            let deps = Dependencies::new(policy.clone());
            let client = stack(&deps, peer(replies));
            for _ in 0..2 {
                let result = client.clone().oneshot(secret_request(method)).await;
                if let Err(error) = result {
                    assert_no_secrets(&error.to_string());
                    if let Some(refused) = Refused::find(&*error) {
                        assert_no_secrets(&format!("{refused} {refused:?}"));
                    }
                }
            }
            assert_no_secrets(&format!("{deps:?} {:?}", deps.list()));
        }
    }
    // Hooks that fail, with more in their errors than should be logged.
    let failing = |_: Request<Body>, _: Attempt| async {
        Err::<Request<Body>, BoxError>("s3cret-error".into())
    };
    let stripping = |mut request: Request<Body>, _: Attempt| async move {
        request.headers_mut().clear();
        Ok::<_, BoxError>(request)
    };
    let deps = deps();
    let _ = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()).with_prepare(failing))
        .service(peer([secret_reply(503)]))
        .oneshot(secret_request("GET"))
        .await;
    let _ = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()).with_prepare(stripping))
        .service(peer([secret_reply(503)]))
        .oneshot(secret_request("GET"))
        .await;
    // A host taken from a header.
    let (mut parts, body) = secret_request("GET").into_parts();
    parts.uri = "/s3cret-path?card=s3cret-query".parse().unwrap();
    let host = HeaderValue::from_static("s3cret-user:s3cret-password@stock.example");
    parts.headers.insert("host", host);
    let client = stack(&deps, peer([secret_reply(503)]));
    client
        .oneshot(Request::from_parts(parts, body))
        .await
        .unwrap();
    // A refused configuration.
    let mut request = secret_request("POST");
    let key = IdempotencyKey::new("k".repeat(99)).unwrap();
    request.extensions_mut().insert(key);
    let error = stack(&deps, peer([])).oneshot(request).await.unwrap_err();
    assert_no_secrets(&format!("{error} {error:?}"));
}

#[tokio::test(start_paused = true)]
async fn s_2_no_secret_is_logged() {
    let (log, _guard) = Log::listen();
    secret_calls().await;
    let ours = log.all();
    assert!(!log.retries().is_empty());
    for kind in ["gave up", "circuit breaker opened", "retry not sent"] {
        assert!(!log.with_message(kind).is_empty(), "{kind} was not tried");
    }
    assert!(
        !log.with_message("retry suppressed: budget used up")
            .is_empty()
    );
    assert_no_secrets(&format!("{ours:?}"));
}

#[tokio::test(start_paused = true)]
async fn s_2_no_secret_is_counted() {
    let measured = measured(secret_calls()).await;
    assert!(measured.len() > 8, "{measured:?}");
    assert_no_secrets(&format!("{measured:?}"));

    let recorder = PrometheusBuilder::new().build_recorder();
    let guard = metrics::set_default_local_recorder(&recorder);
    secret_calls().await;
    drop(guard);
    let text = recorder.handle().render();
    assert!(text.contains("retry_attempts_total"));
    assert_no_secrets(&text);
}

#[tokio::test(start_paused = true)]
async fn s_2_no_secret_is_in_what_a_caller_prints() {
    let bare = || Err(io::Error::from(io::ErrorKind::ConnectionReset).into());
    let client = stack(&deps(), peer((0..4).map(|_| bare())));
    let error = client.oneshot(secret_request("GET")).await.unwrap_err();
    assert_no_secrets(&format!("{error} {error:?}"));
}

/// Polls a future once, and prints it before and after.
async fn printed(future: impl Future + Debug) -> String {
    let mut future = Box::pin(future);
    let before = format!("{future:?}");
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await;
    format!("{before} {future:?}")
}

#[tokio::test(start_paused = true)]
async fn s_2_a_future_prints_nothing_of_its_request() {
    // Each of them holds a request or a response when it is printed.
    let busy = || service_fn(|_: Request<Body>| async { secret_reply(503) });
    let deps = deps();
    let mut retry = RetryLayer::new(deps.clone()).layer(busy());
    assert_no_secrets(&printed(retry.call(secret_request("GET"))).await);

    let held = Dependencies::new(policy().build().unwrap());
    let mut gate =
        RetryAfterLayer::new(held.clone()).layer(peer([reply(503, &[("retry-after", "7")])]));
    gate.call(secret_request("GET")).await.unwrap();
    assert_no_secrets(&printed(gate.call(secret_request("GET"))).await);

    let never = |_: IdempotencyKey, _: &_| std::future::pending::<Result<(), BoxError>>();
    let mut key = IdempotencyKeyLayer::new().with_persist(never).layer(busy());
    assert_no_secrets(&printed(key.call(secret_request("POST"))).await);

    let mut breaker = CircuitBreakerLayer::new(deps).layer(busy());
    assert_no_secrets(&printed(breaker.call(secret_request("GET"))).await);
}

// ---- O-3

#[tokio::test(start_paused = true)]
async fn o_3_nobody_has_to_listen() {
    secret_calls().await;
    let client = stack(&deps(), peer([reply(503, &[])]));
    assert_eq!(client.oneshot(get(URI)).await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn o_3_a_subscriber_that_wants_errors_only_gets_nothing() {
    let log = Log::default();
    let errors = log
        .clone()
        .with_filter(tracing_subscriber::filter::LevelFilter::ERROR);
    let _guard = tracing::subscriber::set_default(Registry::default().with(errors));
    let client = stack(&deps(), peer([reply(503, &[])]));
    assert_eq!(client.oneshot(get(URI)).await.unwrap().status(), 200);
    assert!(log.all().is_empty());
}
