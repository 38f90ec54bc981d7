//! Keep retries to a share of the traffic, whoever makes them.
//!
//! With three retries each, a dependency that fails half of its calls gets two and a half times
//! the load, at the moment it can bear it least. A budget bounds that whatever the number of
//! clients' attempts: in any 30 s, retries are at most a fifth of the original requests (or ten,
//! so that a quiet client can retry at all).
//!
//! [`RetryLayer`](crate::client::retry::RetryLayer) asks the budget by itself. [`RetryBudgetLayer`] adds what it
//! can't do: it bounds retry loops that are not ours. Below such a loop it recognises a repeat by
//! the [`Attempt`](crate::call::Attempt) extension, or by the `grpc-previous-rpc-attempts` and
//! `x-envoy-attempt-count` headers, and refuses it when the budget is used up. Stacked together,
//! the layers count each original once and charge each retry once.
//!
//! ```
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{Dependencies, Policy, RetryBudgetLayer, call::Attempt, error::{BoxError, Refused}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let deps = Dependencies::new(Policy::synchronous().budget_floor(1).build()?);
//! let mut client = ServiceBuilder::new()
//!     .layer(RetryBudgetLayer::new(deps))
//!     .service(service_fn(|_: Request<()>| async { Ok::<_, BoxError>(Response::new(())) }));
//!
//! let repeat = || {
//!     let mut request = Request::get("http://stock.example/").body(()).unwrap();
//!     request.extensions_mut().insert(Attempt::retry(1));
//!     request
//! };
//! assert!(client.ready().await?.call(repeat()).await.is_ok());
//! let error = client.ready().await?.call(repeat()).await.unwrap_err();
//! assert!(Refused::find(&*error).is_some());
//! # Ok(())
//! # }
//! ```
//!
//! # Many small clients
//!
//! The ten retries that a quiet client has in any case are little, but a thousand quiet clients
//! have ten thousand. In an outage, clients with a call every 30 s make all the retries that they
//! may: four requests of each call. Two ways keep that within 1.5 (`--only crowd` shows both):
//!
//! - clients of one process share one [`Dependencies`](crate::Dependencies) registry, so that they have one budget: 1.2;
//! - clients that can't share have [`budget_floor(0)`], so that a retry takes five requests in 30 s,
//!   and the quietest have none. `budget_floor(1)` is a compromise: most single failures are
//!   mended, and an outage costs up to twice the requests.
//!
//! [`budget_floor(0)`]: crate::policy::PolicyBuilder::budget_floor

mod future;
mod layer;
mod service;

pub use self::{future::RetryBudgetFuture, layer::RetryBudgetLayer, service::RetryBudget};
