//! Bodies pass as they come: nothing waits for their end, and nothing keeps them.

use std::{convert::Infallible, fs, time::Duration};

use axum::{Router, body::Body, extract::Request as Inbound, routing::post};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, channel::Channel};
use tokio::{net::TcpListener, sync::mpsc, time::sleep};

use crate::gateway::{Gateway, caller};

/// Tells each frame as it comes, and says back what it is told to.
async fn echo(heard: mpsc::UnboundedSender<Bytes>, says: mpsc::UnboundedReceiver<Bytes>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let says = std::sync::Arc::new(std::sync::Mutex::new(Some(says)));
    let app = Router::new().fallback(post(async move |request: Inbound| {
        let mut body = request.into_body();
        let (mut reply, replied) = Channel::<Bytes, Infallible>::new(1);
        let mut says = says.lock().unwrap().take().unwrap();
        tokio::spawn(async move {
            while let Some(Ok(frame)) = body.frame().await {
                heard.send(frame.into_data().unwrap()).unwrap();
            }
        });
        tokio::spawn(async move {
            while let Some(data) = says.recv().await {
                if reply.send_data(data).await.is_err() {
                    return;
                }
            }
        });
        Body::new(replied)
    }));
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

#[tokio::test]
async fn bodies_stream_in_both_directions() {
    let (heard, mut hears) = mpsc::unbounded_channel();
    let (say, says) = mpsc::unbounded_channel();
    let url = echo(heard, says).await;
    let gateway = Gateway::start(&url, &["--head-timeout", "1s"]).await;
    let (mut upload, body) = Channel::<Bytes, Infallible>::new(1);
    let request = Request::post(gateway.url("/"))
        .body(Body::new(body))
        .unwrap();
    let reply = tokio::spawn(async move { caller().request(request).await.unwrap() });

    // Each piece arrives before the next is sent.
    for piece in ["first", "second"] {
        upload.send_data(piece.into()).await.unwrap();
        assert_eq!(hears.recv().await.unwrap(), piece);
    }
    let mut reply = reply.await.unwrap();
    for piece in ["third", "fourth"] {
        say.send(piece.into()).unwrap();
        let frame = reply.body_mut().frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), piece);
    }
    // Once there is a reply, a pause is none of the gateway's business.
    sleep(Duration::from_millis(1500)).await;
    upload.send_data("fifth".into()).await.unwrap();
    assert_eq!(hears.recv().await.unwrap(), "fifth");
    drop((upload, say));
    assert!(reply.body_mut().frame().await.is_none());
}

/// a reply that streams goes on after SIGTERM, for as long as there is grace.
#[tokio::test]
async fn a_3_a_stream_outlives_sigterm() {
    let (heard, _hears) = mpsc::unbounded_channel();
    let (say, says) = mpsc::unbounded_channel();
    let url = echo(heard, says).await;
    let mut gateway = Gateway::start(&url, &[]).await;
    let request = Request::post(gateway.url("/")).body(Body::empty()).unwrap();
    say.send("first".into()).unwrap();
    let mut reply = caller().request(request).await.unwrap();
    let next = async |reply: &mut http::Response<hyper::body::Incoming>| {
        let frame = reply.body_mut().frame().await.unwrap().unwrap();
        frame.into_data().unwrap()
    };
    assert_eq!(next(&mut reply).await, "first");
    gateway.signal("TERM");
    gateway.says("finishing what is under way").await;
    for piece in ["second", "third"] {
        say.send(piece.into()).unwrap();
        assert_eq!(next(&mut reply).await, piece);
    }
    drop(say);
    assert!(reply.body_mut().frame().await.is_none());
    assert_eq!(gateway.ended().await.code(), Some(0));
    assert!(!gateway.said().contains("broken off"), "{}", gateway.said());
}

/// Returns the peak memory of a process, in MiB.
pub(crate) fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: u64 = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib >> 10
}

#[tokio::test]
async fn s_3_large_bodies_are_not_kept() {
    const PIECE: usize = 1 << 16;
    const PIECES: usize = 2000;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // Says back what it hears, all of it.
    let app = Router::new().fallback(post(async |request: Inbound| request.into_body()));
    tokio::spawn(async move { axum::serve(listener, app).await });
    let gateway = Gateway::start(&url, &[]).await;
    let before = peak(gateway.pid());

    let (mut upload, body) = Channel::<Bytes, Infallible>::new(1);
    let request = Request::post(gateway.url("/"))
        .body(Body::new(body))
        .unwrap();
    let sender = tokio::spawn(async move {
        let piece = Bytes::from(vec![7; PIECE]);
        for _ in 0..PIECES {
            upload.send_data(piece.clone()).await.unwrap();
        }
    });
    let mut body = caller().request(request).await.unwrap().into_body();
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        read += frame.unwrap().into_data().unwrap().len();
    }
    sender.await.unwrap();
    assert_eq!(read, PIECE * PIECES);
    let grown = peak(gateway.pid()) - before;
    assert!(
        grown < 32,
        "{grown} MiB more, for a body of {} MiB",
        read >> 20
    );

    // With a key it has to be kept, and so it is bounded.
    let request = gateway
        .order("large")
        .body(Body::from(vec![7; (1 << 20) + 1]));
    let reply = caller().request(request.unwrap()).await.unwrap();
    assert_eq!(reply.status(), 413);
}
