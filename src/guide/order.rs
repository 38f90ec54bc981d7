//! The order of layers.
//!
//! # On a client
//!
//! [`stacks::client`](crate::stacks::client) has this order, outermost first:
//!
//! | layer | reason |
//! | --- | --- |
//! | your tracing, your authentication | once per call, and what they add is kept on every attempt |
//! | [`IdempotencyKeyLayer`](crate::client::idempotency_key::IdempotencyKeyLayer), in the stack as a [`PolicyKeyLayer`](crate::client::idempotency_key::PolicyKeyLayer) | above the retries: a key per operation, not per attempt |
//! | [`RetryBudgetLayer`](crate::client::retry_budget::RetryBudgetLayer) | above the retries: counts each original once, and bounds loops that are not ours |
//! | [`RetryLayer`](crate::client::retry::RetryLayer) | every layer below sees each attempt |
//! | [`RetryAfterLayer`](crate::client::retry_after::RetryAfterLayer) | below the retries: learns from each attempt's reply; above the breaker: a call that is held is not yet a probe |
//! | [`CircuitBreakerLayer`](crate::client::circuit_breaker::CircuitBreakerLayer) | below the retries: counts attempts, so that it opens after five of them rather than five calls |
//! | [`HedgeLayer`](crate::client::hedge::HedgeLayer) | below the breaker: two attempts are one call to it; below the retries: each attempt is hedged, and latencies are those of attempts |
//! | [`PeekLayer`](crate::client::peek::PeekLayer) | next to the client: reads trailers and bodies for all layers above |
//! | a time limit per attempt | below all of them, or [`attempt_timeout`](crate::policy::PolicyBuilder::attempt_timeout); a timeout above them limits the whole call |
//! | your client | |
//!
//! The stack has fewer layers with the same effect: its retry layer
//! [charges repeats](crate::RetryLayer::charge_repeats) of other loops itself, and a
//! [`GuardLayer`](crate::client::GuardLayer) is a `RetryAfterLayer` around a `CircuitBreakerLayer`. It goes
//! around a `HedgeLayer` or a `PeekLayer`, which it tells the dependency; around other services put the two.
//!
//! Put a layer of your own above the retries to run it once per call, below to run it once per
//! attempt. All layers of this crate share one [`Dependencies`](crate::dependency::Dependencies).
//!
//! A layer of tower-http whose types meet ours, such as a `TraceLayer` with
//! [`Dependencies::trace`](crate::dependency::Dependencies::trace), has to be of the version that this crate
//! was built with. With tower-http 0.6, `cargo update tower-http@0.7.1 --precise 0.6.11` gives both the
//! same.
//!
//! ```
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{
//!     CircuitBreakerLayer, Dependencies, Policy, RetryAfterLayer, RetryBudgetLayer, RetryLayer,
//!     error::BoxError,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! # let http = service_fn(|_: Request<String>| async { Ok::<_, BoxError>(Response::new(String::new())) });
//! // Without keys, for a server that ignores them, and with a timeout per attempt.
//! let deps = Dependencies::new(Policy::http().build()?);
//! let mut client = ServiceBuilder::new()
//!     .layer(RetryBudgetLayer::new(deps.clone()))
//!     .layer(RetryLayer::new(deps.clone()))
//!     .layer(RetryAfterLayer::new(deps.clone()))
//!     .layer(CircuitBreakerLayer::new(deps))
//!     .timeout(std::time::Duration::from_secs(2))
//!     .service(http);
//! # let request = Request::get("http://stock.example/").body(String::new())?;
//! # client.ready().await?.call(request).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # On a server
//!
//! | layer | reason |
//! | --- | --- |
//! | [`InboundBudgetLayer`](crate::InboundBudgetLayer) | first: a retry storm is refused before it costs anything |
//! | [`DeadlineLayer`](crate::DeadlineLayer) | the caller's time runs from here; below the inbound budget, which reads headers that this layer may remove; above all that calls other services |
//! | authentication | the layers below need the caller's identity |
//! | [`ReplayLayer`](crate::delivery::replay::ReplayLayer) | above idempotency: stores requests that were not executed, and replays them through the layers below |
//! | [`IdempotencyLayer`](crate::server::idempotency::IdempotencyLayer) | around operations that must happen once |
//! | `tower::limit`, `load_shed` | below: a refusal releases the key, and a replayed reply takes no permit |
//! | your handlers | |
//!
//! In axum the layer that is added last is the outermost:
//!
#![cfg_attr(feature = "delivery", doc = "```")]
#![cfg_attr(not(feature = "delivery"), doc = "```rust,ignore")]
//! use axum::{Router, routing::post};
//! use tower_reprise::{Dependencies, IdempotencyLayer, InboundBudgetLayer, Policy, delivery::replay::Replay, server::dialect::Scope, store::{MemoryStore, CrashPolicy}};
//!
//! # fn main() -> Result<(), tower_reprise::error::ConfigError> {
//! # async fn pay() -> &'static str { "paid" }
//! let (store, scope) = (MemoryStore::new(), Scope::new(|_| Some("shop")));
//! let idempotency = IdempotencyLayer::builder(store.clone())
//!     .scope(scope.clone())
//!     .crash_policy(CrashPolicy::Reexecute)
//!     .build()?;
//! let replay = Replay::builder(store, scope).build()?;
//! let storms = InboundBudgetLayer::new(Dependencies::new(Policy::http().build()?));
//!
//! let app: Router = Router::new()
//!     .route("/payments", post(pay))
//!     .layer(idempotency)
//!     .layer(replay.layer())
//!     .layer(storms);
//! # drop(app);
//! # Ok(())
//! # }
//! ```
//!
//! # In a chain of services
//!
//! A service whose handlers call others has both stacks, and the deadlines and retries of its callers
//! cross it. [`DeadlineLayer`](crate::server::deadline) on each service, with
//! [`trust_callers`](crate::DeadlineLayer::trust_callers) behind the edge, is all that it takes:
//!
//! | hop | on its server | on its clients |
//! | --- | --- | --- |
//! | a client with nobody before it | | [`send_deadline(true)`](crate::policy::PolicyBuilder::send_deadline) |
//! | the edge | [`default_deadline`](crate::DeadlineLayer::default_deadline) | [`stacks::client`](crate::stacks::client) |
//! | services behind it | [`trust_callers`](crate::DeadlineLayer::trust_callers) | [`stacks::client`](crate::stacks::client) |
//! | a dependency of another company | | [`send_deadline(false)`](crate::policy::PolicyBuilder::send_deadline) |
//!
//! The hop next to a failure retries it. When it gives up, its answer says so, and no hop above
//! retries what was retried already.
//!
//! # In a proxy
//!
//! The server's layers, then the client's. [`ProblemLayer`](crate::server::problem::ProblemLayer)
//! turns refusals and errors of the client stack into 502, 503 and 504. It goes directly inside the
//! inbound budget and the [`DeadlineLayer`](crate::DeadlineLayer), because replay and idempotency need
//! the errors themselves: a request that was never sent releases its key and is journaled. `reprise gateway` is such a proxy.
