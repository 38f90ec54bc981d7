//! axum: the layers on an existing `Router`, without a `HandleErrorLayer`.
//!
//! | on a router | how |
//! | --- | --- |
//! | repeated requests are executed once, retry storms are refused | [`server`] |
//! | the same, where handlers call other services: within the caller's deadline | [`server_in_chain`] |
//! | any client layer, around handlers that call something fragile | [`infallible`] |
//! | keys belong to the caller that an extractor finds | [`OwnerLayer`], [`owner`] |
//! | a handler guards its own writes | [`Execution`](crate::server::idempotency::Execution) as an argument |
//!
//! ```
//! # #[cfg(feature = "server")]
//! # fn main() -> Result<(), tower_reprise::error::ConfigError> {
//! use axum::{Router, routing::{get, post}};
//! use tower_reprise::{Dependencies, IdempotencyLayer, Policy, server::dialect::Scope};
//! use tower_reprise::stacks::{self, axum::{infallible, server}};
//! use tower_reprise::store::{CrashPolicy, MemoryStore};
//!
//! let idempotency = IdempotencyLayer::builder(MemoryStore::new())
//!     .scope(Scope::anonymous("everybody"))
//!     .crash_policy(CrashPolicy::Reexecute)
//!     .build()?;
//! let inbound = Dependencies::new(Policy::http().build()?);
//! let stock = Dependencies::named("stock", Policy::http().build()?);
//!
//! let app: Router = Router::new()
//!     .route("/stock", get(|| async { "7" }))
//!     .route_layer(infallible(stacks::client(stock)))
//!     .route("/payments", post(|| async { "paid" }))
//!     .layer(server(inbound, idempotency));
//! # let _ = app;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "server"))]
//! # fn main() {}
//! ```
//!
//! A handler or a proxy can forward a request through a client stack: axum's bodies can be sent again.
//! Each `Router::layer` puts bodies into axum's own, so that layers go above and below each other in any
//! order. In one `ServiceBuilder`, a layer that changes the request's body goes below a `RetryLayer`.

use axum_core::body::Body;

use crate::server::problem::ProblemLayer;

crate::client::retry::replay_buffer::replay_by_recording!(Body, Body::new, |error| Some(
    axum_core::Error::new(error)
));

/// Returns a layer whose errors are responses (502, 503, 504), as a router needs it: for
/// [`stacks::client`](super::client), one of its layers, or tower's timeout and load shedding.
pub fn infallible<L>(layer: L) -> (ProblemLayer, L) {
    (ProblemLayer::new(), layer)
}

#[cfg(feature = "server")]
pub use self::server::{
    NoExecution, Owner, OwnerLayer, OwnerService, owner, server, server_in_chain,
};

#[cfg(feature = "server")]
mod server;
