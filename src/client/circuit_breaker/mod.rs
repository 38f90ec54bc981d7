//! Stop calling what fails, and find out gently when it is back.
//!
//! Retries mend single failures; during an outage each of them only costs time and load. The
//! breaker of a dependency opens after a run of failures, or when too large a share of its calls
//! fails, and then calls are refused at once. After a cooldown exactly one call goes through: if
//! it succeeds all calls do again, if not the next cooldown is longer. A probe that is dropped, or
//! that says nothing about the dependency's health, frees its place, so that a breaker is never
//! stuck.
//!
//! # A dependency of which half works
//!
//! Five failures in a row come by chance, too: of a dependency that fails half of its calls, after
//! some sixty of them. The breaker then refuses calls that would have succeeded, and the busier the
//! client is the more. Where half is better than none, let it open only when next to nothing works,
//! and leave the rest to the budget, which holds the load at 1.2 either way
//! (`cargo run --release --example simulate -- --only failures`):
//!
//! ```
//! # use std::time::Duration;
//! # use tower_reprise::Policy;
//! let patient = Policy::synchronous()
//!     .consecutive_failures(50)
//!     .failure_rate(0.9, 100, Duration::from_secs(30))
//!     .build()?;
//! # Ok::<(), tower_reprise::error::ConfigError>(())
//! ```
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
//! let deps = Dependencies::new(Policy::synchronous().consecutive_failures(2).build()?);
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

pub use self::{future::CircuitBreakerFuture, layer::CircuitBreakerLayer, service::CircuitBreaker};
