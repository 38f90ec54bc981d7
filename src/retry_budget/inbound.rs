use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use super::account;
use crate::{
    classify::{Standard, is_grpc},
    dependency::{ByAuthority, Dependencies, LastSlot, Locate, Lookup},
    error::ConfigError,
    retry::{Attempt, Counted},
    wire::problem::Problem,
};

/// Refuses inbound retries over the budget. Made by
/// [`RetryBudgetLayer::inbound`](super::RetryBudgetLayer::inbound).
#[derive(Debug, Clone)]
#[must_use]
pub struct InboundRetryBudgetLayer<C = Standard, L = ByAuthority> {
    deps: Dependencies<C, L>,
    status: StatusCode,
}

impl<C, L> InboundRetryBudgetLayer<C, L> {
    pub(super) fn new(deps: Dependencies<C, L>) -> Self {
        Self {
            deps,
            status: StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// Refuses with this status: 429, or 503.
    ///
    /// # Errors
    ///
    /// Any other status.
    pub fn status(mut self, status: StatusCode) -> Result<Self, ConfigError> {
        if !matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        ) {
            return Err(ConfigError::new(
                None,
                "inbound.status",
                status.as_u16(),
                "429 or 503",
            ));
        }
        self.status = status;
        Ok(self)
    }
}

impl<S, C: Clone, L: Clone> Layer<S> for InboundRetryBudgetLayer<C, L> {
    type Service = InboundRetryBudget<S, C, L>;

    fn layer(&self, inner: S) -> Self::Service {
        self.deps.counts_originals();
        InboundRetryBudget {
            inner,
            lookup: Lookup::new(self.deps.clone()),
            slot: LastSlot::default(),
            status: self.status,
        }
    }
}

/// The service of an [`InboundRetryBudgetLayer`].
///
/// # Clone
///
/// All state is in the registry, so clones share the budget.
#[derive(Debug, Clone)]
pub struct InboundRetryBudget<S, C = Standard, L = ByAuthority> {
    inner: S,
    lookup: Lookup<C, L>,
    slot: LastSlot,
    status: StatusCode,
}

impl<S, C, L, B, R> Service<Request<B>> for InboundRetryBudget<S, C, L>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    L: Locate<Request<B>>,
    R: From<Bytes>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = InboundRetryBudgetFuture<S::Future, R>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    #[inline(always)]
    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        forget_client(&mut request);
        let grpc = is_grpc(request.headers());
        let (deps, dependency) = self.lookup.find(&request);
        let state = match account(deps, dependency, &mut self.slot, &mut request) {
            Ok(()) => {
                forget_client(&mut request);
                State::Called {
                    future: self.inner.call(request),
                }
            }
            Err(_) => {
                crate::release(&mut self.inner);
                let problem = match self.status {
                    StatusCode::SERVICE_UNAVAILABLE => Problem::RETRY_BUDGET.unavailable(),
                    _ => Problem::RETRY_BUDGET,
                };
                let response = problem.response(grpc).map(R::from);
                State::Refused {
                    response: Some(response),
                }
            }
        };
        InboundRetryBudgetFuture { state }
    }
}

/// What a client counted and charged, in this process or by the layer here, is nothing to the
/// server or client that gets the request next.
fn forget_client<B>(request: &mut Request<B>) {
    let extensions = request.extensions_mut();
    extensions.remove::<Counted>();
    if let Some(attempt) = extensions.get_mut::<Attempt>() {
        *attempt = Attempt::retry(attempt.previous());
    }
}

pin_project! {
    /// The future of an [`InboundRetryBudget`] service.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct InboundRetryBudgetFuture<F, R> {
        #[pin]
        state: State<F, R>,
    }
}

pin_project! {
    #[project = StateProj]
    #[derive(Debug)]
    enum State<F, R> {
        // The call is on its way in.
        Called { #[pin] future: F },
        // It is one retry too many.
        Refused { response: Option<Response<R>> },
    }
}

impl<F, R, E> Future for InboundRetryBudgetFuture<F, R>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.project().state.project() {
            StateProj::Called { future } => future.poll(cx),
            StateProj::Refused { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response)),
                None => Poll::Pending,
            },
        }
    }
}
