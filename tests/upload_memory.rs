//! The memory that an upload takes that is far too long to be kept. Alone in its file, since the
//! allocator counts for the whole process.
#![cfg(feature = "hyper")]
#![allow(clippy::unwrap_used, reason = "the helpers are tests too")]

mod support;

use std::{
    convert::Infallible,
    net::Ipv4Addr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Empty, combinators::BoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
};
use peak_alloc::PeakAlloc;
use tokio::net::TcpListener;
use tower::{Service, ServiceBuilder};
use tower_reprise::{Dependencies, Policy, call::StopReason, error::BoxError, stacks};

use support::{call, outcome};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const MIB: usize = 1024 * 1024;
const FRAME: usize = 16 * 1024;

type Upload = BoxBody<Bytes, Infallible>;

/// So many bytes, made as they are asked for.
struct Stream(usize);

impl Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = self.0.min(FRAME);
        self.0 -= length;
        let frame = || Ok(Frame::data(Bytes::from(vec![7; length])));
        Poll::Ready((length > 0).then(frame))
    }
}

/// Sends an upload and returns the most memory that was in use beyond what was before.
async fn upload<S, B>(client: &mut S, uri: &str, length: usize) -> usize
where
    S: Service<Request<Upload>, Response = Response<B>, Error = BoxError>,
{
    let request = Request::put(uri).body(Stream(length).boxed()).unwrap();
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let result = call(client, request).await;
    let peak = MEMORY.peak_usage() - before;
    assert_eq!(outcome(&result), Some((1, Some(StopReason::NotReplayable))));
    peak
}

/// Reads a body to its end and returns its length.
async fn swallow<B: Body<Data = Bytes, Error: std::fmt::Debug> + Unpin>(mut body: B) -> usize {
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        length += frame.unwrap().into_data().unwrap().len();
    }
    length
}

fn unavailable() -> Response<Empty<Bytes>> {
    Response::builder().status(503).body(Empty::new()).unwrap()
}

/// S-3: what is kept of bodies is bounded, whatever their length.
#[tokio::test]
async fn s_3_a_long_upload_takes_little_memory_and_is_not_retried() {
    let deps = || Dependencies::new(Policy::http().build().unwrap());
    let received = Arc::new(AtomicUsize::new(0));

    // Through the layers alone.
    let counter = Arc::clone(&received);
    let mut client = ServiceBuilder::new()
        .layer(stacks::client(deps()))
        .service_fn(move |request: Request<Upload>| {
            let counter = Arc::clone(&counter);
            async move {
                counter.fetch_add(swallow(request.into_body()).await, Ordering::Relaxed);
                Ok::<_, BoxError>(unavailable())
            }
        });
    let peak = upload(&mut client, "http://a.example/", 64 * MIB).await;
    assert_eq!(received.swap(0, Ordering::Relaxed), 64 * MIB);
    assert!(peak < MIB / 4, "{peak} bytes through the layers");

    // And over a connection, with both of its ends in this process.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    let counter = Arc::clone(&received);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let answer = service_fn(move |request: Request<Incoming>| {
            let counter = Arc::clone(&counter);
            async move {
                counter.fetch_add(swallow(request.into_body()).await, Ordering::Relaxed);
                Ok::<_, Infallible>(unavailable())
            }
        });
        http1::Builder::new()
            .serve_connection(TokioIo::new(stream), answer)
            .await
    });
    let hyper = Client::builder(TokioExecutor::new()).build_http();
    let mut client = ServiceBuilder::new()
        .layer(stacks::client(deps()))
        .service(hyper);
    let peak = upload(&mut client, &uri, 64 * MIB).await;
    assert_eq!(received.load(Ordering::Relaxed), 64 * MIB);
    assert!(peak < MIB, "{peak} bytes over a connection");
}
