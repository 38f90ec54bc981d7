//! The services that are called, and the requests.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    hint::black_box,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::{runtime::Runtime, time::Instant};
use tower::{Service, ServiceExt};

pub(crate) type Call = Request<Full<Bytes>>;

/// A service that has its reply at once.
#[derive(Clone)]
pub(crate) struct AtOnce;

impl Service<Call> for AtOnce {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Call) -> Self::Future {
        drop(black_box(request));
        ready(Ok(Response::new(Full::default())))
    }
}

/// The name of a dependency.
pub(crate) fn host(dependency: usize) -> String {
    format!("service-{dependency:06}.example")
}

/// A GET of one of the dependencies, with six headers made from text.
#[inline(never)]
pub(crate) fn get(dependency: usize) -> Call {
    let host = host(dependency);
    let uri = format!("http://{host}/v1/items/42?fields=name,price");
    Request::get(uri)
        .header("accept", "application/json")
        .header("accept-encoding", "gzip, br")
        .header("authorization", "Bearer 0123456789abcdef0123456789abcdef")
        .header("user-agent", "shop/1.4")
        .header("x-request-id", "0f8fad5b-d9cb-469f-a165-70867728950e")
        .header(
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        )
        .body(Full::default())
        .expect("a request")
}

pub(crate) fn runtime() -> Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime")
}

/// Makes calls one after the other, each from its request to its reply: nanoseconds a call.
pub(crate) async fn nanos<S>(service: &mut S, calls: impl ExactSizeIterator<Item = Call>) -> f64
where
    S: Service<Call>,
    S::Error: std::fmt::Debug,
{
    let count = calls.len();
    let started = Instant::now();
    for call in calls {
        let service = service.ready().await.expect("a service");
        black_box(service.call(call).await.expect("a reply"));
    }
    started.elapsed().as_secs_f64() * 1e9 / count as f64
}
