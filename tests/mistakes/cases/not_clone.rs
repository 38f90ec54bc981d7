use std::task::{Context, Poll};

use http::{Request, Response};
use tower::{Layer, Service};
use tower_reprise::{Dependencies, Policy, RetryLayer, error::BoxError};

/// A service that lacks `#[derive(Clone)]`.
struct Http;

impl Service<Request<String>> for Http {
    type Response = Response<()>;
    type Error = BoxError;
    type Future = std::future::Ready<Result<Response<()>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        std::future::ready(Ok(Response::new(())))
    }
}

fn calls(_: impl Service<Request<String>>) {}

fn main() {
    let deps = Dependencies::new(Policy::http().build().unwrap());
    calls(RetryLayer::new(deps).layer(Http));
}
