//! The stores: the contract of all of them, and what each does beyond it.
#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

#[cfg(all(feature = "forrst", feature = "delivery"))]
mod calls;
mod memory;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "seal")]
mod sealed;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(all(feature = "axum", feature = "delivery"))]
mod webhooks;

#[path = "../support/mod.rs"]
mod support;
