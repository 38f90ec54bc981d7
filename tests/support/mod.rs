//! Helpers that the test binaries share, one file per subject.
#![allow(dead_code, reason = "no binary uses all of it")]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers are tests too"
)]

#[cfg(feature = "hyper")]
pub(crate) mod arrivals;
pub(crate) mod authority;
pub(crate) mod calls;
pub(crate) mod codes;
#[cfg(feature = "server")]
pub(crate) mod crash;
pub(crate) mod database;
pub(crate) mod disk;
#[cfg(feature = "server")]
pub(crate) mod flaky;
#[cfg(feature = "tonic")]
pub(crate) mod grpc;
#[cfg(feature = "hyper")]
pub(crate) mod http1;
#[cfg(feature = "hyper")]
pub(crate) mod http2;
pub(crate) mod layers;
#[cfg(feature = "server")]
pub(crate) mod outage;
#[cfg(feature = "postgres")]
pub(crate) mod pgbouncer;
pub(crate) mod pieces;
pub(crate) mod policies;
pub(crate) mod ports;
pub(crate) mod postgres;
pub(crate) mod process;
#[cfg(feature = "metrics")]
pub(crate) mod promql;
#[cfg(feature = "server")]
pub(crate) mod races;
#[cfg(feature = "server")]
pub(crate) mod records;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod scripted;
#[cfg(feature = "hyper")]
pub(crate) mod stragglers;
#[cfg(all(feature = "metrics", feature = "tracing"))]
pub(crate) mod telemetry;

#[allow(unused_imports, reason = "no binary uses all of it")]
pub(crate) use self::{
    calls::{call, code, find, outcome, outcome_of, refusal, stop_reason, verdict},
    policies::{Fixed, deps, quick, secs},
};

/// Returns the number in an environment variable, which makes a test run longer.
pub(crate) fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    match value.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{name}={value} is not a number"),
    }
}
