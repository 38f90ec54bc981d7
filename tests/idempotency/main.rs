//! Idempotency on the server, rule by rule.
#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

#[cfg(feature = "sqlite")]
mod anything;
mod backends;
mod crashes;
mod doubt;
mod duplicates;
mod events;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod failover;
mod hang_ups;
mod keys;
mod lifetimes;
mod loopback;
mod nested;
mod outage;
mod own_commit;
mod proof;
mod replies;
mod scopes;
mod setup;
#[cfg(all(feature = "metrics", feature = "tracing"))]
mod telemetry;

#[path = "../support/mod.rs"]
mod support;
