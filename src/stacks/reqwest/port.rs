//! How layers that live as long as the client reach a chain that is lent to one call.

use std::{
    error, fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use http::{Request, Uri};
use reqwest::{Body, Response, Url};
use tower::Service;

use crate::error::BoxError;

tokio::task_local! {
    /// The port of the call that is being polled.
    static PORT: Arc<Port>;
}

/// One call's way from its layers to the chain.
#[derive(Debug)]
pub(super) struct Port {
    state: Mutex<State>,
    /// What the layers want to be called.
    wanted: Mutex<Option<Request<Body>>>,
    /// The URL as it came, which spares the first attempt to parse one.
    url: Mutex<Option<Url>>,
}

#[derive(Debug)]
enum State {
    /// Nothing is called.
    Closed,
    /// Somebody waits for an answer.
    Open,
    /// This came back.
    Answered(Result<Response, BoxError>),
}

impl Port {
    pub(super) fn new(url: Url) -> Self {
        Self {
            state: Mutex::new(State::Closed),
            wanted: Mutex::new(None),
            url: Mutex::new(Some(url)),
        }
    }

    /// A future whose calls go through this port.
    pub(super) fn scope<F: Future>(port: Arc<Self>, future: F) -> impl Future<Output = F::Output> {
        PORT.scope(port, future)
    }

    /// What is to be called, once.
    pub(super) fn wanted(&self) -> Option<Request<Body>> {
        lock(&self.wanted).take()
    }

    pub(super) fn wants(&self) -> bool {
        lock(&self.wanted).is_some()
    }

    /// Whether somebody waits for an answer.
    pub(super) fn is_open(&self) -> bool {
        matches!(*self.state(), State::Open)
    }

    pub(super) fn answer(&self, result: Result<Response, BoxError>) {
        *self.state() = State::Answered(result);
    }

    /// The request as reqwest's own.
    pub(super) fn to_reqwest(
        &self,
        request: Request<Body>,
    ) -> Result<reqwest::Request, reqwest::Error> {
        let url = lock(&self.url).take();
        match url.filter(|url| is_same(url, request.uri())) {
            // What reqwest keeps in extensions survives only in its own conversion.
            Some(url) if request.extensions().is_empty() => {
                let (parts, body) = request.into_parts();
                let mut request = reqwest::Request::new(parts.method, url);
                *request.headers_mut() = parts.headers;
                *request.version_mut() = parts.version;
                *request.body_mut() = Some(body);
                Ok(request)
            }
            _ => request.try_into(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a URL without its fragment is this URI.
fn is_same(url: &Url, uri: &Uri) -> bool {
    let rest = || {
        let rest = url.as_str().strip_prefix(uri.scheme_str()?)?;
        let rest = rest.strip_prefix("://")?;
        let rest = rest.strip_prefix(uri.authority()?.as_str())?;
        rest.strip_prefix(uri.path_and_query()?.as_str())
    };
    rest().is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
}

/// The innermost service of a [`Stacked`](super::Stacked): what comes next in the chain.
#[derive(Debug, Clone)]
pub struct Hop(());

impl Hop {
    pub(super) fn new() -> Self {
        Self(())
    }
}

impl Service<Request<Body>> for Hop {
    type Response = Response;
    type Error = BoxError;
    type Future = HopFuture;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> HopFuture {
        let port = PORT.try_with(Arc::clone).ok();
        let free = port.filter(|port| {
            let mut state = port.state();
            let free = matches!(*state, State::Closed);
            if free {
                *state = State::Open;
                *lock(&port.wanted) = Some(request);
            }
            free
        });
        HopFuture { port: free }
    }
}

/// The future of a [`Hop`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct HopFuture {
    port: Option<Arc<Port>>,
}

impl Future for HopFuture {
    type Output = Result<Response, BoxError>;

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(port) = self.port.as_ref() else {
            return Poll::Ready(Err(Misplaced.into()));
        };
        let mut state = port.state();
        match mem::replace(&mut *state, State::Closed) {
            State::Answered(result) => Poll::Ready(result),
            other => {
                *state = other;
                // Who drives the attempt looks here again when there is an answer.
                Poll::Pending
            }
        }
    }
}

impl Drop for HopFuture {
    fn drop(&mut self) {
        if let Some(port) = &self.port {
            *port.state() = State::Closed;
            *lock(&port.wanted) = None;
        }
    }
}

/// A layer called from another task, or twice at a time.
#[derive(Debug)]
struct Misplaced;

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("layers of a middleware call in their own task, one attempt at a time")
    }
}

impl error::Error for Misplaced {}
