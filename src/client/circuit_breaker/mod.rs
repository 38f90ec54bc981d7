//! Refuses calls to a dependency that is down, sends fewer to one that is overloaded, and tests with
//! single calls whether it is back.
//!
//! Retries mend single failures. During an outage each of them only costs time and load. The breaker
//! of a dependency opens when nothing works any more: calls are then refused without being sent, but for a
//! few a second that go through as probes. The first probe that succeeds closes the breaker, which lets more
//! calls through step by step.
//!
//! # When to use it
//!
//! In clients that would otherwise wait for a dependency that is down, and for a dependency that recovers
//! sooner without the load. It is part of [`stacks::client`](crate::stacks::client).
//!
//! Not as a limit of load: that is a rate or concurrency limit. Not for a dependency without which the
//! caller can do nothing at all and that costs nothing to call, such as a local cache.
//!
//! # When it opens
//!
//! By default it opens when no call has succeeded for a second, at least five failed in a row, and so
//! long a run is unlikely by chance: about ten failures after a good record, about forty where three of
//! four calls fail anyway. A client that has had no success yet needs only the five. A dependency that
//! still serves half of its calls is therefore not treated as down, and callers succeed no less often
//! than without a breaker (`simulate -- --only failures`):
//!
//! | calls that fail | 10 % | 50 % | 75 % | 100 % |
//! | --- | --- | --- | --- | --- |
//! | succeed without retries | 90 % | 50 % | 25 % | 0 % |
//! | succeed with the whole stack | 100 % | 60 % | 30 % | 0 % |
//! | requests a call with the whole stack | 1.11 × | 1.19 × | 1.19 × | 0.06 × |
//!
//! Where 99 % fail, it takes about a hundred requests to see that the dependency is not down, and until
//! then some successes are lost: 0.4 to 1.2 % succeed at 200 calls a second for a minute, 0.5 to 0.6 %
//! at ten calls a second for ten minutes, and 1.0 % without retries.
//!
//! [`consecutive_failures`] sets a plain count instead, and [`failure_rate`] a share of a window.
//!
//! # Recovery
//!
//! The first probe goes out half a second after the breaker opened, and each further one after twice the
//! previous wait, up to five seconds. In busy clients a probe goes out as soon as 32 calls were refused,
//! at most four times a second. A probe that hangs does not delay the next one. One that is dropped, or
//! whose result says nothing about the dependency's health, is replaced at once.
//!
//! Under a [`RetryLayer`](crate::RetryLayer) a refused call is tried once more when the next probe has
//! ended, if that is due within five seconds and fewer than 64 calls are waiting. So a call that is made
//! when the dependency is well again, and before a probe has found out, succeeds a moment later. Many calls
//! that waited come back at a third of the pace at which they were refused, beside new ones.
//!
//! # The throttle
//!
//! A dependency that answers 429, `RESOURCE_EXHAUSTED` or 503 with `Retry-After`, or lets attempts time
//! out, is overloaded. Then a share of the calls is refused ([`Refusal::Throttle`]), so that at most
//! [two](crate::policy::PolicyBuilder::throttle) are sent for each one that it accepts, or little more
//! than one if calls time out. Other failures do not count.
//!
//! Under a `RetryLayer` a call that was refused so is tried again up to twice, 1.5 to 10.5 s later, when a
//! spike may be over. At most as many calls wait for that as the dependency serves in 3 s: more would
//! keep an overload going.
//!
//! # Defaults
//!
//! | setting | default |
//! | --- | --- |
//! | [`no_success_for`](crate::policy::PolicyBuilder::no_success_for) | 1 s |
//! | [`consecutive_failures`] | 5 |
//! | [`failure_rate`] | all of at least 1,000 calls in 30 s |
//! | [`cooldown`](crate::policy::PolicyBuilder::cooldown) | 500 ms, up to 5 s |
//! | [`throttle`](crate::policy::PolicyBuilder::throttle) | 2 calls for each that is accepted |
//! | [`slow_call`](crate::policy::PolicyBuilder::slow_call) | off |
//!
//! # By hand
//!
//! [`Dependency`](crate::dependency::Dependency) has `force_open`, `force_closed` and `reset`, its
//! `status` the reason and the time of the last change, and
//! [`on_event`](crate::dependency::DependenciesBuilder::on_event) a hook.
//! [`in_poll_ready`](CircuitBreakerLayer::in_poll_ready) lets a balancer see the breaker.
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | while some calls succeed it stays closed: a caller has no fewer successes than without it | that the first failures of an outage are refused: it takes evidence |
//! | while it is open, a bounded share of the calls goes out as probes | that processes agree on the state |
//! | a probe that hangs, is dropped or says nothing does not delay the next | that a service which answers wrongly with 200 is noticed |
//!
//! # What goes wrong
//!
//! | mistake | what happens | instead |
//! | --- | --- | --- |
//! | one name for several endpoints | the breaker sees their average: one dead endpoint of ten is never noticed | a name for each: [`Dependencies::at`](crate::Dependencies::at) |
//! | a plain count of failures, such as `consecutive_failures(5)`, for a dependency that fails often | it opens by chance, and half an outage becomes a whole one | leave [`no_success_for`](crate::policy::PolicyBuilder::no_success_for) at a second |
//! | no `RetryLayer` above | each refusal is the caller's to handle | [`stacks::client`](crate::stacks::client), or match [`Refused`](crate::error::Refused) |
//! | one concurrency limit above the clients of several hosts | calls that wait for the probe of a host that is down take the places of the others | a limit for each host, a smaller [`max_held`](crate::policy::PolicyBuilder::max_held), or [`RetryOverride::off()`](crate::RetryOverride::off) for calls that are to fail at once |
//! | errors of the caller that are classified as failures | a bug of the caller opens it for all | a classifier that gives them [`Health::Neutral`](crate::call::Health) |
//!
//! A client that makes a few calls an hour opens its breaker only after five of them failed.
//!
//! [`consecutive_failures`]: crate::policy::PolicyBuilder::consecutive_failures
//! [`failure_rate`]: crate::policy::PolicyBuilder::failure_rate
//! [`Refusal::Throttle`]: crate::error::Refusal::Throttle
//!
//! # Example
//!
//! ```
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{CircuitBreakerLayer, Dependencies, Policy, error::{BoxError, Refused}};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! let deps = Dependencies::new(Policy::http().consecutive_failures(2).build()?);
//! let mut client = ServiceBuilder::new()
//!     .layer(CircuitBreakerLayer::new(deps))
//!     .service(service_fn(|_: Request<()>| async {
//!         Ok::<_, BoxError>(Response::builder().status(503).body(()).unwrap())
//!     }));
//! let request = || Request::get("http://stock.example/").body(()).unwrap();
//! for _ in 0..2 {
//!     assert_eq!(client.ready().await?.call(request()).await?.status(), 503);
//! }
//! let error = client.ready().await?.call(request()).await.unwrap_err();
//! let refused = Refused::find(&*error).expect("the breaker is open");
//! assert!(refused.retry_after().is_some());
//! # Ok(())
//! # }
//! ```

mod future;
mod layer;
mod service;

pub(crate) use self::service::admit;
pub use self::{future::CircuitBreakerFuture, layer::CircuitBreakerLayer, service::CircuitBreaker};
