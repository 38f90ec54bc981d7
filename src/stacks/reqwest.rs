//! reqwest: a client as the innermost service, and layers as a middleware.
//!
//! [`HttpClient`] takes `http::Request`s and returns `reqwest::Response`s:
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_reprise::{Dependencies, Policy, stacks};
//!
//! # async fn run() -> Result<(), tower_reprise::error::BoxError> {
//! let deps = Dependencies::new(Policy::synchronous().service("checkout").build()?);
//! let mut client = ServiceBuilder::new()
//!     .layer(stacks::client(deps))
//!     .service(stacks::reqwest::HttpClient::new(reqwest::Client::new()));
//!
//! let request = http::Request::get("http://stock.example/items").body(reqwest::Body::default())?;
//! let response: reqwest::Response = client.ready().await?.call(request).await?;
//! println!("{}", response.text().await?);
//! # Ok(())
//! # }
//! ```
//!
//! With the `reqwest-middleware` feature, `TowerMiddleware` puts layers into an existing chain:
//!
//! ```
//! # #[cfg(feature = "reqwest-middleware")]
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use reqwest_middleware::ClientBuilder;
//! use tower_reprise::{Dependencies, Policy, RetryOverride, stacks};
//!
//! let deps = Dependencies::new(Policy::synchronous().service("checkout").build()?);
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
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::Request;
use http_body::Body as _;
use reqwest::{Body, Client, Error, Response, ResponseBuilderExt};
use tower::Service;

use crate::{
    client::{
        peek::{PeekBody, PeekResponse},
        retry::{
            Recording, ReplayBody, ReplayLimits,
            tape::{self, AnyBody, Replayed, Tee},
        },
    },
    error::BoxError,
    http::response::reply,
};

#[cfg(feature = "reqwest-middleware")]
mod exchange;
#[cfg(feature = "reqwest-middleware")]
mod middleware;

#[cfg(feature = "reqwest-middleware")]
pub use self::{
    exchange::{ChainBody, ChainFuture, ChainRecording, ChainService},
    middleware::TowerMiddleware,
};

/// A `reqwest::Client` that takes `http::Request`s, as the layers do.
#[derive(Debug, Clone)]
pub struct HttpClient {
    client: Client,
}

impl HttpClient {
    /// Wraps a client.
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
    /// reqwest can't send the request.
    Failed(Option<Error>),
}

impl Future for ResponseFuture {
    type Output = Result<Response, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Called(future) => Pin::new(future).poll(cx).map_err(Into::into),
            State::Failed(error) => match error.take() {
                Some(error) => Poll::Ready(Err(error.into())),
                None => unreachable!("a future is not polled after it is ready"),
            },
        }
    }
}

impl fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

reply!(Response);

impl PeekResponse for Response {
    type Body = Body;
    type Peeked = Self;

    fn untouched(self) -> Self {
        self
    }

    fn open(self) -> (http::Response<()>, PeekBody<Body>) {
        let url = self.url().clone();
        let (mut parts, body) = http::Response::<Body>::from(self).into_parts();
        // The conversion drops the URL; the one back takes it from this extension.
        if let Ok(with_url) = http::Response::builder().url(url).body(()) {
            parts.extensions.extend(with_url.into_parts().0.extensions);
        }
        let head = http::Response::from_parts(parts, ());
        (head, PeekBody::untouched(body))
    }

    fn close(head: http::Response<()>, body: PeekBody<Body>) -> Self {
        head.map(|()| Body::wrap(body)).into()
    }
}

impl AnyBody for Body {
    fn passing(body: Tee<Self>) -> Self {
        Self::wrap(body)
    }

    fn replayed(body: Replayed<Error>) -> Self {
        Self::wrap(body)
    }
}

/// A recording of a body: its bytes if it is buffered, or the frames as they pass.
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
            let recording = tape::record(self, room)?;
            return Some(ReqwestRecording(Recorded::Frames(recording)));
        }
        // A buffered body yields all its bytes at the first poll, which takes them without a copy.
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

    fn is_whole(recording: &ReqwestRecording) -> bool {
        match &recording.0 {
            Recorded::Bytes(_) => true,
            Recorded::Frames(recording) => tape::is_whole(recording),
        }
    }

    fn replay(recording: &ReqwestRecording) -> Option<Self> {
        match &recording.0 {
            Recorded::Bytes(bytes) => Some(Self::from(bytes.clone())),
            Recorded::Frames(recording) => tape::replay(recording),
        }
    }
}
