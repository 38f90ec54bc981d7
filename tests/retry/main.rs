//! The retry loop, poll by poll and under paused time.
//!
//! The scripted services panic when they are called without having been readied, so that each test is
//! also one of D-7.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

mod aws;
mod backoff;
mod bearer;
mod bodies;
mod deadline;
mod events;
mod hook;
mod overrides;
mod peek;
mod readiness;
mod reasons;
mod replay;
mod setup;
mod verdicts;
mod waits;

#[path = "../support/mod.rs"]
mod support;
