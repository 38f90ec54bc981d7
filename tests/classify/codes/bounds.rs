//! Bounds of what is read, and a response that stays whole for the caller.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Channel, Full};
use tokio::time::Instant;
use tower::{ServiceBuilder, service_fn};
use tower_reprise::{Dependencies, PeekLayer, RetryLayer, classify::Codes};

use super::{Reply, attempts, get, json, policy, run};
use crate::support::{call, pieces::Untouchable};

/// A JSON document of so many bytes.
fn document(code: &str, size: usize) -> String {
    let padded = format!(r#"{{"code":"{code}","pad":""}}"#);
    let pad = "x".repeat(size - padded.len());
    format!(r#"{{"code":"{code}","pad":"{pad}"}}"#)
}

/// Frames, one after the other, without a word about their size.
struct Frames(Vec<Frame<Bytes>>);

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready((!self.0.is_empty()).then(|| Ok(self.0.remove(0))))
    }
}

fn in_frames(status: u16, body: &str, size: usize) -> Reply {
    let chunks = body.as_bytes().chunks(size);
    let frames = chunks.map(|chunk| Frame::data(Bytes::copy_from_slice(chunk)));
    json(status, "").map(|_| Frames(frames.collect()).boxed_unsync())
}

#[tokio::test(start_paused = true)]
async fn c_6_a_code_is_read_up_to_the_limit() {
    const LIMIT: usize = 64 * 1024;
    let codes = || Codes::standard().retry("X");
    for size in [1000, LIMIT - 1, LIMIT, LIMIT + 1, 3 * LIMIT] {
        let body = document("X", size);
        let made = if size <= LIMIT { 6 } else { 1 };
        for frame in [100, 4096, usize::MAX] {
            // Frames that are tiny count as more than they are.
            let found = attempts(codes(), || in_frames(400, &body, frame)).await;
            assert_eq!(found, made, "{size} in frames of {frame}");
        }
        assert_eq!(attempts(codes(), || json(400, body.clone())).await, made);
    }
    let short = codes().limit(100);
    let found = attempts(short, || json(400, document("X", 101))).await;
    assert_eq!(found, 1, "a limit of one's own");
}

#[tokio::test(start_paused = true)]
async fn c_6_what_says_that_it_is_too_long_is_not_read() {
    let long = || json(400, "").map(|_| Untouchable(Some(64 * 1024 + 1)).boxed_unsync());
    assert_eq!(attempts(Codes::standard().retry("X"), long).await, 1);
    // Nor is what nobody asks about: a success, and a 4xx where only a 409 is of interest.
    let other = |status| move || json(status, "").map(|_| Untouchable(Some(10)).boxed_unsync());
    assert_eq!(attempts(Codes::bank(), other(200)).await, 1);
    assert_eq!(attempts(Codes::standard(), other(400)).await, 1);
}

#[tokio::test(start_paused = true)]
async fn c_6_the_response_is_whole_for_the_caller() {
    for size in [20, 1000, 64 * 1024, 64 * 1024 + 1, 300_000] {
        for code in ["NEVER", "ALWAYS", "OTHER"] {
            let body = document(code, size.max(40));
            let codes = Codes::standard().never("NEVER").retry("ALWAYS");
            let called = run(policy(codes), get(), |_| {
                let mut trailers = HeaderMap::new();
                trailers.insert("x-end", HeaderValue::from_static("here"));
                let chunks = body.as_bytes().chunks(1 + size / 7);
                let data = chunks.map(|chunk| Frame::data(Bytes::copy_from_slice(chunk)));
                let frames = data.chain([Frame::trailers(trailers)]).collect();
                json(400, "").map(|_| Frames(frames).boxed_unsync())
            });
            let response = called.await.result.unwrap();
            let whole = response.into_body().collect().await.unwrap();
            assert_eq!(whole.trailers().unwrap()["x-end"], "here");
            assert_eq!(whole.to_bytes(), body, "{code} {size}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c_6_a_body_that_stalls_is_not_waited_for() {
    let codes = Codes::standard().retry("X").time(Duration::from_millis(40));
    let deps = Dependencies::new(policy(codes).build().unwrap());
    let (sender, body) = Channel::<Bytes, Infallible>::new(4);
    let body = Arc::new(Mutex::new(Some(body)));
    let service = service_fn(move |_: Request<Full<Bytes>>| {
        let body = body.lock().unwrap().take().expect("one attempt");
        async { Ok::<_, Infallible>(json(400, "").map(|_| body.boxed_unsync())) }
    });
    let mut client = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()))
        .layer(PeekLayer::new(deps))
        .service(service);
    let mut sender = sender;
    sender
        .send_data(Bytes::from_static(b"{\"code\":"))
        .await
        .unwrap();

    let start = Instant::now();
    let response = call(&mut client, get()).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_millis(40));
    sender
        .send_data(Bytes::from_static(b"\"X\"}"))
        .await
        .unwrap();
    drop(sender);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, r#"{"code":"X"}"#);
}
