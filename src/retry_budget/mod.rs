//! Keep retries to a share of the traffic, whoever makes them.
//!
//! With three retries each, a dependency that fails half of its calls gets two and a half times
//! the load, at the moment it can bear it least. A budget bounds that whatever the number of
//! clients' attempts: in any 30 s, retries are at most a fifth of the original requests (or ten,
//! so that a quiet client can retry at all).
//!
//! [`RetryLayer`](crate::RetryLayer) asks the budget by itself. [`RetryBudgetLayer`] adds what it
//! can't do: it bounds retry loops that are not ours. Below such a loop it recognises a repeat by
//! the [`Attempt`] extension, or by the `grpc-previous-rpc-attempts` and
//! `x-envoy-attempt-count` headers, and refuses it when the budget is used up. Stacked together,
//! the layers count each original once and charge each retry once.
//!
//! ```
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{Dependencies, Policy, RetryBudgetLayer, error::{BoxError, Refused}, retry::Attempt};
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
//! # On a server
//!
//! [`RetryBudgetLayer::inbound`] refuses inbound retries over the budget with a response, 429 by
//! default, that tells the client not to try again (`x-should-retry: false`, and
//! `grpc-retry-pushback-ms: -1` for gRPC). The error type of the service stays what it is.
//!
//! Retries over gRPC say that they are retries. Over plain HTTP those of this crate do with
//! [`tell_attempts`]. A service that passes the header on with the request, as a proxy does, keeps
//! a whole chain within one budget: its own budget then counts its callers' retries as what they
//! are. Without it each hop takes the retries of the one before for new requests, and three
//! budgets of a fifth make 1.73 of each (`cargo run --release --example simulate -- --only chain`).
//!
//! # Many small clients
//!
//! The ten retries that a quiet client has in any case are little, but a thousand quiet clients
//! have ten thousand. In an outage, clients with a call every 30 s make all the retries that they
//! may: four requests of each call. Two ways keep that within 1.5 (`--only crowd` shows both):
//!
//! - clients of one process share one [`Dependencies`] registry, so that they have one budget: 1.2;
//! - clients that can't share have [`budget_floor(0)`], so that a retry takes five requests in 30 s,
//!   and the quietest have none. `budget_floor(1)` is a compromise: most single failures are
//!   mended, and an outage costs up to twice the requests.
//!
//! [`tell_attempts`]: crate::policy::PolicyBuilder::tell_attempts
//! [`budget_floor(0)`]: crate::policy::PolicyBuilder::budget_floor

mod future;
mod inbound;
mod layer;
mod service;

pub use self::{
    future::RetryBudgetFuture,
    inbound::{InboundRetryBudget, InboundRetryBudgetFuture, InboundRetryBudgetLayer},
    layer::RetryBudgetLayer,
    service::RetryBudget,
};
use crate::{
    dependency::{Dependencies, Dependency, LastSlot},
    error::Refused,
    retry::{Attempt, Counted, Origin, origin},
    telemetry,
};

/// Counts an original, charges a repeat, and says no to one too many.
fn account<C, L, B>(
    deps: &Dependencies<C, L>,
    dependency: &std::sync::Arc<Dependency>,
    slot: &mut LastSlot,
    request: &mut http::Request<B>,
) -> Result<(), Refused> {
    match origin(request) {
        Origin::Counted | Origin::Charged => {}
        Origin::Original => {
            dependency.count_original(tokio::time::Instant::now(), slot);
            if deps.must_mark() {
                Counted::put(request.extensions_mut());
            }
        }
        Origin::Repeated(previous) => match dependency.charge_now() {
            Ok(()) => {
                if deps.must_mark() {
                    request
                        .extensions_mut()
                        .insert(Attempt::charged_elsewhere(previous));
                }
            }
            Err(refused) => {
                telemetry::refused(dependency, refused.kind().as_str());
                return Err(refused);
            }
        },
    }
    Ok(())
}
