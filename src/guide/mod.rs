//! Why it is the way it is, and how to live with it.
//!
//! The other modules say what each part does. These pages say what to decide before you use them,
//! and what to do on the day after.
//!
//! | page | answers |
//! | --- | --- |
//! | [`budgets`] | why three retries are not three retries, and what a budget changes |
//! | [`safety`] | what may be called again, and what never |
//! | [`order`] | which layer goes where, on a client, a server and a proxy |
//! | [`promises`] | what exactly each store promises, and what it can lose |
//! | [`operating`] | maintenance, replays, dead letters, reloading a policy: the commands and the metrics |
//! | [`rules`] | every rule that the tests prove, by its id |
//! | [`migrating`] | from `tower::retry`, reqwest-retry, tower-resilience and axum-idempotent |
//!
//! In a hurry? Take [`stacks::client`](crate::stacks::client) on the client and
//! [`IdempotencyLayer`](crate::server::idempotency::IdempotencyLayer) on the server, keep the defaults, and read
//! [`safety`] before you change one:
//!
//! ```
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{Dependencies, Policy, error::BoxError, stacks};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! let http = service_fn(|_: Request<String>| async { // your client
//!     Ok::<_, BoxError>(Response::new(String::from("7 in stock")))
//! });
//!
//! let deps = Dependencies::new(Policy::synchronous().service("checkout").build()?);
//! let mut client = ServiceBuilder::new().layer(stacks::client(deps)).service(http);
//!
//! let request = Request::get("http://stock.example/items/7").body(String::new())?;
//! assert_eq!(client.ready().await?.call(request).await?.status(), 200);
//! # Ok(())
//! # }
//! ```

pub mod budgets;
pub mod migrating;
pub mod operating;
pub mod order;
pub mod promises;
#[doc = include_str!("rules.md")]
pub mod rules {}
pub mod safety;
