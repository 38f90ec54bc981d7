//! Replay in several processes that are killed or stopped, and without its journal: what got a 202
//! ends, once, and nothing else gets one.
#![cfg(all(
    feature = "delivery",
    feature = "tracing",
    any(feature = "sqlite", feature = "postgres", feature = "redis")
))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

mod audit;
mod backend;
mod disturbed;
mod killed;
mod ledger;
#[cfg(feature = "postgres")]
mod on_postgres;
#[cfg(feature = "redis")]
mod on_redis;
#[cfg(feature = "sqlite")]
mod on_sqlite;
mod order;
mod outage;
mod poison;
mod receiver;
mod shop;
mod stopped;

#[path = "../support/mod.rs"]
mod support;
