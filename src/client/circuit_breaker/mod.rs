//! Stop calling what is down, send less to what is overloaded, and find out gently when it is back.
//!
//! Retries mend single failures; during an outage each of them only costs time and load. The breaker of
//! a dependency opens when nothing works any more, and then calls are refused at once. A few calls a
//! second go through as probes. The first that succeeds closes it, and more calls pass with each moment
//! after that.
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
//! By default there must be no success for a second, at least five failures in a row, and more of them
//! than chance explains by the calls before: ten after a good record, some forty where three of four
//! calls fail anyway. Only a client without any success so far goes by the five. So a dependency of
//! which half works is not taken for one that is down, and a caller is never worse off with a breaker than without (`simulate -- --only failures`):
//!
//! | calls that fail | 10 % | 50 % | 75 % | 100 % |
//! | --- | --- | --- | --- | --- |
//! | succeed without retries | 90 % | 50 % | 25 % | 0 % |
//! | succeed with the whole stack | 100 % | 60 % | 30 % | 0 % |
//! | requests a call with the whole stack | 1.11 × | 1.19 × | 1.19 × | 0.06 × |
//!
//! At 99 % it takes a hundred requests to see that this is no outage, so it depends on chance how soon
//! a client finds out, and half a point can be missing: of 200 calls a second for a minute 0.4 to 1.2 %
//! succeed, of ten calls a second for ten minutes 0.5 to 0.6 %, and without retries 1.0 %.
//!
//! [`consecutive_failures`] sets a plain count instead, and [`failure_rate`] a share of a window.
//!
//! # How it finds out
//!
//! The first probe goes out half a second after the opening. Each further one comes after twice the
//! time, up to five seconds, or as soon as 32 calls were refused, at most four times a second. A probe
//! that hangs holds nobody up; one that is dropped, or says nothing about the dependency's health, makes
//! way for the next. Under a [`RetryLayer`](crate::RetryLayer) a refused call looks again once, if a
//! probe is due within five seconds and no more than 32 calls wait for it.
//!
//! # The throttle
//!
//! A dependency that answers 429, `RESOURCE_EXHAUSTED` or 503 with `Retry-After`, or lets attempts time
//! out, has too much to do. Then a share of the calls is refused ([`Refusal::Throttle`]), so that no
//! more than [two](crate::policy::PolicyBuilder::throttle) are sent for each one that it accepts, and
//! hardly any more than it accepts if calls time out. Other failures shed nothing. Under a `RetryLayer`
//! a call that was shed looks again up to twice, 1.5 to 10.5 s later, when a spike may be over; no more
//! calls wait for that than the dependency serves in 3 s, so that an overload does not go on in them.
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
//! | while it is open a bounded share of the calls goes out as probes | that processes agree on the state |
//! | a hung, dropped or neutral probe makes way for the next | that a service which answers wrongly with 200 is noticed |
//!
//! # What goes wrong
//!
//! | mistake | what happens | instead |
//! | --- | --- | --- |
//! | one name for several endpoints | the breaker sees their average: one dead endpoint of ten is never noticed | a name for each: [`Dependencies::at`](crate::Dependencies::at) |
//! | a plain count of failures, such as `consecutive_failures(5)`, for a dependency that fails often | it opens by chance, and half an outage becomes a whole one | leave [`no_success_for`](crate::policy::PolicyBuilder::no_success_for) at a second |
//! | no `RetryLayer` above | each refusal is the caller's to handle | [`stacks::client`](crate::stacks::client), or match [`Refused`](crate::error::Refused) |
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
