use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    mem,
    pin::Pin,
    task::{Context, Poll},
};

use axum_core::{
    body::Body,
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, Response},
};
use http::{Request, StatusCode, request::Parts};
use tower::{Layer, Service, ServiceExt};

use crate::{
    dependency::{Dependencies, Named},
    server::{
        deadline::DeadlineLayer,
        dialect::Scope,
        idempotency::{Execution, IdempotencyLayer},
        inbound_budget::InboundBudgetLayer,
    },
};

crate::http::request_body::rebuilt_as_it_was!([] Body, Body::from);

/// Returns the layers of a server in the right order, as one layer: retries beyond a fifth of the
/// requests are refused, and repeated requests are executed once.
pub fn server<C, L, St, D>(
    inbound: Dependencies<C, L>,
    idempotency: IdempotencyLayer<St, D>,
) -> (InboundBudgetLayer<C, Named>, IdempotencyLayer<St, D>) {
    (InboundBudgetLayer::new(inbound), idempotency)
}

/// Returns the layers of [`server`] with a [`DeadlineLayer`] among them, for a service whose handlers
/// call others: their calls end by the caller's deadline, and do not multiply its retries.
///
/// ```
/// use axum::{Router, routing::post};
/// use tower_reprise::{DeadlineLayer, Dependencies, IdempotencyLayer, Policy, server::dialect::Scope};
/// use tower_reprise::{stacks::axum::server_in_chain, store::{CrashPolicy, MemoryStore}};
///
/// let idempotency = IdempotencyLayer::builder(MemoryStore::new())
///     .scope(Scope::anonymous("everybody"))
///     .crash_policy(CrashPolicy::Reexecute)
///     .build()?;
/// let inbound = Dependencies::new(Policy::http().build()?);
/// let deadlines = DeadlineLayer::new().trust_callers();
///
/// let app: Router = Router::new()
///     .route("/payments", post(|| async { "paid" }))
///     .layer(server_in_chain(inbound, deadlines, idempotency));
/// # let _ = app;
/// # Ok::<(), tower_reprise::error::ConfigError>(())
/// ```
pub fn server_in_chain<C, L, St, D>(
    inbound: Dependencies<C, L>,
    deadlines: DeadlineLayer,
    idempotency: IdempotencyLayer<St, D>,
) -> (
    InboundBudgetLayer<C, Named>,
    DeadlineLayer,
    IdempotencyLayer<St, D>,
) {
    (InboundBudgetLayer::new(inbound), deadlines, idempotency)
}

/// The owner of a request, as an [`OwnerLayer`] leaves it on the request's extensions.
#[derive(Debug, Clone)]
pub struct Owner(pub String);

/// Returns the scope of requests by their [`Owner`]. A request without one is an unknown caller's.
#[must_use]
pub fn owner() -> Scope {
    Scope::new(|head| head.extensions().get().map(|Owner(name)| name.clone()))
}

/// Runs an extractor, and names the owner of idempotency keys and replays by what it finds. It goes
/// above the layers that use the scope [`owner`]. A rejection of the extractor is the response.
///
/// ```
/// use axum::{Router, extract::FromRequestParts, http::{StatusCode, request::Parts}};
/// use tower_reprise::stacks::axum::OwnerLayer;
///
/// struct User { id: String }
///
/// #[derive(Clone)]
/// struct Keys { /* of tokens */ }
///
/// impl FromRequestParts<Keys> for User {
///     type Rejection = StatusCode;
///
///     async fn from_request_parts(parts: &mut Parts, _: &Keys) -> Result<Self, StatusCode> {
///         let token = parts.headers.get("authorization").ok_or(StatusCode::UNAUTHORIZED)?;
///         Ok(User { id: token.to_str().map_err(|_| StatusCode::UNAUTHORIZED)?.to_owned() })
///     }
/// }
///
/// // .scope(stacks::axum::owner()) in the idempotency layer, which is below.
/// let app: Router = Router::new().layer(OwnerLayer::new(Keys {}, |user: &User| user.id.clone()));
/// # let _ = app;
/// ```
#[must_use]
pub struct OwnerLayer<E, T, F> {
    state: T,
    name: F,
    extractor: PhantomData<fn() -> E>,
}

impl<E, T, F, N> OwnerLayer<E, T, F>
where
    F: Fn(&E) -> N,
    N: Into<String>,
{
    /// Names the owner by what the extractor `E` finds, with the router's state.
    pub fn new(state: T, name: F) -> Self {
        Self {
            state,
            name,
            extractor: PhantomData,
        }
    }
}

impl<E, T: Clone, F: Clone> Clone for OwnerLayer<E, T, F> {
    fn clone(&self) -> Self {
        Self {
            state: self.state.clone(),
            name: self.name.clone(),
            extractor: PhantomData,
        }
    }
}

opaque_debug! { OwnerLayer<E, T, F> }

impl<E, T: Clone, F: Clone, S> Layer<S> for OwnerLayer<E, T, F> {
    type Service = OwnerService<S, E, T, F>;

    fn layer(&self, inner: S) -> Self::Service {
        OwnerService {
            inner,
            layer: self.clone(),
        }
    }
}

/// The service of an [`OwnerLayer`].
#[derive(Debug)]
pub struct OwnerService<S, E, T, F> {
    inner: S,
    layer: OwnerLayer<E, T, F>,
}

impl<S: Clone, E, T: Clone, F: Clone> Clone for OwnerService<S, E, T, F> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: self.layer.clone(),
        }
    }
}

impl<S, E, T, F, N, B> Service<Request<B>> for OwnerService<S, E, T, F>
where
    S: Service<Request<B>> + Clone + Send + 'static,
    S::Response: IntoResponse,
    S::Future: Send,
    S::Error: Send,
    E: FromRequestParts<T> + Send,
    T: Clone + Send + Sync + 'static,
    F: Fn(&E) -> N + Clone + Send + 'static,
    N: Into<String>,
    B: Send + 'static,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The clone that was made ready is the one that is called.
        let spare = self.inner.clone();
        let inner = mem::replace(&mut self.inner, spare);
        let OwnerLayer { state, name, .. } = self.layer.clone();
        let (mut parts, body) = request.into_parts();
        Box::pin(async move {
            match E::from_request_parts(&mut parts, &state).await {
                Ok(found) => {
                    let owner = Owner(name(&found).into());
                    drop(found);
                    parts.extensions.insert(owner);
                }
                Err(rejection) => return Ok(rejection.into_response()),
            }
            let response = inner.oneshot(Request::from_parts(parts, body)).await?;
            Ok(response.into_response())
        })
    }
}

/// The handler has no execution, since no idempotency layer is above it, or its request has no key.
#[derive(Debug, Clone, Copy)]
pub struct NoExecution;

impl fmt::Display for NoExecution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no idempotent execution: no `IdempotencyLayer`, or no key")
    }
}

impl std::error::Error for NoExecution {}

impl IntoResponse for NoExecution {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}

impl<T: Send + Sync> FromRequestParts<T> for Execution {
    type Rejection = NoExecution;

    async fn from_request_parts(parts: &mut Parts, _: &T) -> Result<Self, NoExecution> {
        parts.extensions.get().cloned().ok_or(NoExecution)
    }
}

impl<T: Send + Sync> OptionalFromRequestParts<T> for Execution {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &T) -> Result<Option<Self>, Self::Rejection> {
        Ok(parts.extensions.get().cloned())
    }
}
