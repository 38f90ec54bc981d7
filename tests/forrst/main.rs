//! The forrst dialect: envelopes, guidance that a server gives and how a client obeys it, and
//! functions that are executed once.
#![cfg(feature = "forrst")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

#[path = "../support/mod.rs"]
mod support;

mod client;
mod envelopes;
mod examples;
mod guidance;
#[cfg(feature = "server")]
mod idempotency;
mod keys;
mod loopback;
mod plain;
#[cfg(all(feature = "axum", feature = "delivery", feature = "seal"))]
mod replay;
