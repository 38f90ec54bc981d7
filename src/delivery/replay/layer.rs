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

use super::{
    Replay,
    accept::Asked,
    dialect::{Refusal, Wish},
};
use crate::{
    http::{BufferedBody, grpc::is_grpc},
    store::journal::Journal,
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
    R: Body + Send + 'static,
    R::Error: Send,
{
    type Response = Response<BufferedBody<R>>;
    type Error = S::Error;
    type Future = ReplayFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let head = Request::from_parts(parts, ());
        let state = match self.admit(&head, &body) {
            Ok(None) => State::Passed {
                future: self.inner.call(head.map(|()| body)),
            },
            Ok(Some(wish)) => {
                // The one that was made ready is the one that is called.
                let spare = self.inner.clone();
                let asked = Asked {
                    service: mem::replace(&mut self.inner, spare),
                    replay: self.replay.clone(),
                    head,
                    wish,
                };
                State::Asked {
                    future: Box::pin(asked.answer(body)),
                }
            }
            Err(response) => {
                crate::call::release(&mut self.inner);
                State::Refused {
                    response: Some(*response),
                }
            }
        };
        ReplayFuture { state }
    }
}

impl<S, J: Journal + Clone> ReplayService<S, J> {
    /// What a request asks for, as far as that is this layer's business.
    fn admit<B: Body>(&self, head: &Request<()>, body: &B) -> Result<Option<Wish>, Refusal> {
        let closed = self.replay.is_closed_to(head);
        let Some(wish) = self.wish(head)? else {
            return match closed {
                true => {
                    let problem = self.replay.maintenance.problem();
                    Err(Box::new(problem.response(is_grpc(head.headers()))))
                }
                false => Ok(None),
            };
        };
        // What is too large to be journaled is served as long as it can be.
        let limit = self.replay.shared.settings.request_limit;
        let fits = body.size_hint().lower() <= limit as u64;
        if !fits && !closed {
            return Ok(None);
        }
        if let Wish::Replay(options) = &wish {
            self.replay.check(options, &[])?;
        }
        Ok(Some(wish))
    }

    fn wish(&self, head: &Request<()>) -> Result<Option<Wish>, Refusal> {
        let settings = &self.replay.shared.settings;
        if !settings.methods.contains(head.method()) || is_grpc(head.headers()) {
            return Ok(None);
        }
        Ok(match settings.dialect.speak().of_head(head)? {
            Wish::Replay(options) if !self.replay.wants(&options) => None,
            Wish::Foreign => None,
            wish => Some(wish),
        })
    }
}

type Answer<R, E> = Result<Response<BufferedBody<R>>, E>;

pin_project! {
    /// The future of a [`ReplayService`].
    #[must_use = "futures do nothing unless polled"]
    pub struct ReplayFuture<F, R: Body, E> {
        #[pin]
        state: State<F, R, E>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, R: Body, E> {
        // None of the layer's business.
        Passed { #[pin] future: F },
        // It asks for something that is not offered.
        Refused { response: Option<Response<Bytes>> },
        // It is journaled if it can't be served, or is about what was.
        Asked { future: Pin<Box<dyn Future<Output = Answer<R, E>> + Send>> },
    }
}

impl<F, R: Body, E> fmt::Debug for ReplayFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplayFuture")
    }
}

impl<F, R, E> Future for ReplayFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Body,
{
    type Output = Answer<R, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Passed { future } => {
                let response = ready!(future.poll(cx))?;
                Poll::Ready(Ok(response.map(BufferedBody::untouched)))
            }
            StateProj::Refused { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response.map(BufferedBody::from))),
                None => Poll::Pending,
            },
            StateProj::Asked { future } => future.as_mut().poll(cx),
        }
    }
}
