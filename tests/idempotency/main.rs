//! Idempotency on the server, rule by rule.
#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

mod crashes;
mod duplicates;
mod events;
mod keys;
mod loopback;
mod outage;
mod replies;
mod scopes;
mod support;
#[cfg(all(feature = "metrics", feature = "tracing"))]
mod telemetry;
