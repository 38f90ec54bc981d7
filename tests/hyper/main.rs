//! The stack over a real hyper client, against real servers that misbehave on purpose.
#![cfg(feature = "hyper")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

mod client;
mod connections;
mod errors;
mod faults;
mod hedges;
mod http2;
mod never_twice;
mod problems;
#[cfg(feature = "axum")]
mod router;
mod stack;
mod streaming;
mod superseded;
mod times;
mod tls;
#[cfg(feature = "tracing")]
mod traces;

#[path = "../support/mod.rs"]
mod support;
