use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use super::{Replay, accept::Asked, options::Options};
use crate::{
    classify::is_grpc, problem::ProblemBody, store::journal::Journal, wire::problem::Problem,
};

/// Journals requests that can't be served now. See the [module docs](super).
///
/// # Clone
///
/// Clones share the journal.
#[derive(Debug, Clone)]
#[must_use]
pub struct ReplayLayer<J> {
    replay: Replay<J>,
}

impl<J: Clone> ReplayLayer<J> {
    pub(super) fn new(replay: Replay<J>) -> Self {
        Self { replay }
    }
}

impl<S, J: Clone> Layer<S> for ReplayLayer<J> {
    type Service = ReplayService<S, J>;

    fn layer(&self, inner: S) -> Self::Service {
        ReplayService {
            inner,
            replay: self.replay.clone(),
        }
    }
}

/// The service of a [`ReplayLayer`].
#[derive(Debug, Clone)]
pub struct ReplayService<S, J> {
    inner: S,
    replay: Replay<J>,
}

impl<S, J, B, R> Service<Request<B>> for ReplayService<S, J>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    J: Journal + Clone,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Send,
    R: Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<ProblemBody<R>>;
    type Error = S::Error;
    type Future = ReplayFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let state = match self.admit(&request) {
            Ok(None) => State::Passed {
                future: self.inner.call(request),
            },
            Ok(Some(options)) => {
                // The one that was made ready is the one that is called.
                let spare = self.inner.clone();
                let (parts, body) = request.into_parts();
                let asked = Asked {
                    service: mem::replace(&mut self.inner, spare),
                    replay: self.replay.clone(),
                    head: Request::from_parts(parts, ()),
                    options,
                };
                State::Asked {
                    future: Box::pin(asked.answer(body)),
                }
            }
            Err(problem) => {
                crate::release(&mut self.inner);
                State::Refused {
                    response: Some(problem.response(false)),
                }
            }
        };
        ReplayFuture { state }
    }
}

impl<S, J: Journal + Clone> ReplayService<S, J> {
    /// Whether a request is to be replayed if it can't be served, and how.
    fn admit<B: Body>(&self, request: &Request<B>) -> Result<Option<Options>, Problem> {
        let settings = &self.replay.shared.settings;
        let headers = request.headers();
        if !settings.methods.contains(request.method()) || is_grpc(headers) {
            return Ok(None);
        }
        let options = Options::read(headers)?;
        let wanted = options.enabled.unwrap_or(settings.unasked);
        // What is too large to be journaled is served as long as it can be.
        let fits = request.body().size_hint().lower() <= settings.request_limit as u64;
        let serves = !self.replay.maintenance.is_on();
        if !wanted || (!fits && serves) {
            return Ok(None);
        }
        if let Some((url, headers)) = &options.callback {
            self.replay
                .check_callback(url, headers)
                .map_err(|why| Problem::REPLAY_INVALID.detail(why))?;
        }
        Ok(Some(options))
    }
}

type Answer<R, E> = Result<Response<ProblemBody<R>>, E>;

pin_project! {
    /// The future of a [`ReplayService`].
    #[must_use = "futures do nothing unless polled"]
    pub struct ReplayFuture<F, R, E> {
        #[pin]
        state: State<F, R, E>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, R, E> {
        // None of the layer's business.
        Passed { #[pin] future: F },
        // It asks for something that is not offered.
        Refused { response: Option<Response<Bytes>> },
        // It is journaled if it can't be served.
        Asked { future: Pin<Box<dyn Future<Output = Answer<R, E>> + Send>> },
    }
}

impl<F, R, E> fmt::Debug for ReplayFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplayFuture")
    }
}

impl<F, R, E> Future for ReplayFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Answer<R, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Passed { future } => {
                let response = ready!(future.poll(cx))?;
                Poll::Ready(Ok(response.map(ProblemBody::reply)))
            }
            StateProj::Refused { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response.map(Into::into))),
                None => Poll::Pending,
            },
            StateProj::Asked { future } => future.as_mut().poll(cx),
        }
    }
}
