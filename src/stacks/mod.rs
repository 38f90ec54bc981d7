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
use crate::client::attempt_span::AttemptSpanLayer;
use crate::{
    classify::Standard,
    client::{
        circuit_breaker::CircuitBreakerLayer, idempotency_key::PolicyKeyLayer, peek::PeekLayer,
        retry::RetryLayer, retry_after::RetryAfterLayer, retry_budget::RetryBudgetLayer,
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
pub fn client<C: Clone, L: Clone>(deps: Dependencies<C, L>) -> ClientLayers<C, L> {
    (
        PolicyKeyLayer::new(deps.clone()),
        RetryBudgetLayer::repeats_only(deps.clone()),
        RetryLayer::new(deps.clone()).keys_by_policy(),
        RetryAfterLayer::new(deps.clone()),
        CircuitBreakerLayer::new(deps.clone()),
        PeekLayer::new(deps),
    )
}

/// Returns the layers of [`client`], and a client span for each attempt right below those that may
/// refuse a call. `propagator` writes the span's context into the attempt's headers, a fresh
/// `traceparent`; `()` writes nothing. See [`attempt_span`](crate::client::attempt_span).
///
/// For a tonic `Channel`, put [`tonic::StatusLayer`] above them.
#[cfg(feature = "tracing")]
pub fn traced<C: Clone, L: Clone, P>(
    deps: Dependencies<C, L>,
    propagator: P,
) -> TracedLayers<C, L, P> {
    let (key, budget, retry, retry_after, breaker, peek) = client(deps.clone());
    let spans = AttemptSpanLayer::new(deps).with_propagator(propagator);
    (key, budget, retry, retry_after, breaker, spans, peek)
}

/// The layers of [`traced`], outermost first.
#[cfg(feature = "tracing")]
pub type TracedLayers<C, L, P> = (
    PolicyKeyLayer<C, L>,
    RetryBudgetLayer<C, L>,
    RetryLayer<C, L>,
    RetryAfterLayer<C, L>,
    CircuitBreakerLayer<C, L>,
    AttemptSpanLayer<C, L, P>,
    PeekLayer<C, L>,
);

/// The service of [`client`] around `S`, for a struct that holds one.
pub type Client<S, C = Standard, L = ByAuthority> =
    <ClientLayers<C, L> as tower::Layer<S>>::Service;

/// The layers of [`client`], outermost first.
pub type ClientLayers<C, L> = (
    PolicyKeyLayer<C, L>,
    RetryBudgetLayer<C, L>,
    RetryLayer<C, L>,
    RetryAfterLayer<C, L>,
    CircuitBreakerLayer<C, L>,
    PeekLayer<C, L>,
);
