//! From what you have.
//!
//! Each page of it is the same client or server, before and after. Both are built by this crate's
//! own checks, against the versions named.
//!
//! # From `tower::retry` (tower 0.5)
//!
#![doc = concat!("```rust,ignore\n", include_str!("before/tower_retry.rs"), "```")]
//!
//! becomes
//!
//! ```
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder};
//! use tower_reprise::{Dependencies, Policy, RetryLayer, error::{BoxError, ConfigError}};
//!
//! fn client<S>(
//!     http: S,
//! ) -> Result<impl Service<Request<String>, Response = Response<String>, Error = BoxError>, ConfigError>
//! where
//!     S: Service<Request<String>, Response = Response<String>, Error = BoxError> + Clone,
//! {
//!     let deps = Dependencies::new(Policy::synchronous().service("checkout").build()?);
//!     Ok(ServiceBuilder::new().layer(RetryLayer::new(deps)).service(http))
//! }
//! ```
//!
//! | there | here |
//! | --- | --- |
//! | `Policy::retry` | the tables of [`Rules`](crate::classify::Rules); [`with_classifier`](crate::dependency::DependenciesBuilder::with_classifier) for a decision of your own |
//! | `Policy::clone_request` | nothing: heads are kept aside, bodies that stream are recorded. What is not HTTP: [`RetryLayer::cloning`](crate::client::retry::RetryLayer::cloning) |
//! | `TpsBudget` | part of the policy, per dependency, and exact |
//! | a clone of the policy per call | one [`Dependencies`](crate::dependency::Dependencies) for all |
//!
//! What changes: waits differ from call to call; a call ends after 30 s with waits and all;
//! `Retry-After` is obeyed; the error is boxed, with the original inside
//! ([`RetryError`](crate::call::RetryError)). Keep your policy for a while and put
//! [`RetryBudgetLayer`](crate::client::retry_budget::RetryBudgetLayer) below it, if you would rather go in steps: it
//! bounds `tower::retry` as well, if the policy marks repeats with
//! [`Attempt`](crate::call::Attempt).
//!
//! # From reqwest-retry (0.9)
//!
#![doc = concat!("```rust,ignore\n", include_str!("before/reqwest_retry.rs"), "```")]
//!
//! becomes
//!
//! ```
//! use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
//! use tower_reprise::{Dependencies, Policy, error::ConfigError, stacks};
//!
//! fn client(client: reqwest::Client) -> Result<ClientWithMiddleware, ConfigError> {
//!     let deps = Dependencies::new(Policy::synchronous().service("checkout").build()?);
//!     Ok(ClientBuilder::new(client)
//!         .with(stacks::reqwest::TowerMiddleware::new(stacks::client(deps)))
//!         .build())
//! }
//! ```
//!
//! What changes: a POST is not sent twice unless it has a key, and this stack gives it one (see
//! [`safety`](super::safety)); bodies that stream are retried instead of being an error; waits stay
//! within the call's time; `Retry-After` is obeyed. `RetryableStrategy` is
//! [`with_classifier`](crate::dependency::DependenciesBuilder::with_classifier).
//!
//! # From tower-resilience (0.14)
//!
#![doc = concat!("```rust,ignore\n", include_str!("before/tower_resilience.rs"), "```")]
//!
//! becomes
//!
//! ```
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder};
//! use tower_reprise::{Dependencies, Policy, error::{BoxError, ConfigError}, http::BufferedBody, stacks};
//!
//! type Reply = Response<BufferedBody<String>>;
//!
//! fn client<S>(
//!     http: S,
//! ) -> Result<impl Service<Request<String>, Response = Reply, Error = BoxError>, ConfigError>
//! where
//!     S: Service<Request<String>, Response = Response<String>, Error = BoxError> + Clone,
//! {
//!     let deps = Dependencies::new(Policy::synchronous().service("checkout").build()?);
//!     Ok(ServiceBuilder::new().layer(stacks::client(deps)).service(http))
//! }
//! ```
//!
//! What changes: the budget and the breaker are of a dependency and not of a layer, so that clients
//! for the same host share them; retry and breaker know of each other (an attempt that the breaker
//! would refuse is not waited for). Event listeners are a `tracing` event and metrics.
//! Its bulkhead, rate limiter, cache and hedging have no counterpart here: keep them, above or below
//! as [`order`](super::order) says.
//!
//! # From axum-idempotent (0.6)
//!
#![doc = concat!("```rust,ignore\n", include_str!("before/axum_idempotent.rs"), "```")]
//!
//! becomes
//!
//! ```
//! use axum::Router;
//! use http::header::AUTHORIZATION;
//! use tower_reprise::{IdempotencyLayer, error::ConfigError, server::dialect::Scope, store::{MemoryStore, CrashPolicy}};
//!
//! fn app(payments: Router) -> Result<Router, ConfigError> {
//!     let idempotency = IdempotencyLayer::builder(MemoryStore::new())
//!         .scope(Scope::new(|request| request.headers().get(AUTHORIZATION).cloned()))
//!         .orphans(CrashPolicy::Reexecute)
//!         .build()?;
//!     Ok(payments.layer(idempotency))
//! }
//! ```
//!
//! What changes: of requests at once one is executed, where all were; there is no session: whose key
//! it is, you say; a key that is used for something else is refused (422); bodies, replies and keys
//! are bounded; a client that hangs up does not stop the handler. Requests are not told apart by a
//! hash of their content alone: without a key they pass.
