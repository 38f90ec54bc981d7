//! reqwest: a client as the innermost service, and stacks of layers as a middleware.
//!
//! [`HttpClient`] takes `http::Request`s and returns `reqwest::Response`s:
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_reprise::{Dependencies, Policy, stacks};
//!
//! # async fn run() -> Result<(), tower_reprise::error::BoxError> {
//! let deps = Dependencies::new(Policy::http().service("checkout").build()?);
//! let mut client = ServiceBuilder::new()
//!     .layer(stacks::client(deps))
//!     .service(stacks::reqwest::HttpClient::build(reqwest::Client::builder())?);
//!
//! let request = http::Request::get("http://stock.example/items").body(reqwest::Body::default())?;
//! let response: reqwest::Response = client.ready().await?.call(request).await?;
//! println!("{}", response.text().await?);
//! # Ok(())
//! # }
//! ```
//!
//! Layers of tower-http want an `http::Response`: put `.map_response(http::Response::from)` between them
//! and the client, and `reqwest::Response::from` on what comes out.
//!
//! reqwest itself repeats a request that the server is known not to have processed (an HTTP/2 GOAWAY, a
//! refused stream), at most twice. Budget, metrics and logs know nothing of such a repeat, so
//! [`HttpClient::build`] switches them off: the layers retry for the same reasons. Give a client that
//! you build yourself `ClientBuilder::retry(reqwest::retry::never())`.
//!
//! With the `reqwest-middleware` feature, `TowerMiddleware` puts any of the layers into an existing chain:
//!
//! ```
//! # #[cfg(feature = "reqwest-middleware")]
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use reqwest_middleware::ClientBuilder;
//! use tower_reprise::{Dependencies, Policy, RetryOverride, stacks};
//!
//! let deps = Dependencies::new(Policy::http().service("checkout").build()?);
//! let client = ClientBuilder::new(reqwest::Client::new())
//!     .with(stacks::reqwest::TowerMiddleware::new(stacks::client(deps)))
//!     .build();
//!
//! let response = client
//!     .get("http://stock.example/items")
//!     .with_extension(RetryOverride::new().max_retries(1))
//!     .send()
//!     .await?;
//! # drop(response);
//! # Ok(())
//! # }
//! ```

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::Request;
use http_body::Body as _;
use reqwest::{Body, Client, ClientBuilder, Error, Response, ResponseBuilderExt};
use tower::Service;

use crate::{
    client::{
        peek::PeekResponse,
        retry::{
            Recording, ReplayBody, ReplayLimits,
            replay_buffer::{self, AnyBody, RecordingBody, superseded::Superseded},
        },
    },
    error::BoxError,
    http::{BufferedBody, response::reply},
};

#[cfg(feature = "reqwest-middleware")]
mod convert;
#[cfg(feature = "reqwest-middleware")]
mod exchange;
#[cfg(feature = "reqwest-middleware")]
mod middleware;

#[cfg(feature = "reqwest-middleware")]
pub use self::{
    exchange::{ChainFuture, ChainService},
    middleware::TowerMiddleware,
};

/// Returns reqwest's own error from a chain, with its `is_connect()`, `is_timeout()` and others.
///
/// ```
/// # fn retry_later(_: ()) {}
/// # fn handle(error: &tower_reprise::error::BoxError) {
/// if tower_reprise::stacks::reqwest::error_of(&**error).is_some_and(reqwest::Error::is_connect) {
///     retry_later(());
/// }
/// # }
/// ```
#[must_use]
pub fn error_of<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Error> {
    crate::error::find(error)
}

/// Returns whether a call ran out of time, by reqwest's clock or by the policy's.
#[must_use]
pub fn is_timeout(error: &(dyn std::error::Error + 'static)) -> bool {
    error_of(error).is_some_and(Error::is_timeout)
        || crate::error::find::<crate::error::Elapsed>(error).is_some()
}

/// A `reqwest::Client` that takes `http::Request`s, which is what the layers speak.
#[derive(Debug, Clone)]
pub struct HttpClient {
    client: Client,
}

impl HttpClient {
    /// Builds a client that repeats nothing by itself: reqwest's own retries are switched off.
    ///
    /// # Errors
    ///
    /// Returns reqwest's error if it cannot build the client.
    pub fn build(builder: ClientBuilder) -> Result<Self, Error> {
        let client = builder.retry(::reqwest::retry::never()).build()?;
        Ok(Self::new(client))
    }

    /// Calls with this client, which may repeat a request unseen: see the [module docs](self).
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

impl Service<Request<Body>> for HttpClient {
    type Response = Response;
    type Error = BoxError;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> ResponseFuture {
        ResponseFuture(match request.try_into() {
            Ok(request) => State::Called(self.client.call(request)),
            Err(error) => State::Failed(Some(error)),
        })
    }
}

/// The future of an [`HttpClient`].
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture(State);

enum State {
    Called(<Client as Service<reqwest::Request>>::Future),
    /// The request is none that reqwest could send.
    Failed(Option<Error>),
}

impl Future for ResponseFuture {
    type Output = Result<Response, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Called(future) => Pin::new(future).poll(cx).map_err(Into::into),
            State::Failed(error) => match error.take() {
                Some(error) => Poll::Ready(Err(error.into())),
                None => Poll::Pending,
            },
        }
    }
}

opaque_debug! { ResponseFuture }

reply!(Response);

impl PeekResponse for Response {
    type Body = Body;
    type Peeked = Self;

    fn untouched(self) -> Self {
        self
    }

    fn open(self) -> (http::Response<()>, BufferedBody<Body>) {
        let url = self.url().clone();
        let (mut parts, body) = http::Response::<Body>::from(self).into_parts();
        // The conversion forgets the URL, and the way back looks for it here.
        if let Ok(with_url) = http::Response::builder().url(url).body(()) {
            parts.extensions.extend(with_url.into_parts().0.extensions);
        }
        let head = http::Response::from_parts(parts, ());
        (head, BufferedBody::new(body))
    }

    fn close(head: http::Response<()>, body: BufferedBody<Body>) -> Self {
        head.map(|()| Body::wrap(body)).into()
    }
}

impl AnyBody for Body {
    fn passing(body: RecordingBody<Self>) -> Self {
        Self::wrap(body)
    }

    fn superseded() -> Option<Error> {
        // reqwest makes its errors itself, of a body that fails.
        let mut body = Self::wrap(Failed(Superseded));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        match Pin::new(&mut body).poll_frame(&mut cx) {
            Poll::Ready(Some(frame)) => frame.err(),
            _ => None,
        }
    }
}

/// A body that fails.
struct Failed(Superseded);

impl http_body::Body for Failed {
    type Data = Bytes;
    type Error = Superseded;

    fn poll_frame(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Superseded>>> {
        Poll::Ready(Some(Err(self.0)))
    }
}

/// A recorded body: the bytes that reqwest has at hand, or a recording of those that pass.
#[derive(Debug)]
pub struct ReqwestRecording(Recorded);

#[derive(Debug)]
enum Recorded {
    Bytes(Bytes),
    Frames(Recording<Body>),
}

impl ReplayBody for Body {
    type Recording = ReqwestRecording;

    fn record(&mut self, room: &ReplayLimits<'_>) -> Option<ReqwestRecording> {
        if self.as_bytes().is_none_or(<[u8]>::is_empty) {
            let recording = replay_buffer::record(self, room)?;
            return Some(ReqwestRecording(Recorded::Frames(recording)));
        }
        // Such a body yields all it has at the first asking, and the way to its bytes that copies
        // nothing is to ask.
        let mut context = Context::from_waker(std::task::Waker::noop());
        match Pin::new(&mut *self).poll_frame(&mut context) {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.into_data().ok()?;
                *self = Self::from(bytes.clone());
                Some(ReqwestRecording(Recorded::Bytes(bytes)))
            }
            _ => None,
        }
    }

    fn is_complete(recording: &ReqwestRecording) -> bool {
        match &recording.0 {
            Recorded::Bytes(_) => true,
            Recorded::Frames(recording) => replay_buffer::can_replay(recording, true),
        }
    }

    fn is_replayable(recording: &ReqwestRecording) -> bool {
        match &recording.0 {
            Recorded::Bytes(_) => true,
            Recorded::Frames(recording) => replay_buffer::can_replay(recording, false),
        }
    }

    fn replay(recording: &ReqwestRecording) -> Option<Self> {
        match &recording.0 {
            Recorded::Bytes(bytes) => Some(Self::from(bytes.clone())),
            Recorded::Frames(recording) => replay_buffer::replay(recording),
        }
    }
}
