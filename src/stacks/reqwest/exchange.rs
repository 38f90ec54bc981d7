//! The exchange of a call, and the innermost service that leaves attempts at it.

use std::{
    error, fmt,
    future::Future,
    mem,
    ops::Deref,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::{Extensions, Request, Uri};
use http_body::{Body as _, Frame, SizeHint};
use reqwest::{Body, Response, Url};
use reqwest_middleware::Error;
use tower::Service;

use super::ReqwestRecording;
use crate::{
    call::Attempt,
    client::retry::{ReplayBody, ReplayLimits},
    error::BoxError,
};

/// The place where the layers and the chain of one call meet.
#[derive(Debug, Default)]
pub(super) struct Exchange(Mutex<State>);

#[derive(Debug, Default)]
pub(super) struct State {
    stage: Stage,
    /// The attempt to send. Before the first one it is the call's request without what the layers
    /// were given: so its URL is parsed once, and what only reqwest can read stays with it.
    request: Option<reqwest::Request>,
    number: Option<Attempt>,
    reply: Option<Result<Response, Error>>,
    /// What an `http::Request` does not have, for a request made anew.
    fragment: Option<String>,
    timeout: Option<Duration>,
    /// Where the call goes. It stays for the next one, which is spared 1 allocation if it goes
    /// there too.
    uri: Uri,
    /// Wakes the task that waits for the reply.
    receiver: Option<Waker>,
    /// Wakes the task of the call, which sends.
    sender: Option<Waker>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Stage {
    /// No attempt is open.
    #[default]
    Idle,
    Requested,
    Sent,
    Answered,
    /// The call ended.
    Closed,
}

impl Exchange {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state_mut(&mut self) -> &mut State {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens an attempt, unless there is one.
    fn request(&self, request: Request<ChainBody>) -> bool {
        let mut state = self.lock();
        if !matches!(state.stage, Stage::Idle) {
            return false;
        }
        state.stage = match state.put(request) {
            Ok(()) => Stage::Requested,
            Err(error) => {
                state.reply = Some(Err(error.into()));
                Stage::Answered
            }
        };
        let sender = state.sender.take();
        drop(state);
        wake(sender);
        true
    }

    /// Returns the stage, and has this task woken when the layers change it.
    pub(super) fn stage(&self, cx: &Context<'_>) -> Stage {
        let mut state = self.lock();
        let known = state.sender.as_ref();
        if known.is_none_or(|sender| !sender.will_wake(cx.waker())) {
            state.sender = Some(cx.waker().clone());
        }
        state.stage
    }

    /// Answers the attempt that was sent. The task of this context polls the layers next, so only
    /// another one is woken.
    pub(super) fn answer(&self, result: Result<Response, Error>, cx: &Context<'_>) {
        let mut state = self.lock();
        if matches!(state.stage, Stage::Sent) {
            state.stage = Stage::Answered;
            state.reply = Some(result);
            let receiver = state.receiver.take();
            drop(state);
            wake(receiver.filter(|receiver| !receiver.will_wake(cx.waker())));
        }
    }

    /// Ends the attempt, and wakes both sides. A closed exchange stays closed: a request that is left
    /// at it would wait forever.
    fn end(&self, stage: Stage) {
        let mut state = self.lock();
        if !matches!(state.stage, Stage::Closed) {
            state.stage = stage;
        }
        let ended = (state.request.take(), state.reply.take());
        let (receiver, sender) = (state.receiver.take(), state.sender.take());
        drop(state);
        drop(ended);
        wake(receiver);
        wake(sender);
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl State {
    /// Starts a call, unless its URL is no URI: then the request is returned.
    pub(super) fn open(&mut self, request: reqwest::Request) -> Result<(), Box<reqwest::Request>> {
        let request = self.request.insert(request);
        let url = request.url();
        if !is_same(url, &self.uri) {
            match Uri::try_from(url.as_str()) {
                Ok(uri) => self.uri = uri,
                Err(_) => return self.request.take().map_or(Ok(()), |r| Err(Box::new(r))),
            }
        }
        self.fragment = url.fragment().map(str::to_owned);
        self.timeout = request.timeout().copied();
        Ok(())
    }

    /// Makes the request to send of one that the layers called with.
    fn put(&mut self, mut request: Request<ChainBody>) -> Result<(), reqwest::Error> {
        self.number = request.extensions().get().copied();
        let sent = match &mut self.request {
            Some(first) if is_same(first.url(), request.uri()) => {
                self.uri = mem::take(request.uri_mut());
                first
            }
            _ => self.anew(mem::take(request.uri_mut()))?,
        };
        mem::swap(sent.method_mut(), request.method_mut());
        mem::swap(sent.version_mut(), request.version_mut());
        mem::swap(sent.headers_mut(), request.headers_mut());
        // A request without a body is sent as one.
        let body = &mut request.body_mut().body;
        *sent.body_mut() = (!body.is_end_stream()).then(|| mem::take(body));
        Ok(())
    }

    #[cold]
    fn anew(&mut self, uri: Uri) -> Result<&mut reqwest::Request, reqwest::Error> {
        let mut target = Request::new(Body::default());
        *target.uri_mut() = uri;
        let mut request = reqwest::Request::try_from(target)?;
        if self.fragment.is_some() {
            request.url_mut().set_fragment(self.fragment.as_deref());
        }
        if self.timeout.is_some() {
            *request.timeout_mut() = self.timeout;
        }
        Ok(self.request.insert(request))
    }

    /// Takes the attempt to send, if there is one.
    pub(super) fn take_request(&mut self) -> Option<reqwest::Request> {
        if !matches!(self.stage, Stage::Requested) {
            return None;
        }
        self.stage = Stage::Sent;
        self.request.take()
    }

    /// Takes the number of the attempt, if it is not the first.
    pub(super) fn take_number(&mut self) -> Option<Attempt> {
        self.number.take()
    }

    /// Forgets the call, but not where it went, unless that has credentials or is long.
    pub(super) fn clear(&mut self) {
        const LONGEST: usize = 1024;
        let authority = self
            .uri
            .authority()
            .map_or("", |authority| authority.as_str());
        let path = self.uri.path_and_query().map_or("", |path| path.as_str());
        if authority.contains('@') || path.len() > LONGEST {
            self.uri = Uri::default();
        }
        (self.stage, self.request, self.reply) = (Stage::Idle, None, None);
        (self.fragment, self.receiver, self.sender) = (None, None, None);
    }
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

/// The exchange of a call, which is closed when it is dropped.
#[derive(Debug, Default)]
pub(super) struct CallExchange(pub(super) Arc<Exchange>);

impl CallExchange {
    /// Returns the state of an exchange that the layers do not have yet.
    pub(super) fn state_mut(&mut self) -> &mut State {
        match Arc::get_mut(&mut self.0) {
            Some(exchange) => exchange.state_mut(),
            None => unreachable!(
                "only a recycled or new exchange is opened, and its owner has it alone"
            ),
        }
    }

    /// Returns the request that the layers are called with.
    pub(super) fn first(&mut self, extensions: &Extensions) -> Request<ChainBody> {
        let mut first = Request::new(ChainBody::default());
        let state = self.state_mut();
        mem::swap(first.uri_mut(), &mut state.uri);
        if let Some(request) = &mut state.request {
            mem::swap(first.method_mut(), request.method_mut());
            mem::swap(first.version_mut(), request.version_mut());
            mem::swap(first.headers_mut(), request.headers_mut());
            first.body_mut().body = request.body_mut().take().unwrap_or_default();
        }
        if !extensions.is_empty() {
            first.extensions_mut().clone_from(extensions);
        }
        first.body_mut().exchange = Some(self.0.clone());
        first
    }
}

impl Deref for CallExchange {
    type Target = Exchange;

    fn deref(&self) -> &Exchange {
        &self.0
    }
}

impl Drop for CallExchange {
    fn drop(&mut self) {
        self.0.end(Stage::Closed);
    }
}

/// The innermost service of a [`TowerMiddleware`](super::TowerMiddleware): the rest of the chain.
#[derive(Debug, Clone)]
pub struct ChainService(());

impl ChainService {
    pub(super) fn new() -> Self {
        Self(())
    }
}

impl Service<Request<ChainBody>> for ChainService {
    type Response = Response;
    type Error = BoxError;
    type Future = ChainFuture;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<ChainBody>) -> ChainFuture {
        let exchange = request.body_mut().exchange.take();
        ChainFuture(exchange.filter(|exchange| exchange.request(request)))
    }
}

/// The future of a [`ChainService`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct ChainFuture(Option<Arc<Exchange>>);

impl Future for ChainFuture {
    type Output = Result<Response, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(exchange) = &self.0 else {
            return Poll::Ready(Err(Misplaced.into()));
        };
        let mut state = exchange.lock();
        if let Stage::Requested | Stage::Sent = state.stage {
            state.receiver = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let result = match state.reply.take() {
            Some(reply) => {
                state.stage = Stage::Idle;
                reply.map_err(inner)
            }
            None => Err(Misplaced.into()),
        };
        drop(state);
        self.0 = None;
        Poll::Ready(result)
    }
}

impl Drop for ChainFuture {
    fn drop(&mut self) {
        if let Some(exchange) = &self.0 {
            exchange.end(Stage::Idle);
        }
    }
}

/// reqwest's body, on its way through the layers of a [`TowerMiddleware`](super::TowerMiddleware).
///
/// It belongs to one call. [`Default`] is a body that belongs to none, and can't be sent.
#[derive(Debug, Default)]
pub struct ChainBody {
    body: Body,
    exchange: Option<Arc<Exchange>>,
}

impl ChainBody {
    /// Returns another body for a request of the same call.
    #[must_use]
    pub fn with(&self, body: Body) -> Self {
        let exchange = self.exchange.clone();
        Self { body, exchange }
    }
}

impl http_body::Body for ChainBody {
    type Data = Bytes;
    type Error = reqwest::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, reqwest::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        http_body::Body::size_hint(&self.body)
    }
}

/// A recording of a [`ChainBody`].
#[derive(Debug)]
pub struct ChainRecording {
    recording: ReqwestRecording,
    exchange: Option<Arc<Exchange>>,
}

impl ReplayBody for ChainBody {
    type Recording = ChainRecording;

    fn record(&mut self, limits: &ReplayLimits<'_>) -> Option<ChainRecording> {
        Some(ChainRecording {
            recording: self.body.record(limits)?,
            exchange: self.exchange.clone(),
        })
    }

    fn is_whole(recording: &ChainRecording) -> bool {
        Body::is_whole(&recording.recording)
    }

    fn replay(recording: &ChainRecording) -> Option<Self> {
        Some(Self {
            body: Body::replay(&recording.recording)?,
            exchange: recording.exchange.clone(),
        })
    }
}

/// An error of the chain, as the layers see it.
fn inner(error: Error) -> BoxError {
    match error {
        Error::Reqwest(error) => error.into(),
        error => ChainError(error).into(),
    }
}

/// An error that a middleware made. Its source is the error itself, so that it is classified by
/// its type, which `Error::Middleware` hides.
#[derive(Debug)]
pub(super) struct ChainError(pub(super) Error);

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl error::Error for ChainError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match &self.0 {
            Error::Middleware(error) => Some(&**error),
            Error::Reqwest(error) => Some(error),
        }
    }
}

/// A request without an exchange, or with one that is busy or closed.
#[derive(Debug)]
struct Misplaced;

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a layer of a middleware sent a request that is not the call's, or a second one while \
             the first was on its way: keep the body that the layer was called with, and send one \
             at a time",
        )
    }
}

impl error::Error for Misplaced {}
