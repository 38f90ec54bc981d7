//! Which layer goes where.
//!
//! # On a client
//!
//! [`stacks::client`](crate::stacks::client) is this order, from the outside in. Each line is there
//! for a reason:
//!
//! | layer | why here |
//! | --- | --- |
//! | your tracing, your authentication | once per call, and what they add is kept on every attempt |
//! | [`IdempotencyKeyLayer`](crate::client::idempotency_key::IdempotencyKeyLayer) | above the retries: a key per operation, not per attempt |
//! | [`RetryBudgetLayer`](crate::client::retry_budget::RetryBudgetLayer) | above the retries: counts each original once, and bounds loops that are not ours |
//! | [`RetryLayer`](crate::client::retry::RetryLayer) | everything below is repeated |
//! | [`RetryAfterLayer`](crate::client::retry_after::RetryAfterLayer) | below the retries: learns from each attempt's reply; above the breaker: a call that is held is not yet a probe |
//! | [`CircuitBreakerLayer`](crate::client::circuit_breaker::CircuitBreakerLayer) | below the retries: sees each attempt, so it opens before four times five failures |
//! | [`PeekLayer`](crate::client::peek::PeekLayer) | next to the client: knows what trailers and bodies say, for all above |
//! | a time limit per attempt | below all of them, or [`attempt_timeout`](crate::policy::PolicyBuilder::attempt_timeout); one above them cuts off the whole call |
//! | your client | |
//!
//! A layer of your own goes above the retries if it shall happen once per call, below if once per
//! attempt. All of ours must share one [`Dependencies`](crate::dependency::Dependencies).
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
//! // Without keys, for a server that ignores them, and with a limit per attempt.
//! let deps = Dependencies::new(Policy::synchronous().build()?);
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
//! | layer | why here |
//! | --- | --- |
//! | [`InboundBudgetLayer`](crate::InboundBudgetLayer) | first: a storm is refused before it costs anything |
//! | authentication | the layers below have to know who asks |
//! | [`ReplayLayer`](crate::delivery::replay::ReplayLayer) | above idempotency: what was never executed is written down, and replayed through the layers below |
//! | [`IdempotencyLayer`](crate::server::idempotency::IdempotencyLayer) | around what shall happen once |
//! | `tower::limit`, `load_shed` | below: a refusal releases the key, and a repeat that is answered from the store takes no place |
//! | your handlers | |
//!
//! In axum the layer that is added last is the outermost:
//!
//! ```
//! use axum::{Router, routing::post};
//! use tower_reprise::{Dependencies, IdempotencyLayer, InboundBudgetLayer, Policy, delivery::replay::Replay, server::dialect::Scope, store::{MemoryStore, CrashPolicy}};
//!
//! # fn main() -> Result<(), tower_reprise::error::ConfigError> {
//! # async fn pay() -> &'static str { "paid" }
//! let (store, scope) = (MemoryStore::new(), Scope::new(|_| Some("shop")));
//! let idempotency = IdempotencyLayer::builder(store.clone())
//!     .scope(scope.clone())
//!     .orphans(CrashPolicy::Reexecute)
//!     .build()?;
//! let replay = Replay::builder(store, scope).build()?;
//! let storms = InboundBudgetLayer::new(Dependencies::new(Policy::synchronous().build()?));
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
//! # In a proxy
//!
//! The server's layers, then the client's. [`ProblemLayer`](crate::server::problem::ProblemLayer), which makes
//! refusals and errors of the client's stack 502, 503 and 504, goes just inside of the inbound
//! budget: replay and idempotency have to see the errors themselves, which tell whether anything was
//! sent. What was not keeps no key, and is journaled. The example `gateway` is one, ready to run.
