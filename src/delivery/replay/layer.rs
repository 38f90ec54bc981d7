use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use super::{
    Replay,
    accept::ReplayableRequest,
    dialect::{Rejected, ReplayRequest},
};
use crate::{
    http::{BufferedBody, RequestBody, grpc::is_grpc},
    server::idempotency::{AnswerFuture, ReplyResult},
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
    S: Service<Request<B::Rebuilt>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    J: Journal + Clone,
    B: RequestBody + Send + 'static,
    B::Data: Send,
    B::Error: Send,
    B::Rebuilt: Send,
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
            Ok(None) => AnswerFuture::Passed {
                future: self.inner.call(head.map(|()| body.untouched())),
            },
            Ok(Some(asks)) => {
                let request = ReplayableRequest {
                    service: crate::call::take_ready(&mut self.inner),
                    replay: self.replay.clone(),
                    head,
                    asks,
                };
                AnswerFuture::Stored {
                    future: Box::pin(request.answer(body)),
                }
            }
            Err(response) => {
                crate::call::release(&mut self.inner);
                AnswerFuture::Rejected {
                    response: Some(*response),
                }
            }
        };
        ReplayFuture { state }
    }
}

impl<S, J: Journal + Clone> ReplayService<S, J> {
    /// Returns what a request asks of this layer; `None` if it is passed on.
    fn admit<B: Body>(
        &self,
        head: &Request<()>,
        body: &B,
    ) -> Result<Option<ReplayRequest>, Rejected> {
        let closed = self.replay.is_closed_to(head);
        let Some(asks) = self.asks(head)? else {
            return match closed {
                true => {
                    let problem = self.replay.maintenance.problem();
                    Err(Box::new(problem.response(is_grpc(head.headers()))))
                }
                false => Ok(None),
            };
        };
        // A request that is too large for the journal is served as long as it can be.
        let limit = self.replay.state.settings.request_limit;
        let fits = body.size_hint().lower() <= limit as u64;
        if !fits && !closed {
            return Ok(None);
        }
        if let ReplayRequest::Serve(options) = &asks {
            self.replay.check(options, &[])?;
        }
        Ok(Some(asks))
    }

    fn asks(&self, head: &Request<()>) -> Result<Option<ReplayRequest>, Rejected> {
        let settings = &self.replay.state.settings;
        if !settings.methods.contains(head.method()) || is_grpc(head.headers()) {
            return Ok(None);
        }
        Ok(match settings.dialect.asks_by_head(head)? {
            ReplayRequest::Serve(options) if !self.replay.wants(&options) => None,
            ReplayRequest::Foreign => None,
            asks => Some(asks),
        })
    }
}

pin_project! {
    /// The future of a [`ReplayService`].
    #[must_use = "futures do nothing unless polled"]
    pub struct ReplayFuture<F, R: Body, E> {
        #[pin]
        state: AnswerFuture<F, R, E>,
    }
}

opaque_debug! { ReplayFuture<F, R: Body, E> }

impl<F, R, E> Future for ReplayFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Body,
{
    type Output = ReplyResult<R, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().state.poll(cx)
    }
}
