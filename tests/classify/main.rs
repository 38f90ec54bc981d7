//! Classification: verdicts on statuses and errors, codes in bodies, and when to call again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

#[cfg(feature = "codes")]
mod codes;
mod faults;
mod retry_after;
mod verdicts;

#[path = "../support/mod.rs"]
mod support;
