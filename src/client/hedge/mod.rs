//! Send a second attempt when the first one takes longer than usual.
//!
//! Now and then a reply takes ten times as long as the others: a collection of garbage, a packet that is
//! sent again, a queue behind one large request. A second attempt that goes out then is most likely
//! answered at once. [`HedgeLayer`] sends it when a call was not answered in the time in which 95 % of
//! the dependency's calls are; the first good answer counts, and the other attempt is dropped. That adds
//! about 5 % to the requests. `cargo run --release --example simulate -- --only hedge` shows it for calls
//! of 5 ms of which one in twenty takes ten times as long, next to others.
//!
//! # When
//!
//! The slowest calls matter (a page waits for the last of twenty), and they are slow by chance: the same
//! request would be quick elsewhere or a moment later. Of several instances behind one name another one
//! answers.
//!
//! # When not
//!
//! The slow calls are slow by what they ask for: a second attempt takes as long. Give them a dependency
//! of their own, by [`with_locate`](crate::dependency::DependenciesBuilder::with_locate). All calls go over
//! one HTTP/2 connection that stalls: the second attempt stalls with it. The dependency is short of
//! capacity: 5 % more requests are 5 % more.
//!
//! # What is hedged
//!
//! A call is hedged only if all of this holds:
//!
//! - it may be repeated: a GET, PUT or DELETE, a POST with a key that is honoured, a call or gRPC method
//!   that is declared idempotent, as for retries ([`safety`](crate::guide::safety));
//! - its body is at hand, or has passed;
//! - there is time left, by its policy and by the deadline of the request that it serves
//!   ([`CallerContext`](crate::call::CallerContext)), which is no retry;
//! - retries and hedges together have used less than half of the retry budget: it is the same budget, in
//!   which the other half is for retries. A client of less than five calls in 30 s does not hedge;
//! - the breaker is closed, the dependency shows no signs of overload and did not ask to be left alone;
//! - no more than four times as many calls are late as usual. When everything becomes slow, second
//!   attempts would be slow too, and the delay is on its way to the new latencies.
//!
//! Calls in flight keep their second attempt, whatever happens to budget and breaker.
//!
//! | setting | default |
//! | --- | --- |
//! | [`hedge`](crate::policy::PolicyBuilder::hedge) | off |
//! | [`hedge_quantile`](crate::policy::PolicyBuilder::hedge_quantile) | 0.95, of the last 30 s; the range is 0.75 to 0.999 |
//! | [`hedge_delay`](crate::policy::PolicyBuilder::hedge_delay) | 1 ms to 10 s; the same twice is a fixed delay |
//! | [`count_hedges`](crate::policy::PolicyBuilder::count_hedges) | off; on, a hedge is one of the retries of its call |
//!
//! Before 32 calls were answered, the quantile is unknown and nothing is hedged.
//!
//! [`stacks::client`](crate::stacks::client) has the layer between breaker and peek. To the breaker two
//! attempts are one call, to a [`RetryLayer`](crate::RetryLayer) they are one attempt, whose
//! [time](crate::policy::PolicyBuilder::attempt_timeout) is that of both.
//!
//! # Answers
//!
//! A success or a final answer (a 404) ends the call. While one attempt is out, a failure of the other
//! that may pass is no answer. If both fail, the call's failure is the one that asks for more: not to be
//! called again, or later. What a failed attempt asks for holds for the dependency in any case.
//!
//! The second attempt carries the same key and body, and an
//! [`Attempt`](crate::call::Attempt) that [is a hedge](crate::call::Attempt::is_hedge).
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | a call has at most one second attempt, and a POST without a key none | that it is quicker: it may meet the same queue |
//! | retries and hedges together stay within the budget, hedges within half of it | that every late call is hedged |
//! | a call in time allocates nothing for its hedge | that the attempt that is dropped had no effect: it may have been executed |
//!
//! # What goes wrong
//!
//! One dependency for quick and slow methods: the delay is that of the slow ones, and the quick ones are
//! not hedged. A connection of HTTP/1 that is dropped is closed, so that each hedge costs a connection. A
//! [`RetryAfterLayer`](crate::RetryAfterLayer) or [`RetryLayer`](crate::RetryLayer) below: their waits are
//! measured as latency. `hedges_suppressed_total` counts late calls without a second attempt, by reason.
//!
//! # Example
//!
//! ```
//! use std::{convert::Infallible, future::pending, time::Duration};
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{Dependencies, HedgeLayer, Policy, call::Attempt, error::BoxError};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! // A fixed delay, so that it is known from the first call on.
//! let delay = Duration::from_millis(20);
//! let deps = Dependencies::new(Policy::http().hedge_delay(delay, delay).build()?);
//! let straggling = service_fn(|request: Request<()>| async move {
//!     let first = request.extensions().get::<Attempt>().is_none();
//!     if first && request.uri().path() == "/slow" {
//!         pending::<()>().await;
//!     }
//!     Ok::<_, Infallible>(Response::new(()))
//! });
//! let mut client = ServiceBuilder::new().layer(HedgeLayer::new(deps.clone())).service(straggling);
//!
//! for _ in 0..10 { // the budget is a share of the calls
//!     let request = Request::get("http://stock.example/items").body(())?;
//!     client.ready().await?.call(request).await?;
//! }
//! let request = Request::get("http://stock.example/slow").body(())?;
//! assert_eq!(client.ready().await?.call(request).await?.status(), 200);
//! assert_eq!(deps.get("stock.example").status().retries, 1);
//! # Ok(())
//! # }
//! ```

mod call;
mod decide;
mod future;
mod layer;
mod second;
mod service;

pub use self::{future::HedgeFuture, layer::HedgeLayer, service::Hedge};
