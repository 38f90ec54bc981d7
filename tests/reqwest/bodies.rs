//! Bodies that are sent again, and those that are not.

use bytes::Bytes;
use http::Request;
use http_body::Frame;
use http_body_util::StreamBody;
use reqwest::Body;
use tower_reprise::{
    Dependencies,
    call::{Cause, Health, Retryable, StopReason},
};

use crate::{
    Form, client, outcome,
    reader::Reader,
    support::{deps, quick, verdict},
};

const CAP: usize = 64 * 1024;

/// A body that streams, in chunks of a size that fits nothing.
fn streaming(content: &[u8]) -> Body {
    let chunks: Vec<_> = content.chunks(1013).map(Bytes::copy_from_slice).collect();
    Body::wrap_stream(tokio_stream::iter(
        chunks.into_iter().map(Ok::<_, std::io::Error>),
    ))
}

fn content(size: usize) -> Vec<u8> {
    (0..size).map(|n| (n % 251) as u8).collect()
}

fn put(uri: &str, body: Body) -> Request<Body> {
    Request::put(uri).body(body).unwrap()
}

#[tokio::test]
async fn c_5_a_body_that_streams_is_sent_again_byte_for_byte_up_to_the_cap() {
    for form in Form::BOTH {
        for size in [0, 1, 5000, CAP] {
            let content = content(size);
            let server = Reader::start(vec![503, 503]).await;
            let request = put(&server.uri, streaming(&content));
            let response = form.call(&deps(quick()), &client(), request).await.unwrap();
            assert_eq!(outcome(&response), (3, None), "{size}");
            let bodies = server.bodies();
            assert_eq!(bodies.len(), 3);
            assert!(bodies.iter().all(|body| *body == content), "{size}");
        }
    }
}

#[tokio::test]
async fn c_5_a_body_over_the_cap_passes_and_is_not_sent_again() {
    for form in Form::BOTH {
        for size in [CAP + 1, 3_000_000] {
            let content = content(size);
            let server = Reader::start(vec![503]).await;
            let request = put(&server.uri, streaming(&content));
            let response = form.call(&deps(quick()), &client(), request).await.unwrap();
            assert_eq!(response.status(), 503);
            assert_eq!(outcome(&response), (1, Some(StopReason::NotReplayable)));
            assert_eq!(server.bodies(), [content]);
        }
    }
}

#[tokio::test]
async fn c_5_the_cap_is_the_policys() {
    let policy = quick().replay_limit(2000).build().unwrap();
    for (size, made) in [(1500, 2), (2001, 1)] {
        for form in Form::BOTH {
            let server = Reader::start(vec![503]).await;
            let request = put(&server.uri, streaming(&content(size)));
            let deps = Dependencies::new(policy.clone());
            let response = form.call(&deps, &client(), request).await.unwrap();
            assert_eq!(outcome(&response).0, made, "{size}");
        }
    }
}

#[tokio::test]
async fn c_5_trailers_are_sent_again_too() {
    for form in Form::BOTH {
        let server = Reader::start(vec![503]).await;
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x-sum", "17".parse().unwrap());
        let frames = [
            Frame::data(Bytes::from("abc")),
            Frame::trailers(trailers.clone()),
        ];
        let frames = frames.map(Ok::<_, std::io::Error>);
        let body = Body::wrap(StreamBody::new(tokio_stream::iter(frames)));
        let client = crate::builder().http2_prior_knowledge().build().unwrap();
        let response = form
            .call(&deps(quick()), &client, put(&server.uri, body))
            .await
            .unwrap();
        assert_eq!(outcome(&response), (2, None));
        for request in server.requests() {
            assert_eq!(
                request.into_body(),
                (Bytes::from("abc"), Some(trailers.clone()))
            );
        }
    }
}

#[tokio::test]
async fn c_5_bytes_of_any_length_are_sent_again() {
    for form in Form::BOTH {
        let content = content(1_000_000);
        let server = Reader::start(vec![503]).await;
        let request = put(&server.uri, Body::from(content.clone()));
        let response = form.call(&deps(quick()), &client(), request).await.unwrap();
        assert_eq!(outcome(&response), (2, None));
        assert!(server.bodies().iter().all(|body| *body == content));
        let lengths = server.requests();
        let length = |r: &Request<_>| r.headers().get("content-length").cloned();
        assert!(lengths.iter().all(|r| length(r).unwrap() == "1000000"));
    }
}

/// The words of the body's source are not the connection's.
#[tokio::test]
async fn c_10_a_body_that_fails_is_the_callers_own() {
    for form in Form::BOTH {
        for kind in [
            std::io::ErrorKind::ConnectionRefused,
            std::io::ErrorKind::TimedOut,
        ] {
            let server = Reader::start(vec![]).await;
            let frames = [Ok(Bytes::from("half")), Err(std::io::Error::from(kind))];
            let body = Body::wrap_stream(tokio_stream::iter(frames));
            let request = put(&server.uri, body);
            let called = form.call(&deps(quick()), &client(), request).await;
            let error = called.unwrap_err();
            let verdict = verdict(&error);
            assert_eq!(verdict.cause, Cause::Cancelled, "{form:?}: {error:?}");
            let parts = (verdict.retry, verdict.health, verdict.never_sent);
            assert_eq!(parts, (Retryable::Never, Health::Neutral, false));
        }
    }
}
