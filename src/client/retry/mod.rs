//! Call again, when that is worth it, safe, and allowed.
//!
//! A retry is worth it only if the failure may pass: a refused connection, a 503, a timeout; not
//! a 400, and never an untrusted certificate. It is safe only if the request can be repeated: by
//! its method, by its idempotency key, or because it surely was never processed. It is allowed
//! only within bounds: so many attempts, so much time, as much as the dependency's budget has
//! left, and not while its breaker is open. [`RetryLayer`] asks all of that after each failed
//! attempt, waits with full jitter and never less than the dependency asked for, and gives the
//! caller the last real answer and the reason when it stops.
//!
//! # When to use it
//!
//! In every client of a service that can fail for a moment. [`stacks::client`](crate::stacks::client) has
//! it with the layers that go with it.
//!
//! Not in the middle of a chain whose caller retries: one hop should, or load multiplies. Not around
//! uploads beyond the replay limit, around calls that must not be late rather than not be made, or where
//! an SDK retries already: put [`RetryBudgetLayer`](crate::RetryBudgetLayer) below that.
//!
//! # Defaults
//!
//! Of [`Policy::http`](crate::Policy::http); the [profiles](crate::policy) have others.
//!
//! | setting | default |
//! | --- | --- |
//! | [`max_retries`](crate::policy::PolicyBuilder::max_retries) | 3, after the first attempt |
//! | [`total_timeout`](crate::policy::PolicyBuilder::total_timeout) | 30 s, waits included |
//! | [`attempt_timeout`](crate::policy::PolicyBuilder::attempt_timeout) | none |
//! | [`base`](crate::policy::PolicyBuilder::base), [`cap`](crate::policy::PolicyBuilder::cap) | full jitter below 1 s · 2ⁿ, at most 30 s |
//! | [`budget_ratio`](crate::policy::PolicyBuilder::budget_ratio) | a fifth of the originals |
//! | retried statuses | 408, 429, 500, 502, 503, 504; 425 once |
//! | POST and PATCH | with an idempotency key, or if they surely were never processed |
//! | [`replay_limit`](crate::policy::PolicyBuilder::replay_limit), [`replay_pool`](crate::policy::PolicyBuilder::replay_pool) | 64 KiB of a streaming body, 16 MiB of all of a dependency |
//!
//! ```
//! use std::convert::Infallible;
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{Dependencies, Policy, RetryLayer, RetryOutcome};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), tower_reprise::error::BoxError> {
//! let deps = Dependencies::new(Policy::http().service("checkout").build()?);
//! let flaky = tower::util::BoxCloneService::new(service_fn({
//!     let calls = std::sync::Arc::new(std::sync::atomic::AtomicU16::new(0));
//!     move |_: Request<()>| {
//!         let first = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
//!         async move {
//!             let status = if first { 503 } else { 200 };
//!             Ok::<_, Infallible>(Response::builder().status(status).body(()).unwrap())
//!         }
//!     }
//! }));
//! let mut client = ServiceBuilder::new().layer(RetryLayer::new(deps)).service(flaky);
//!
//! let request = Request::get("http://stock.example/items").body(())?;
//! let response = client.ready().await?.call(request).await?;
//! assert_eq!(response.status(), 200);
//! assert_eq!(RetryOutcome::of(&response).map(|o| o.attempts()), Some(2));
//! # Ok(())
//! # }
//! ```
//!
//! # The cost of a call that succeeds
//!
//! The head of the request is copied into a recycled buffer, and a body that is at hand is cloned
//! (which counts a reference). Nothing is boxed, no lock is taken, and there is no timer unless the
//! attempt is not ready at once. The request is rebuilt only if there is a retry. Extensions of the
//! caller's are cloned, which allocates, and so does a `String` body. A client that turns from one
//! dependency to another takes a lock to find it.
//!
//! # What is kept for the caller
//!
//! While a retry waits and is out, the response before it is kept, for when the retry brings none.
//! Only one whose body goes on is let go when the retry is about to be readied, since the retry may
//! need its connection, or its place in a limit below. [`PeekLayer`](crate::PeekLayer) reads bodies of
//! failures, up to a limit, and tells those it could not read; without it every response is kept.
//!
//! A call that is not retried, by its policy or by [`RetryOverride::off`](crate::RetryOverride::off),
//! has no time limit but one that was set: the profile's total time is there to bound retries.
//!
//! # Services that are not HTTP
//!
//! [`RetryLayer::cloning`] retries anything whose request is `Clone`, with a classifier of your
//! own. HTTP requests that it clones still need a safe method or a key:
//!
//! ```
//! # use tower_reprise::{Dependencies, Policy, RetryLayer, call::{Cause, Verdict}};
//! #[derive(Clone)]
//! struct OrderPlaced(u64);
//!
//! let deps = Dependencies::builder(Policy::events().dead_letters("orders.dlq").build()?)
//!     .with_locate_message(|_: &OrderPlaced| "orders".into())
//!     .with_classifier(|outcome: Result<&(), &(dyn std::error::Error + 'static)>| match outcome {
//!         Ok(()) => Verdict::SUCCESS,
//!         Err(_) => Verdict::transient(Cause::Other("handler")),
//!     })
//!     .build();
//! let layer = RetryLayer::new(deps).cloning();
//! # Ok::<(), tower_reprise::error::ConfigError>(())
//! ```
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | a call makes at most `max_retries` + 1 attempts, and ends within its total time up to the response head | that the body of a response arrives: it streams on its own time, and is not retried |
//! | a POST or PATCH without a key or a declaration is sent again only if it surely was never processed | that a failed attempt had no effect: [`RetryOutcome::in_doubt`](crate::RetryOutcome::in_doubt) tells |
//! | no attempt goes out earlier than the dependency asked for | that a body beyond the replay limit is sent again: the call then ends with its first result |
//! | the caller gets the last real result, and the reason why there was no further attempt | fairness among calls when the budget is short |
//! | a call that is dropped gives back its charge and its place |  |
//!
//! # What goes wrong
//!
//! | mistake | what happens | instead |
//! | --- | --- | --- |
//! | a registry for each request | no budget, no breaker: each call is the first one | one [`Dependencies`](crate::Dependencies) for all clients of the process |
//! | a timeout layer above the retry layer that is shorter than a call | the caller gets the timeout instead of the last real response | [`total_timeout`](crate::policy::PolicyBuilder::total_timeout) |
//! | a key that is drawn below the retry loop | each attempt is an operation of its own | [`IdempotencyKeyLayer`](crate::IdempotencyKeyLayer) above it |
//! | retries at every hop of a chain | 4 × 4 × 4 requests of one, but for the budgets | retry at one hop; see [`order`](crate::guide::order) |

mod bearer;
mod body;
mod call;
mod decide;
mod future;
mod head_snapshot;
mod history;
mod layer;
mod prepare;
pub(crate) mod replay_buffer;
mod requests;
mod service;

pub use self::{
    bearer::{BearerToken, Token},
    body::{ReplayBody, ReplayLimits},
    future::RetryFuture,
    layer::RetryLayer,
    prepare::{PrepareAttempt, Refresh},
    replay_buffer::Recording,
    requests::{ClonedRequests, HttpRequests, ReplayRequests, RequestIds, WithIds, WithoutIds},
    service::Retry,
};
