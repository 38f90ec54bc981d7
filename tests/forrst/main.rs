//! The forrst dialect: envelopes, guidance that a server gives, and how a client obeys it.
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
mod guidance;
mod keys;
mod loopback;
