//! The party at fault for a failure: the dependency, or we.

use std::io;

use bytes::Bytes;
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_reprise::{
    call::{Cause, Health, Retryable, StopReason},
    dependency::BreakerState,
    stacks,
};

use crate::{
    client::{get, http2, keyless, parts, plain},
    support::{
        authority::{Authority, Identity},
        deps,
        http1::{Act, Server},
        layers, outcome_of, quick, verdict,
    },
    tls::{TlsServer, https},
};

/// A body that breaks off with this error, as one does that comes from elsewhere.
fn broken(kind: io::ErrorKind) -> BoxBody<Bytes, io::Error> {
    let frames = [
        Ok(Frame::data(Bytes::from_static(b"half"))),
        Err(io::Error::from(kind)),
    ];
    StreamBody::new(tokio_stream::iter(frames)).boxed()
}

/// The same words of a body's source would mean something else of a connection: that the request
/// was never sent, and may be sent again.
#[tokio::test]
async fn c_10_a_request_body_that_fails_is_the_callers_own() {
    for only_http2 in [false, true] {
        for kind in [
            io::ErrorKind::ConnectionRefused,
            io::ErrorKind::TimedOut,
            io::ErrorKind::Other,
        ] {
            let server = Server::start(vec![Act::Stall]).await;
            let http2 = crate::support::http2::Server2::start(vec![]).await;
            let uri = if only_http2 {
                http2.uri()
            } else {
                server.uri()
            };
            let deps = deps(quick().consecutive_failures(1));
            let client: legacy::Client<HttpConnector, BoxBody<Bytes, io::Error>> =
                legacy::Client::builder(TokioExecutor::new())
                    .http2_only(only_http2)
                    .retry_canceled_requests(false)
                    .build(HttpConnector::new());
            let request = Request::put(&uri).body(broken(kind)).unwrap();
            let error = layers::keyless(&deps)
                .layer(client)
                .oneshot(request)
                .await
                .unwrap_err();
            let what = format!("{kind:?}, {only_http2}: {error:?}");
            let expected = (Cause::Cancelled, Retryable::Never, Health::Neutral, false);
            assert_eq!(parts(&error), expected, "{what}");
            let expected = (1, Some(StopReason::NotRetryable));
            assert_eq!(outcome_of(&error), expected, "{what}");
            let dependency = deps.list().remove(0);
            assert_eq!(dependency.status().breaker, BreakerState::Closed, "{what}");
        }
    }
}

#[tokio::test]
async fn c_10_a_reply_that_can_not_be_read_is_a_failure() {
    let garbage = || Act::Say("\u{1}\u{2} garbage\r\n\r\n".into());
    for only_http2 in [false, true] {
        let server = Server::start(vec![garbage()]).await;
        let client = if only_http2 { http2() } else { plain() };
        let error = keyless(&deps(quick()), client)
            .oneshot(get(&server.uri()))
            .await
            .unwrap_err();
        let verdict = verdict(&error);
        assert_eq!(verdict.health, Health::Failure, "{only_http2}: {error:?}");
        assert_eq!(verdict.retry, Retryable::Never, "{only_http2}: {error:?}");
    }
}

/// A certificate is for a person to look at, who needs to see what is wrong with it.
#[tokio::test]
async fn c_10_certificate_errors_never_become_an_open_breaker() {
    const CALLS: usize = 12;
    let authority = Authority::new();
    let server = TlsServer::start(Identity::self_signed("127.0.0.1"), 0).await;
    let deps = deps(quick().consecutive_failures(2));
    let client = ServiceBuilder::new()
        .layer(stacks::client(deps.clone()))
        .service(https(&authority));
    for _ in 0..CALLS {
        let error = client
            .clone()
            .oneshot(get(&server.uri()))
            .await
            .unwrap_err();
        let expected = (Cause::Certificate, Retryable::Never, Health::Neutral, true);
        assert_eq!(parts(&error), expected);
        assert_eq!(outcome_of(&error), (1, Some(StopReason::NotRetryable)));
    }
    assert_eq!(server.connections(), CALLS);
    let dependency = deps.get(&server.address.to_string());
    assert_eq!(dependency.status().breaker, BreakerState::Closed);
}
