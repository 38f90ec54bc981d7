use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use super::account;
use crate::{
    classify::{Standard, is_grpc},
    dependency::{ByAuthority, Dependencies, Locate, Lookup},
    error::ConfigError,
    retry::Counted,
    wire::http::do_not_retry,
};

/// Refuses inbound retries over the budget. Made by
/// [`RetryBudgetLayer::inbound`](super::RetryBudgetLayer::inbound).
#[derive(Debug, Clone)]
#[must_use]
pub struct InboundRetryBudgetLayer<C = Standard, L = ByAuthority> {
    pub(super) deps: Dependencies<C, L>,
    pub(super) status: StatusCode,
}

impl<C, L> InboundRetryBudgetLayer<C, L> {
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
        InboundRetryBudget {
            inner,
            lookup: Lookup::new(self.deps.clone()),
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
    status: StatusCode,
}

impl<S, C, L, B, R> Service<Request<B>> for InboundRetryBudget<S, C, L>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    L: Locate<Request<B>> + Clone,
    C: Clone,
    R: From<Bytes>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = InboundRetryBudgetFuture<S::Future, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        // What a client in this process counted, this server has not.
        request.extensions_mut().remove::<Counted>();
        let dependency = Arc::clone(self.lookup.find(&request));
        let grpc = is_grpc(request.headers());
        let state = match account(&self.lookup.deps, &dependency, &mut request) {
            Ok(()) => {
                request.extensions_mut().remove::<Counted>();
                State::Called {
                    future: self.inner.call(request),
                }
            }
            Err(_) => {
                crate::release(&mut self.inner);
                let response = do_not_retry(self.status, grpc).map(R::from);
                State::Refused {
                    response: Some(response),
                }
            }
        };
        InboundRetryBudgetFuture { state }
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
