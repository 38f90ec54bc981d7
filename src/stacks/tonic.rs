//! tonic: the layers go around a `Channel`, under a generated client.
//!
//! ```
//! use tonic::transport::Channel;
//! use tonic_health::pb::health_client::HealthClient;
//! use tower::ServiceBuilder;
//! use tower_reprise::{Dependencies, Policy, stacks};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = Policy::grpc_unary().idempotent_methods(["grpc.health.v1.Health/Check"]).build()?;
//! let deps = Dependencies::builder(policy).named("ledger").build();
//! let channel = ServiceBuilder::new()
//!     .layer(stacks::tonic::client(deps))
//!     .service(Channel::from_static("http://127.0.0.1:50051").connect_lazy());
//! let client = HealthClient::new(channel);
//! # let _ = client;
//! # Ok(())
//! # }
//! ```
//!
//! A channel has one peer and its requests name none, so the registry has a fixed name for it. A
//! gRPC call is repeated only if its method is declared idempotent, or if it carries an
//! idempotency key, which [`client`] gives each call: see that the server honours it.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tonic::{Code, Status, body::Body};
use tower::{Layer, Service};

use super::ClientLayers;
use crate::{
    Dependencies,
    error::{BoxError, Elapsed, Refused, find},
};

crate::retry::tape::replay_by_tape!(Body, Body::new);

/// All client layers in the right order, and a [`StatusLayer`] on top.
pub fn client<C: Clone, L: Clone>(deps: Dependencies<C, L>) -> (StatusLayer, ClientLayers<C, L>) {
    (StatusLayer::new(), super::client(deps))
}

/// Makes errors of the layers below the `Status` that a generated client returns: `UNAVAILABLE`
/// for a refusal, `DEADLINE_EXCEEDED` for a call that ran out of time, and what tonic itself makes
/// of all others. The error is the status's source.
#[derive(Debug, Clone, Copy, Default)]
#[must_use]
pub struct StatusLayer(());

impl StatusLayer {
    /// Makes errors statuses.
    pub fn new() -> Self {
        Self(())
    }
}

impl<S> Layer<S> for StatusLayer {
    type Service = WithStatus<S>;

    fn layer(&self, inner: S) -> WithStatus<S> {
        WithStatus { inner }
    }
}

/// The service of a [`StatusLayer`].
#[derive(Debug, Clone)]
pub struct WithStatus<S> {
    inner: S,
}

impl<S, Req> Service<Req> for WithStatus<S>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = Status;
    type Future = StatusFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let ready = ready!(self.inner.poll_ready(cx));
        Poll::Ready(ready.map_err(|error| status(error.into())))
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        StatusFuture {
            future: self.inner.call(request),
        }
    }
}

pin_project! {
    /// The future of a [`WithStatus`] service.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct StatusFuture<F> {
        #[pin]
        future: F,
    }
}

impl<F, T, E> Future for StatusFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, Status>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(self.project().future.poll(cx));
        Poll::Ready(result.map_err(|error| status(error.into())))
    }
}

fn status(error: BoxError) -> Status {
    let (code, message) = match (Refused::find(&*error), find::<Elapsed>(&*error)) {
        (Some(refused), _) => (Code::Unavailable, refused.to_string()),
        (None, Some(elapsed)) => (Code::DeadlineExceeded, elapsed.to_string()),
        (None, None) => return Status::from_error(error),
    };
    let mut status = Status::new(code, message);
    status.set_source(error.into());
    status
}
