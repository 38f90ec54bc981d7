//! Refuse inbound retries over a budget.
//!
//! [`InboundBudgetLayer`] counts the requests that reach a server and refuses retries beyond a fifth
//! of them with a response that tells the client not to try again (`x-should-retry: false`, and
//! `grpc-retry-pushback-ms: -1` for gRPC). The service's error type does not change.
//!
//! # When to use it
//!
//! At the edge of a server whose clients retry more than their share.
//!
//! Not as a rate limit: it does not bound originals, and sees only retries that say so (below).
//!
//! # Defaults
//!
//! | setting | default |
//! | --- | --- |
//! | [`status`](InboundBudgetLayer::status) | 429 |
//! | budget | one for all requests, a fifth of the originals or ten in 30 s, by the registry's policy |
//!
//! ```
//! use axum::{Router, routing::get};
//! use tower_reprise::{Dependencies, InboundBudgetLayer, Policy};
//!
//! let inbound = Dependencies::new(Policy::http().service("edge").build()?);
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "ok" }))
//!     .layer(InboundBudgetLayer::new(inbound));
//! # let _ = app;
//! # Ok::<(), tower_reprise::error::ConfigError>(())
//! ```
//!
//! # Retries that say so
//!
//! Retries over gRPC say that they are retries; over plain HTTP those of this crate do with
//! [`send_attempt_count`]. A service that passes that header on, as a proxy does, or that has a
//! [`DeadlineLayer`](crate::DeadlineLayer), keeps a whole chain within one budget. Without it each hop
//! takes the retries of the one before for originals, and three budgets of a fifth make 1.73 requests
//! of each (`cargo run --release --example simulate -- --only chain`).
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | retries beyond the budget are refused before the service is called, and told not to come again | that retries which do not say so are recognised |
//! | originals are never refused | one budget for several processes |
//!
//! # What goes wrong
//!
//! | mistake | what happens | instead |
//! | --- | --- | --- |
//! | [`InboundBudgetLayer::located`] with a registry that locates by authority | the peer chooses the `Host` header, and with it a fresh budget | locate by a tenant, or [`InboundBudgetLayer::new`] |
//! | one registry for inbound and outbound requests of the same name | they share one budget | a registry for each |
//! | a chain of services that drop the attempt header | each hop takes retries for originals | pass it on, or [`send_attempt_count`] at each hop |
//!
//! [`send_attempt_count`]: crate::policy::PolicyBuilder::send_attempt_count

use std::{
    future::{Future, Ready, ready},
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response, StatusCode};
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use crate::{
    call::{Attempt, Effect, budget_mark::BudgetMark},
    classify::Standard,
    dependency::{
        Accounting, ByAuthority, Dependencies, DependencyCache, LastSlot, Locate, Named, account,
    },
    error::ConfigError,
    http::{grpc::is_grpc, problem::Problem},
    server::problem::ProblemBody,
};

/// Refuses inbound retries over the budget with a response. See the [module docs](self).
#[derive(Debug, Clone)]
#[must_use]
pub struct InboundBudgetLayer<C = Standard, L = ByAuthority> {
    deps: Dependencies<C, L>,
    status: StatusCode,
}

impl<C> InboundBudgetLayer<C, Named> {
    /// Makes a layer with one budget, the registry's entry named `inbound`, for all requests.
    pub fn new<L>(deps: Dependencies<C, L>) -> Self {
        InboundBudgetLayer::located(deps.relocated(Named("inbound".into())))
    }
}

impl<C, L> InboundBudgetLayer<C, L> {
    /// Makes a layer with a budget for each entry that the registry's locator finds: a tenant, or
    /// something else that a peer can't make up.
    pub fn located(deps: Dependencies<C, L>) -> Self {
        Self {
            deps,
            status: StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// Sets the status of refusals: 429 or 503.
    ///
    /// # Errors
    ///
    /// For any other status.
    pub fn status(mut self, status: StatusCode) -> Result<Self, ConfigError> {
        if !matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        ) {
            let (field, allowed) = ("inbound.status", "429 or 503");
            return Err(ConfigError::new(None, field, status.as_u16(), allowed));
        }
        self.status = status;
        Ok(self)
    }
}

impl<S, C: Clone, L: Clone> Layer<S> for InboundBudgetLayer<C, L> {
    type Service = InboundBudget<S, C, L>;

    fn layer(&self, inner: S) -> Self::Service {
        InboundBudget {
            inner,
            cache: DependencyCache::new(self.deps.clone()),
            slot: LastSlot::default(),
            status: self.status,
        }
    }
}

/// The service of an [`InboundBudgetLayer`].
///
/// # Clone
///
/// All state is in the registry, so clones share the budget.
#[derive(Debug, Clone)]
pub struct InboundBudget<S, C = Standard, L = ByAuthority> {
    inner: S,
    cache: DependencyCache<C, L>,
    slot: LastSlot,
    status: StatusCode,
}

impl<S, C, L, B, R> Service<Request<B>> for InboundBudget<S, C, L>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    L: Locate<Request<B>>,
{
    type Response = Response<ProblemBody<R>>;
    type Error = S::Error;
    type Future = InboundBudgetFuture<S::Future, R>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    #[inline(always)]
    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        forget_client(&mut request);
        let grpc = is_grpc(request.headers());
        let (_, dependency) = self.cache.find(&request);
        let part = Accounting::Unmarked;
        let state = match account(dependency, &mut self.slot, &mut request, part) {
            Ok(_) => State::Called {
                future: self.inner.call(request),
            },
            Err(_) => {
                crate::call::release(&mut self.inner);
                let problem = match self.status {
                    StatusCode::SERVICE_UNAVAILABLE => Problem::RETRY_BUDGET.unavailable(),
                    _ => Problem::RETRY_BUDGET,
                };
                let mut response = problem.response(grpc).map(ProblemBody::from);
                response.extensions_mut().insert(Effect::None);
                State::Refused {
                    response: ready(response),
                }
            }
        };
        InboundBudgetFuture { state }
    }
}

/// Removes the marks of a client in this process: its budget is not the server's, nor that of the
/// clients that the server calls with this request.
fn forget_client<B>(request: &mut Request<B>) {
    let extensions = request.extensions_mut();
    extensions.remove::<BudgetMark>();
    if let Some(attempt) = extensions.get_mut::<Attempt>() {
        *attempt = Attempt::retry(attempt.previous());
    }
}

pin_project! {
    /// The future of an [`InboundBudget`] service.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct InboundBudgetFuture<F, R> {
        #[pin]
        state: State<F, R>,
    }
}

pin_project! {
    #[project = StateProj]
    #[derive(Debug)]
    enum State<F, R> {
        Called { #[pin] future: F },
        // A retry over the budget is answered here.
        Refused { response: Ready<Response<ProblemBody<R>>> },
    }
}

impl<F, R, E> Future for InboundBudgetFuture<F, R>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<ProblemBody<R>>, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Called { future } => future
                .poll(cx)
                .map_ok(|reply| reply.map(ProblemBody::reply)),
            StateProj::Refused { response } => Pin::new(response).poll(cx).map(Ok),
        }
    }
}
