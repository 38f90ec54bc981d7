//! Migration from other crates.
//!
//! Each section shows one client or server before and after. This crate's checks compile both,
//! against the versions named.
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
//!     let deps = Dependencies::new(Policy::http().service("checkout").build()?);
//!     Ok(ServiceBuilder::new().layer(RetryLayer::new(deps)).service(http))
//! }
//! ```
//!
//! | there | here |
//! | --- | --- |
//! | `Policy::retry` | the tables of [`Rules`](crate::classify::Rules), which [`retry_status`](crate::policy::PolicyBuilder::retry_status) and [`no_retry_status`](crate::policy::PolicyBuilder::no_retry_status) change; a [`Classify`](crate::classify::Classify) for a decision of your own (below) |
//! | `Policy::clone_request` | nothing: heads are copied, streaming bodies are recorded. For requests that are not HTTP: [`RetryLayer::cloning`](crate::client::retry::RetryLayer::cloning) |
//! | `TpsBudget` | part of the policy, per dependency, and exact |
//! | a clone of the policy per call | one [`Dependencies`](crate::dependency::Dependencies) for all |
//!
//! Changes: waits have jitter; a call ends after 30 s, waits included; `Retry-After` is obeyed; the
//! error is boxed, with the original in its chain ([`RetryError`](crate::call::RetryError)). To go
//! in steps, keep your policy at first and put
//! [`RetryBudgetLayer`](crate::client::retry_budget::RetryBudgetLayer) below it, which bounds
//! `tower::retry` too if the policy marks retries with [`Attempt`](crate::call::Attempt).
//!
//! # From reqwest-retry (0.9)
//!
#![doc = concat!("```rust,ignore\n", include_str!("before/reqwest_retry.rs"), "```")]
//!
//! becomes
//!
#![cfg_attr(feature = "reqwest-middleware", doc = "```")]
#![cfg_attr(not(feature = "reqwest-middleware"), doc = "```rust,ignore")]
//! use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
//! use tower_reprise::{Dependencies, Policy, error::ConfigError, stacks};
//!
//! fn client(client: reqwest::Client) -> Result<ClientWithMiddleware, ConfigError> {
//!     let deps = Dependencies::new(Policy::http().service("checkout").build()?);
//!     Ok(ClientBuilder::new(client)
//!         .with(stacks::reqwest::TowerMiddleware::new(stacks::client(deps)))
//!         .build())
//! }
//! ```
//!
//! Changes: a POST is retried only if the policy says that the server honours the idempotency key
//! that this stack adds (see [`safety`](super::safety)); streaming bodies are retried instead of being an error; waits stay
//! within the call's time; `Retry-After` is obeyed.
//!
//! A `RetryableStrategy` becomes a [`Classify`](crate::classify::Classify). The layers of a stack see
//! responses of several types (reqwest's, and those of which a body was read), so implement it for all
//! of them. A closure is for one type, as a single layer or an event consumer has.
//!
#![doc = concat!("```\n", include_str!("classifier.rs"), "```")]
//!
//! Give it to the registry by
//! `Dependencies::builder(policy).with_classifier(Teapots).build()`. It changes verdicts, never whether
//! a POST may be sent again.
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
//!     let deps = Dependencies::new(Policy::http().service("checkout").build()?);
//!     Ok(ServiceBuilder::new().layer(stacks::client(deps)).service(http))
//! }
//! ```
//!
//! Changes: budget and breaker belong to a dependency instead of a layer, so that clients of the
//! same host share them; the retry layer does not wait for an attempt that the breaker would refuse.
//! Event listeners become a `tracing` event and metrics. Its bulkhead, rate limiter, cache and
//! hedging have no counterpart here: keep them, placed as [`order`](super::order) describes.
//!
//! # From axum-idempotent (0.6)
//!
#![doc = concat!("```rust,ignore\n", include_str!("before/axum_idempotent.rs"), "```")]
//!
//! becomes
//!
#![cfg_attr(feature = "server", doc = "```")]
#![cfg_attr(not(feature = "server"), doc = "```rust,ignore")]
//! use axum::Router;
//! use http::header::AUTHORIZATION;
//! use tower_reprise::{
//!     IdempotencyLayer,
//!     error::ConfigError,
//!     server::dialect::{Requirement, Scope},
//!     store::{CrashPolicy, MemoryStore},
//! };
//!
//! fn app(payments: Router) -> Result<Router, ConfigError> {
//!     let idempotency = IdempotencyLayer::builder(MemoryStore::new())
//!         .scope(Scope::new(|request| request.headers().get(AUTHORIZATION).cloned()))
//!         .crash_policy(CrashPolicy::Reexecute)
//!         .requirement(|_| Requirement::Optional)
//!         .build()?;
//!     Ok(payments.layer(idempotency))
//! }
//! ```
//!
//! Changes: one of several concurrent requests is executed instead of all; `scope` names the owner
//! of a key instead of a session; a key used for another request is refused (422); bodies, replies
//! and keys are bounded; a client that disconnects does not stop the handler. A POST or PATCH without
//! a key is refused (400) unless keys are optional, as above; then it is executed each time: a hash of
//! the content alone does not identify an operation, which is what the `true` above made of it.
