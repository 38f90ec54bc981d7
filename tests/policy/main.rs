//! Policies: built, read from files, audited, and changed while calls are under way.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

mod builder;
#[cfg(feature = "serde")]
mod documents;
#[cfg(feature = "serde")]
mod files;
mod reload;
#[cfg(feature = "serde")]
mod service_config;

#[path = "../support/mod.rs"]
mod support;
