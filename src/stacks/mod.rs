//! The layers on existing clients and servers.
//!
//! | stack | feature | needs |
//! | --- | --- | --- |
//! | hyper-util | `hyper` | nothing: the layers go straight onto its `Client` |
//! | tonic | `tonic` | [`tonic::StatusLayer`] on top, so that a refusal is an `UNAVAILABLE` |
//! | reqwest | `reqwest` | [`reqwest::HttpClient`] as the innermost service |
//! | reqwest-middleware | `reqwest-middleware` | [`reqwest::TowerMiddleware`] around any of the layers |
//! | axum | `axum` | [`axum::infallible`] around client layers, so that a refusal is a 503; [`axum::server`](mod@axum) for server layers |
//!
//! [`client()`] returns all client layers in the right order.

// The table links to items of all stacks.
#![cfg_attr(not(feature = "full"), allow(rustdoc::broken_intra_doc_links))]

#[cfg(feature = "axum")]
pub mod axum;
#[cfg(feature = "reqwest")]
pub mod reqwest;
#[cfg(feature = "tonic")]
pub mod tonic;
#[cfg(feature = "tracing")]
mod traced;

#[cfg(feature = "tracing")]
pub use self::traced::{TracedLayers, traced};
use crate::{
    classify::Standard,
    client::{
        GuardLayer,
        hedge::HedgeLayer,
        idempotency_key::PolicyKeyLayer,
        peek::PeekLayer,
        retry::{HttpRequests, Refresh, RetryLayer},
    },
    dependency::{ByAuthority, Dependencies},
};

/// Returns all client layers in the right order, as one layer.
///
/// Each POST and PATCH carries an idempotency key, in the header that the policy names, and is
/// retried if it surely was never sent. Where the dependency honours keys, let the policy say so:
/// with [`honours_keys`](crate::policy::PolicyBuilder::honours_keys) they are retried as a GET is.
/// [`RetryOverride::idempotent`](crate::call::RetryOverride::idempotent) declares it for one call.
///
/// ```
/// use bytes::Bytes;
/// use http_body_util::Full;
/// use hyper_util::{client::legacy::Client, rt::TokioExecutor};
/// use tower::ServiceBuilder;
/// use tower_reprise::{Dependencies, Policy, stacks};
///
/// let deps = Dependencies::new(Policy::http().service("checkout").build()?);
/// let client = ServiceBuilder::new()
///     .layer(stacks::client(deps))
///     .service(Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>());
/// # let _ = client;
/// # Ok::<(), tower_reprise::error::ConfigError>(())
/// ```
///
/// [`ClientBuilder`] has the settings of single layers: a hook that refreshes a token, one that
/// stores keys, or no keys at all.
pub fn client<C: Clone, L: Clone>(deps: Dependencies<C, L>) -> ClientLayers<C, L> {
    ClientBuilder::new(deps).build()
}

/// Builds the layers of [`client`] with settings of single ones.
///
/// ```
/// use http::{Request, Response, header::AUTHORIZATION};
/// use tower::{ServiceBuilder, service_fn};
/// use tower_reprise::{Dependencies, Policy, call::Attempt, error::BoxError, stacks};
///
/// // Called before a retry, and after a 401, which it makes worth one more attempt.
/// async fn refresh(mut request: Request<String>, _: Attempt) -> Result<Request<String>, BoxError> {
///     let token = "Bearer fresh".parse()?; // ask for one
///     request.headers_mut().insert(AUTHORIZATION, token);
///     Ok(request)
/// }
///
/// let deps = Dependencies::new(Policy::http().service("checkout").build()?);
/// let layers = stacks::ClientBuilder::new(deps).with_refresh(refresh).without_keys().build();
/// let http = service_fn(|_: Request<String>| async { Ok::<_, BoxError>(Response::new(String::new())) });
/// let client = ServiceBuilder::new().layer(layers).service(http);
/// # let _ = client;
/// # Ok::<(), tower_reprise::error::ConfigError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct ClientBuilder<C = Standard, L = ByAuthority, P = (), H = ()> {
    deps: Dependencies<C, L>,
    keys: PolicyKeyLayer<C, L, P>,
    retry: RetryLayer<C, L, HttpRequests, H>,
}

impl<C: Clone, L: Clone> ClientBuilder<C, L> {
    /// Starts with what [`client`] returns.
    pub fn new(deps: Dependencies<C, L>) -> Self {
        Self {
            keys: PolicyKeyLayer::new(deps.clone()),
            retry: RetryLayer::new(deps.clone())
                .charge_repeats()
                .keys_by_policy(),
            deps,
        }
    }
}

impl<C: Clone, L: Clone, P, H> ClientBuilder<C, L, P, H> {
    /// Stores each key before it is first sent: see
    /// [`PersistKey`](crate::client::idempotency_key::PersistKey).
    pub fn with_persist<Q>(self, persist: Q) -> ClientBuilder<C, L, Q, H> {
        ClientBuilder {
            deps: self.deps,
            keys: self.keys.with_persist(persist),
            retry: self.retry,
        }
    }

    /// Stamps no keys. Those that callers set are sent, and stored, all the same.
    pub fn without_keys(mut self) -> Self {
        self.keys = self.keys.only_given();
        self
    }

    /// Runs this hook before every retry: see [`RetryLayer::with_prepare`].
    pub fn with_prepare<G>(self, hook: G) -> ClientBuilder<C, L, P, G> {
        ClientBuilder {
            deps: self.deps,
            keys: self.keys,
            retry: self.retry.with_prepare(hook),
        }
    }

    /// Brings new credentials before a retry and after a 401: see [`RetryLayer::with_refresh`].
    pub fn with_refresh<G>(self, hook: G) -> ClientBuilder<C, L, P, Refresh<G>> {
        ClientBuilder {
            deps: self.deps,
            keys: self.keys,
            retry: self.retry.with_refresh(hook),
        }
    }

    /// Returns all client layers in the right order, as one layer.
    pub fn build(self) -> ClientLayers<C, L, P, H> {
        let deps = self.deps;
        (
            self.keys,
            self.retry,
            GuardLayer::new(deps.clone()),
            HedgeLayer::in_stack(deps.clone()),
            PeekLayer::new(deps),
        )
    }
}

/// The service of [`client`] and [`ClientBuilder`] around `S`, for a struct that holds one.
pub type Client<S, C = Standard, L = ByAuthority, P = (), H = ()> =
    <ClientLayers<C, L, P, H> as tower::Layer<S>>::Service;

/// The layers of [`client`] and [`ClientBuilder`], outermost first.
pub type ClientLayers<C, L, P = (), H = ()> = (
    PolicyKeyLayer<C, L, P>,
    RetryLayer<C, L, HttpRequests, H>,
    GuardLayer<C, L>,
    HedgeLayer<C, L>,
    PeekLayer<C, L>,
);
