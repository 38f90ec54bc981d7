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
//! A channel has one peer, which its requests do not name, so the registry has a fixed name for it. A
//! gRPC call that may have been processed is retried only if its method is declared
//! [idempotent](crate::policy::PolicyBuilder::idempotent_methods), or if the policy says that the
//! server [honours keys](crate::policy::PolicyBuilder::honours_keys) and the method is declared
//! [unary](crate::policy::PolicyBuilder::unary_methods): [`client`] stamps a key on those, and never
//! on methods that may stream.
//!
//! The policies of single methods can come from a gRPC service config: see
//! `config::ServiceConfig`, with the `serde` feature.
//!
//! The status of a unary call may come after its head, and is waited for. A stream is not: send it with
//! [`RetryOverride::off`](crate::RetryOverride::off) in its extensions, or name the
//! [`unary_methods`](crate::policy::PolicyBuilder::unary_methods) in the policy.
//!
//! On a server, `Server::builder().layer(DeadlineLayer::new().trust_callers())` keeps the calls of its
//! methods within `grpc-timeout`, and tells their callers not to repeat what was given up: see
//! [`server::deadline`](crate::server::deadline).
//!
//! A channel that can't connect fails the call, and connects anew for the next. During a TLS
//! handshake that stalls it waits, however many calls time out: set a `ClientTlsConfig::timeout`, and
//! an `http2_keep_alive_interval` for peers that stop responding later.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

#[cfg(feature = "server")]
use http::Request;
use http::{HeaderMap, HeaderName, Response};
use pin_project_lite::pin_project;
use tonic::{Code, Status, body::Body, metadata::MetadataMap};
use tower::{Layer, Service};

use super::ClientLayers;
#[cfg(feature = "server")]
use crate::server::dialect::Requirement;
use crate::{
    call::{Cause, PrepareError, RetryError, RetryOutcome},
    classify::{Rules, network},
    dependency::Dependencies,
    error::{BoxError, Refused, chain, find},
};

crate::client::retry::replay_buffer::replay_by_recording!(Body, Body::new, |error| Some(
    Status::from_error(Box::new(error))
));
#[cfg(feature = "server")]
crate::http::request_body::rebuilt_as_it_was!([] Body, |data| Body::new(http_body_util::Full::new(data)));

/// Returns all client layers in the right order, with a [`StatusLayer`] on top.
pub fn client<C: Clone, L: Clone>(deps: Dependencies<C, L>) -> (StatusLayer, ClientLayers<C, L>) {
    (StatusLayer::new(), super::client(deps))
}

/// Returns the requirement of an idempotency layer on a server: calls of these methods
/// (`package.Service/Method`) need a key and are executed once, all others, streams among them, pass.
///
/// ```
/// use tower_reprise::{IdempotencyLayer, server::dialect::Scope, stacks};
/// use tower_reprise::store::{CrashPolicy, MemoryStore};
///
/// let idempotency = IdempotencyLayer::builder(MemoryStore::new())
///     .scope(Scope::anonymous("everybody"))
///     .crash_policy(CrashPolicy::Reexecute)
///     .requirement(stacks::tonic::keys_for(["ledger.v1.Ledger/Pay"]))
///     .build()?;
/// let server = tonic::transport::Server::builder().layer(idempotency);
/// # let _ = server;
/// # Ok::<(), tower_reprise::error::ConfigError>(())
/// ```
#[cfg(feature = "server")]
pub fn keys_for<I>(
    methods: I,
) -> impl Fn(&Request<()>) -> Requirement + Clone + Send + Sync + 'static
where
    I: IntoIterator<Item: Into<String>>,
{
    let methods: Arc<[String]> = methods.into_iter().map(Into::into).collect();
    move |head| {
        let called = head.uri().path().trim_start_matches('/');
        match methods.iter().any(|method| method == called) {
            true => Requirement::Required,
            false => Requirement::Ignored,
        }
    }
}

/// Converts errors of the layers below into the `Status` that a generated client returns:
/// `UNAVAILABLE` for a refusal, `DEADLINE_EXCEEDED` for a timeout, and tonic's own conversion for all
/// others. The error is the status's source, so that [`Refused::find`] and
/// [`RetryOutcome::of_error`] find it.
///
/// A reply that is a failure by its head becomes the same `Status` here rather than in the client,
/// with a [`RetryOutcome`] in its source if there is one.
#[derive(Debug, Clone, Copy, Default)]
#[must_use]
pub struct StatusLayer(());

impl StatusLayer {
    /// Converts errors into statuses.
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

impl<S, Req, B> Service<Req> for WithStatus<S>
where
    S: Service<Req, Response = Response<B>>,
    S::Error: Into<BoxError>,
{
    type Response = Response<B>;
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

impl<F, B, E> Future for StatusFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Response<B>, Status>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(self.project().future.poll(cx)) {
            Ok(response) => match RetryOutcome::of(&response) {
                None => Ok(response),
                Some(outcome) => explained(*outcome, response),
            },
            Err(error) => Err(status(error.into())),
        })
    }
}

/// The header with the details of a status.
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// Converts an error as tonic does, and those of this crate, which it does not know.
fn status(error: BoxError) -> Status {
    let verdict = network::classify(&Rules::standard(), &*error);
    let (code, message) = match (Refused::find(&*error), verdict.cause) {
        (Some(refused), _) => (Code::Unavailable, refused.to_string()),
        (None, Cause::Timeout) if !verdict.never_sent && find::<Status>(&*error).is_none() => {
            // The last error of the chain is the most specific.
            let last = chain(&*error).last().map(ToString::to_string);
            (Code::DeadlineExceeded, last.unwrap_or_default())
        }
        _ => return Status::from_error(error),
    };
    let mut status = Status::new(code, message);
    status.set_source(error.into());
    status
}

/// Returns the reply, or its status with the outcome of the retries.
#[cold]
fn explained<B>(outcome: RetryOutcome, mut response: Response<B>) -> Result<Response<B>, Status> {
    // tonic panics on details that are not base64, here or in the generated client.
    if let Some(details) = response.headers().get(DETAILS) {
        let details = HeaderMap::from_iter([(DETAILS, details.clone())]);
        let details = MetadataMap::from_headers(details);
        let details = details.get_bin(DETAILS.as_str());
        if details.is_none_or(|details| details.to_bytes().is_err()) {
            response.headers_mut().remove(DETAILS);
        }
    }
    match Status::from_header_map(response.headers()) {
        Some(mut status) if status.code() != Code::Ok => {
            let said: BoxError = format!("{:?}: {}", status.code(), status.message()).into();
            let prepare = PrepareError::of(&response).cloned();
            let error = RetryError::new(outcome, said).prepare(prepare);
            status.set_source(Arc::new(error));
            Err(status)
        }
        _ => Ok(response),
    }
}
