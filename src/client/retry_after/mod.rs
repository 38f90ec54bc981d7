//! Holds all calls to a dependency for as long as it asked for, and spreads them when the time is over.
//!
//! `Retry-After: 30` on a 429 or 503 is meant for all calls to that server, but usually only the call
//! that received it obeys. [`RetryAfterLayer`] remembers it for the whole dependency: later calls wait if
//! the wait fits into their deadline, and are refused at once if not.
//!
//! Calls that waited are sent in the order and at the distances in which they arrived, with a little
//! random spread. Together with new calls that is at most twice the usual rate, so that they do not all
//! arrive at the moment when the dependency is back.
//!
//! Guidance with another status, and gRPC's pushback, hold for the call that received them.
//!
//! # When to use it
//!
//! In clients of services that limit rates or announce maintenance; it is part of
//! [`stacks::client`](crate::stacks::client).
//!
//! Not where the server limits each credential and one client uses many of them, unless each credential
//! is a dependency of its own: the first 429 would hold the calls of all.
//!
//! It understands `Retry-After` in seconds and in all three date forms, and exhausted `RateLimit` and
//! `X-RateLimit-*` fields; see [`classify::retry_after`](crate::classify::retry_after).
//!
//! # Defaults
//!
//! | setting | default |
//! | --- | --- |
//! | [`retry_after_mode`](crate::policy::PolicyBuilder::retry_after_mode) | calls wait |
//! | [`retry_after_longest`](crate::policy::PolicyBuilder::retry_after_longest) | 60 s by one answer |
//! | [`max_held`](crate::policy::PolicyBuilder::max_held) | 1,000 calls wait, others are refused |
//! | [`retry_after_spread`](crate::policy::PolicyBuilder::retry_after_spread) | a tenth of the wait, at most 1 s |
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | no call goes out earlier than a 429 or 503 asked for, up to `retry_after_longest` | that a call that waited succeeds |
//! | a call that can't wait that long is refused at once | that processes share what one of them was told |
//! | those that waited go out spread, at most at twice the usual rate | that `max_held` calls and more wait: others are refused |
//!
//! # What goes wrong
//!
//! | mistake | what happens | instead |
//! | --- | --- | --- |
//! | one dependency for all keys of a server that limits each key | the first 429 holds the callers of every key | a [locator](crate::dependency::DependenciesBuilder::with_locate) that names the key's owner |
//! | interactive calls that wait behind a `Retry-After: 50` | they wait as long as their deadline allows | [`retry_after_mode`](crate::policy::PolicyBuilder::retry_after_mode): refuse at once |
//! | a server that asked for an hour by mistake | calls are held for `retry_after_longest`, again and again | [`Dependency::reset`](crate::dependency::Dependency::reset) lets calls pass at once |
//!
//! ```
//! use std::time::Duration;
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{Dependencies, Policy, RetryAfterLayer, error::{BoxError, Refused}};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! let deps = Dependencies::new(Policy::http().build()?);
//! let mut client = ServiceBuilder::new()
//!     .layer(RetryAfterLayer::new(deps))
//!     .service(service_fn(|_: Request<()>| async {
//!         let busy = Response::builder().status(503).header("retry-after", "50");
//!         Ok::<_, BoxError>(busy.body(()).unwrap())
//!     }));
//! let request = || Request::get("http://stock.example/").body(()).unwrap();
//! assert_eq!(client.ready().await?.call(request()).await?.status(), 503);
//!
//! // 50 s do not fit in a call's 30 s: the next call is refused without being sent.
//! let error = client.ready().await?.call(request()).await.unwrap_err();
//! let refused = Refused::find(&*error).expect("refused");
//! assert!(refused.retry_after() > Some(Duration::from_secs(45)));
//! # Ok(())
//! # }
//! ```

mod future;
mod layer;
mod service;

pub use self::{future::RetryAfterFuture, layer::RetryAfterLayer, service::RetryAfter};
