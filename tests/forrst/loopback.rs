//! A server and a client of this crate over a real connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, routing::post};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower_reprise::{
    Dependencies, IdempotencyKeyLayer, PeekLayer, Policy, RetryLayer,
    call::StopReason,
    classify::Codes,
    forrst::{self, EnvelopeKeyLayer, FreshId, IdempotencyOptions, Retry, RetryGuidanceLayer},
};

use crate::support::{call, outcome};

/// RA-6: what the server says goes over the wire whole, and the client does it.
#[tokio::test]
async fn ra_6_guidance_over_a_real_connection() {
    let calls = Arc::new(AtomicUsize::new(0));
    let handler = {
        let calls = Arc::clone(&calls);
        move |body: Bytes| async move {
            calls.fetch_add(1, Ordering::Relaxed);
            let request = forrst::Request::parse(&body).unwrap();
            let key: Option<IdempotencyOptions> =
                request.options_of(IdempotencyOptions::URN).unwrap();
            assert!(key.is_some());
            let (id, code) = (request.id.unwrap(), request.call.function);
            let body = format!(
                r#"{{"protocol":{{"name":"forrst","version":"0.1.0"}},"id":"{id}","result":null,"errors":[{{"code":"{code}"}}]}}"#
            );
            let json = [("content-type", "application/json")];
            (StatusCode::INTERNAL_SERVER_ERROR, json, body)
        }
    };
    let app = Router::new()
        .route("/forrst", post(handler))
        .layer(RetryGuidanceLayer::new().code("BUSY", Retry::immediate().max_attempts(2)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    let policy = Policy::http()
        .base(Duration::from_millis(1))
        .cap(Duration::from_millis(1))
        .codes(Codes::forrst());
    let deps = Dependencies::new(policy.build().unwrap());
    let mut client = ServiceBuilder::new()
        .layer(EnvelopeKeyLayer::new())
        .layer(IdempotencyKeyLayer::new())
        .layer(RetryLayer::new(deps.clone()).with_prepare(FreshId))
        .layer(PeekLayer::new(deps))
        .service(Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>());

    for (code, made, why) in [
        ("DEADLINE_EXCEEDED", 2, StopReason::Exhausted),
        ("BUSY", 3, StopReason::Exhausted),
        ("INVALID_ARGUMENTS", 1, StopReason::Pushback),
        // A minute is longer than the call has.
        ("RATE_LIMITED", 1, StopReason::Deadline),
    ] {
        let body = format!(r#"{{"id":"req_1","call":{{"function":"{code}"}}}}"#);
        let request = Request::post(format!("http://{address}/forrst"))
            .header("content-type", "application/json")
            .body(Full::from(body))
            .unwrap();
        calls.store(0, Ordering::Relaxed);
        let result = call(&mut client, request).await;
        assert_eq!(outcome(&result), Some((made, Some(why))), "{code}");
        assert_eq!(calls.load(Ordering::Relaxed), made as usize, "{code}");
        let body = result.unwrap().into_body().collect().await.unwrap();
        let envelope = forrst::Response::parse(&body.to_bytes()).unwrap();
        assert_eq!(envelope.errors[0].code, code);
        assert_eq!(envelope.id.as_deref() == Some("req_1"), made == 1);
        assert!(envelope.data_of::<Retry>(Retry::URN).unwrap().is_some());
    }
    server.abort();
}
