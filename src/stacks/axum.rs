//! axum: bodies that can be sent again.
//!
//! A handler or a proxy can forward a request through a client stack, and
//! [`ProblemLayer`](crate::server::problem::ProblemLayer) keeps the router infallible.
//!
//! ```
//! use axum::{Router, body::Body, routing::get};
//! use hyper_util::{client::legacy::Client, rt::TokioExecutor};
//! use tower::ServiceBuilder;
//! use tower_reprise::{Dependencies, InboundBudgetLayer, Policy, ProblemLayer, stacks};
//!
//! # fn main() -> Result<(), tower_reprise::error::ConfigError> {
//! // Outbound calls.
//! let deps = Dependencies::new(Policy::synchronous().service("edge").build()?);
//! let upstream = ServiceBuilder::new()
//!     .layer(ProblemLayer::new())
//!     .layer(stacks::client(deps))
//!     .service(Client::builder(TokioExecutor::new()).build_http::<Body>());
//!
//! // Inbound calls: retries over 20 % of the originals are refused.
//! let inbound = Dependencies::new(Policy::synchronous().service("edge").build()?);
//! let app: Router = Router::new()
//!     .route("/health", get(|| async { "ok" }))
//!     .fallback_service(upstream)
//!     .layer(InboundBudgetLayer::new(inbound));
//! # let _ = app;
//! # Ok(())
//! # }
//! ```

use axum_core::body::Body;

crate::client::retry::replay_buffer::replay_by_recording!(Body, Body::new);
#[cfg(feature = "server")]
crate::http::request_body::rebuilt_as_it_was!([] Body, Body::from);
