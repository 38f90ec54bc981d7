//! Keep retries to a share of the traffic.
//!
//! With three retries each, a dependency that fails all calls gets four times the load, at the moment
//! it can bear it least. A budget bounds that: in any 30 s, retries are at most a fifth of the
//! original requests that went out (or a few, so that a quiet client can retry at all).
//!
//! # When to use it
//!
//! [`RetryLayer`](crate::client::retry::RetryLayer) asks the budget by itself. Use [`RetryBudgetLayer`]
//! to bound retry loops of other crates: `tower::retry`, SDKs. Below such a loop it recognises a repeat
//! by the [`Attempt`](crate::call::Attempt) extension, or by the `grpc-previous-rpc-attempts` and
//! `x-envoy-attempt-count` headers, and refuses it when the budget is used up. Without such a loop it
//! adds nothing to a `RetryLayer`.
//!
//! Not as a rate limit: originals pass, however many there are. For requests that reach a server there is
//! [`InboundBudgetLayer`](crate::server::inbound_budget::InboundBudgetLayer).
//!
//! Stacked in any order, and each made by its own `new`, the layers count each original once and charge each retry
//! once: the first layer that counts a request marks it in its extensions. The mark costs two
//! allocations where a request has no other extension. The only layer of a registry that counts
//! leaves none: a `RetryLayer`, or one [`stacks::client`](crate::stacks::client).
//!
//! # Defaults
//!
//! | setting | default |
//! | --- | --- |
//! | [`budget_ratio`](crate::policy::PolicyBuilder::budget_ratio) | 0.2 |
//! | [`budget_floor`](crate::policy::PolicyBuilder::budget_floor) | the retries of one call, earned by successes |
//! | [`retry_quota`](crate::policy::PolicyBuilder::retry_quota) | none |
//! | [`on_budget_exhausted`](crate::policy::PolicyBuilder::on_budget_exhausted) | the breaker opens if the dependency is failing too |
//!
//! ```
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{Dependencies, Policy, RetryBudgetLayer, call::Attempt, error::{BoxError, Refused}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let deps = Dependencies::new(Policy::http().budget_floor(1).build()?);
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
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | in any 30 s, retries that go out are at most a fifth of the originals that went out, or the floor | a bound of originals: that is a rate limit's |
//! | concurrent charges never exceed it | a budget across processes: each has its own |
//! | an exhausted budget refuses new retries and touches no call that is out | that repeats of a loop that does not say so are recognised |
//!
//! # What goes wrong
//!
//! | mistake | what happens | instead |
//! | --- | --- | --- |
//! | a foreign loop that sets neither the extension nor a header | its repeats count as originals, and nothing bounds them | insert [`Attempt::retry`](crate::call::Attempt::retry) where it clones the request |
//! | the layer above the loop | it sees each call once, and no repeat | below the loop |
//! | a registry for each client of a process | each has a floor of its own, and together they storm | one registry, cloned |
//!
//! # Many small clients
//!
//! The floor is little for one client, but a thousand quiet clients have a thousand of them. So only a
//! client that has just started has it at once. Later, each success earns half a retry, and a client
//! whose calls all fail has one retry and then none. Clients of one process should share one
//! [`Dependencies`](crate::Dependencies) registry, and so one budget. The
//! [guide](crate::guide::budgets#many-small-clients) has figures.

mod future;
mod layer;
mod service;

pub use self::{future::RetryBudgetFuture, layer::RetryBudgetLayer, service::RetryBudget};
