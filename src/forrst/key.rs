//! One idempotency key for an envelope and its request.
//!
//! forrst carries idempotency keys in an extension of the envelope, and HTTP in a header, by which a
//! [`RetryLayer`](crate::client::retry::RetryLayer) knows that a POST may be retried.
//! [`EnvelopeKeyLayer`] makes both present and equal. Put it above an
//! [`IdempotencyKeyLayer`](crate::client::idempotency_key::IdempotencyKeyLayer), which stamps the
//! header:
//!
//! - a key of the envelope stays, and becomes the header's unless the request has one;
//! - a key in the header or in the request's extensions is written into the envelope;
//! - without any key, both get a random UUID.
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::{BodyExt, Full};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{IdempotencyKeyLayer, error::BoxError};
//! use tower_reprise::forrst::{self, EnvelopeKeyLayer, IdempotencyOptions};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let server = service_fn(|request: Request<Full<Bytes>>| async move {
//!     let header = request.headers()["idempotency-key"].clone();
//!     let body = request.into_body().collect().await?.to_bytes();
//!     let envelope = forrst::Request::parse(&body)?;
//!     let options: Option<IdempotencyOptions> = envelope.options_of(IdempotencyOptions::URN)?;
//!     assert_eq!(options.map(|options| options.key).unwrap(), header);
//!     Ok::<_, BoxError>(Response::new(()))
//! });
//! let mut client = ServiceBuilder::new()
//!     .layer(EnvelopeKeyLayer::new())
//!     .layer(IdempotencyKeyLayer::new())
//!     .service(server);
//!
//! let call = r#"{"id":"req_1","call":{"function":"payments.charge","arguments":{"amount":100}}}"#;
//! let request = Request::post("/").header("content-type", "application/json").body(call.into())?;
//! client.ready().await?.call(request).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | all attempts of a call carry one key, in the header and in the envelope | a key in envelopes beyond the limit, of unknown size, compressed or with a digest |
//! | a key of yours is kept, wherever it is | that two keys of yours agree: each stays where it is |
//! | all other members keep their bytes | that a key which is no header value is in the header: it stays in the envelope alone |
//!
//! # Defaults
//!
//! | setting | default |
//! | --- | --- |
//! | [`header`](EnvelopeKeyLayer::header) | `Idempotency-Key` |
//! | [`limit`](EnvelopeKeyLayer::limit): the longest envelope that is rewritten | 64 KiB |
//!
//! Longer bodies, bodies of unknown size and other requests pass unchanged: the envelope of a call
//! that is too long gets no key.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderName, Request, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use serde_json::json;
use tower::{Layer, Service, ServiceExt};

use super::{
    Extension, IdempotencyOptions, LIMIT,
    fresh_id::{is_readable, read, resized},
    splice,
};
use crate::{call::IdempotencyKey, error::BoxError, http::headers::IDEMPOTENCY_KEY};

/// Gives an envelope and its request one idempotency key. See the [module docs](self).
#[derive(Debug, Clone)]
#[must_use]
pub struct EnvelopeKeyLayer {
    header: HeaderName,
    limit: usize,
}

impl EnvelopeKeyLayer {
    /// Creates a layer for the header `Idempotency-Key`.
    pub fn new() -> Self {
        Self {
            header: IDEMPOTENCY_KEY,
            limit: LIMIT,
        }
    }

    /// Sets the header, which must be that of the
    /// [`IdempotencyKeyLayer`](crate::client::idempotency_key::IdempotencyKeyLayer).
    pub fn header(mut self, name: HeaderName) -> Self {
        self.header = name;
        self
    }

    /// Sets the longest body that is read, in bytes: 64 KiB by default.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }
}

impl Default for EnvelopeKeyLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for EnvelopeKeyLayer {
    type Service = EnvelopeKey<S>;

    fn layer(&self, inner: S) -> Self::Service {
        EnvelopeKey {
            inner,
            settings: self.clone(),
        }
    }
}

/// The service of an [`EnvelopeKeyLayer`].
///
/// # Clone
///
/// There is no state.
#[derive(Debug, Clone)]
pub struct EnvelopeKey<S> {
    inner: S,
    settings: EnvelopeKeyLayer,
}

impl<S, B> Service<Request<B>> for EnvelopeKey<S>
where
    S: Service<Request<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = EnvelopeKeyFuture<S::Future, S::Response>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if !is_readable(&request, self.settings.limit) {
            let future = self.inner.call(request);
            return EnvelopeKeyFuture {
                state: State::Called { future },
            };
        }
        crate::call::release(&mut self.inner);
        let inner = self.inner.clone();
        let header = self.settings.header.clone();
        let future = Box::pin(async move {
            let (mut head, envelope) = read(request).await?;
            let body = stamp(&mut head, &envelope, &header);
            let body = body.map_or(envelope, |body| resized(&mut head.headers, body));
            let request = Request::from_parts(head, body.into());
            inner.oneshot(request).await.map_err(Into::into)
        });
        EnvelopeKeyFuture {
            state: State::Stamping { future },
        }
    }
}

/// Returns the envelope with a key, if it is one and has none.
fn stamp(head: &mut Parts, envelope: &[u8], header: &HeaderName) -> Option<Vec<u8>> {
    let request = super::Request::parse(envelope).ok()?;
    let options: Option<IdempotencyOptions> = request.options_of(IdempotencyOptions::URN).ok()?;
    let sent = head.headers.get(header).map(IdempotencyKey::as_sent);
    let known = sent.or_else(|| head.extensions.get().cloned());
    match (options, known) {
        (Some(_), Some(_)) => None,
        (Some(options), None) => {
            // A key that is no header value stays in the envelope only.
            if let Ok(key) = IdempotencyKey::new(options.key) {
                head.extensions.insert(key);
            }
            None
        }
        (None, known) => {
            let key = known.unwrap_or_else(IdempotencyKey::random);
            let options = json!({ "key": key.as_str() });
            let extension = Extension::with_options(IdempotencyOptions::URN, options);
            head.extensions.insert(key);
            splice::with_extension(envelope, &extension)
        }
    }
}

pin_project! {
    /// The future of an [`EnvelopeKey`] service.
    #[must_use = "futures do nothing unless polled"]
    pub struct EnvelopeKeyFuture<F, R> {
        #[pin]
        state: State<F, R>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, R> {
        // The request was passed on unchanged.
        Called { #[pin] future: F },
        // The envelope is read and stamped, and then passed on.
        Stamping { future: Pin<Box<dyn Future<Output = Result<R, BoxError>> + Send>> },
    }
}

impl<F, R, E> Future for EnvelopeKeyFuture<F, R>
where
    F: Future<Output = Result<R, E>>,
    E: Into<BoxError>,
{
    type Output = Result<R, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Called { future } => future.poll(cx).map_err(Into::into),
            StateProj::Stamping { future } => future.as_mut().poll(cx),
        }
    }
}

opaque_debug! { EnvelopeKeyFuture<F, R> }
