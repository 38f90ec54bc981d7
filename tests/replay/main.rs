//! Requests that can't be served now: how they are journaled, replayed and followed.
#![cfg(all(feature = "delivery", feature = "axum"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

mod accept;
mod callbacks;
mod control;
mod drain;
mod support;
