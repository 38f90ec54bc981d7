//! Keep calls within the deadline of the request that they serve, and do not multiply its retries.
//!
//! A service that calls others has a caller of its own, who waits for so long and may call again. Calls
//! that go on past that deadline are work for nobody, and retries at each of three hops make 27
//! requests of one. [`DeadlineLayer`] reads the caller's deadline and attempt number from a request, and
//! the [`RetryLayer`](crate::RetryLayer) of each client that its handler calls goes by them:
//!
//! - a call ends by the caller's deadline, and one that can't is not begun
//!   ([`Refusal::Deadline`](crate::error::Refusal::Deadline));
//! - each attempt tells the next hop how much time is left, and whether it serves a retry;
//! - a call that serves a retry is not retried ([`StopReason::ChainStop`]): the caller does that;
//! - a failure after a call was refused or given up says "do not retry" to the caller
//!   (`x-should-retry: false`, or `grpc-retry-pushback-ms: -1`), whose layers obey.
//!
//! Use it on each service between the edge and the last one. The edge gives its requests a
//! [`default_deadline`](DeadlineLayer::default_deadline); services behind it
//! [trust their callers](DeadlineLayer::trust_callers). It does not stop a handler when the time is
//! over: a timeout layer does, and tonic's server for `grpc-timeout`.
//!
//! | setting | default |
//! | --- | --- |
//! | [`trust_callers`](DeadlineLayer::trust_callers) | no: what a request says is removed, except `grpc-timeout` |
//! | [`default_deadline`](DeadlineLayer::default_deadline) | none |
//! | [`max_deadline`](DeadlineLayer::max_deadline) | 60 s: a longer one is cut |
//! | [`max_attempts`](DeadlineLayer::max_attempts) | 10: a greater number is cut |
//! | [`header`](DeadlineLayer::header) | `x-envoy-expected-rq-timeout-ms`; on a client, [`deadline_header`] |
//! | [`chain_stop`](DeadlineLayer::chain_stop) | on |
//! | [`final_failures`](DeadlineLayer::final_failures) | on where callers are trusted |
//! | [`task_local`](DeadlineLayer::task_local) | on |
//!
//! ```
//! use std::time::Duration;
//! use axum::{Router, routing::get};
//! use tower_reprise::{DeadlineLayer, call::CallerContext};
//!
//! # fn main() -> Result<(), tower_reprise::error::ConfigError> {
//! async fn stock() -> String {
//!     // Calls through `stacks::client` go by this without being told.
//!     let caller = CallerContext::current().unwrap_or_default();
//!     format!("{:?} are left", caller.remaining())
//! }
//!
//! // The edge, which nobody's deadlines reach.
//! let edge = DeadlineLayer::new().default_deadline(Duration::from_secs(3))?;
//! // A service behind it.
//! let inner = DeadlineLayer::new().trust_callers();
//!
//! let app: Router = Router::new().route("/stock", get(stock)).layer(edge);
//! # let _ = (app, inner);
//! # Ok(())
//! # }
//! ```
//!
//! # How a client finds its caller
//!
//! The layer puts a [`CallerContext`] into the extensions of the request, and into the scope of its
//! task. A proxy that sends the same request on has the first; a handler that makes new requests has
//! the second, without code of its own. Neither reaches a task that the handler spawns:
//! [`CallerContext::scope`] takes it there. An
//! [`IdempotencyLayer`](crate::server::idempotency) keeps the scope on the tasks that it spawns.
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | no attempt of a call starts after its caller's deadline, as the header named it | that the time on the way is seen: the header says how much is left, not since when |
//! | a deadline that is named makes no call longer than its client's policy allows | that a handler ends when its caller no longer waits |
//! | an attempt that ran out of its caller's time is no failure of the dependency | that clients of other makes obey "do not retry" |
//! | no header makes a request repeatable that is not, or a call be retried more often | |
//!
//! # What goes wrong
//!
//! - [`trust_callers`](DeadlineLayer::trust_callers) at the edge: a browser may then ask for 1 ms, or
//!   name its first attempt the tenth. It harms nobody else, but logs tell of refused calls.
//! - No [`send_deadline`] at the first client of a chain that has no server layer above: its calls then
//!   name no deadline, and its retries over plain HTTP are not known as such.
//! - Headers for a third party: [`send_deadline(false)`] in the policy for it.
//! - A deadline at the edge that is shorter than one attempt takes: all calls end by it. Nothing is
//!   retried then, and no breaker opens.
//!
//! [`StopReason::ChainStop`]: crate::call::StopReason::ChainStop
//! [`CallerContext`]: crate::call::CallerContext
//! [`CallerContext::scope`]: crate::call::CallerContext::scope
//! [`deadline_header`]: crate::policy::PolicyBuilder::deadline_header
//! [`send_deadline`]: crate::policy::PolicyBuilder::send_deadline
//! [`send_deadline(false)`]: crate::policy::PolicyBuilder::send_deadline

mod future;
mod layer;
mod service;
mod trust;

pub use self::{future::DeadlineFuture, layer::DeadlineLayer, service::Deadline};
