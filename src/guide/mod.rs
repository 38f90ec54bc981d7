//! Guide: decisions to take before using the layers, and their operation.
//!
//! The other modules document each part. These pages cover the reasons for their design and what
//! spans several of them.
//!
//! | page | covers |
//! | --- | --- |
//! | [`budgets`] | why a retry count does not bound load, and what a budget changes |
//! | [`safety`] | which requests may be sent again |
//! | [`order`] | the order of layers on a client, a server and a proxy |
//! | [`promises`] | what each store guarantees, and what it can lose |
//! | [`gateway`] | `reprise gateway` in production: configuration, reload, systemd, containers |
//! | [`transactions`] | completing and enqueueing in transactions of sqlx, diesel and SeaORM |
//! | [`operating`] | metrics and alerts, maintenance, replays, dead letters, policy reload |
//! | [`rules`] | every rule that the tests prove, by its id |
//! | [`migrating`] | moving from `tower::retry`, reqwest-retry, tower-resilience and axum-idempotent |
//!
//! To start, put [`stacks::client`](crate::stacks::client) on the client and
//! [`IdempotencyLayer`](crate::server::idempotency::IdempotencyLayer) on the server with their
//! defaults, and read [`safety`] before changing one:
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
//! let deps = Dependencies::new(Policy::http().service("checkout").build()?);
//! let mut client = ServiceBuilder::new().layer(stacks::client(deps)).service(http);
//!
//! let request = Request::get("http://stock.example/items/7").body(String::new())?;
//! assert_eq!(client.ready().await?.call(request).await?.status(), 200);
//! # Ok(())
//! # }
//! ```

// Pages link to items of all features.
#![cfg_attr(not(feature = "full"), allow(rustdoc::broken_intra_doc_links))]

pub mod budgets;
pub mod gateway;
pub mod migrating;
pub mod operating;
pub mod order;
pub mod promises;
#[doc = include_str!("rules.md")]
pub mod rules {}
pub mod safety;
pub mod transactions;
