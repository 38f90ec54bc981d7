//! The logs and the metrics, their names, and the values that are never in them.
#![cfg(all(feature = "metrics", feature = "tracing"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

mod counters;
#[cfg(feature = "delivery")]
mod dead_letters;
mod events;
mod exported;
mod hedges;
#[cfg(feature = "delivery")]
mod operate;
mod secrets;
mod setup;
mod traces;
#[cfg(feature = "delivery")]
mod workers;

#[path = "../support/mod.rs"]
mod support;
