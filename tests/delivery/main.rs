//! Deliveries: workers, webhooks and dead letters on a journal, and requests that are replayed.
#![cfg(feature = "delivery")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

#[cfg(feature = "axum")]
mod dead_letters;
#[cfg(feature = "axum")]
mod fan_out;
mod purge;
#[cfg(feature = "axum")]
mod queued_webhooks;
#[cfg(feature = "axum")]
mod replay;
#[cfg(feature = "axum")]
mod sequences;
#[cfg(feature = "axum")]
mod setup;
#[cfg(feature = "axum")]
mod slow_journal;
mod webhook;
#[cfg(feature = "axum")]
mod worker;

#[path = "../support/mod.rs"]
mod support;
