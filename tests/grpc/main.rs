//! gRPC: the layers over any transport, and over real tonic clients and servers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

#[cfg(feature = "tonic")]
mod client;
#[cfg(feature = "tonic")]
mod connections;
#[cfg(all(feature = "descriptors", feature = "tonic"))]
mod descriptors;
#[cfg(feature = "tonic")]
mod generated;
#[cfg(feature = "tonic")]
mod interceptors;
#[cfg(feature = "tonic")]
mod pushback;
#[cfg(feature = "tonic")]
mod refusals;
#[cfg(all(feature = "serde", feature = "tonic"))]
mod service_config;
#[cfg(feature = "tonic")]
mod statuses;
mod timeouts;
#[cfg(feature = "tonic")]
mod tls;
#[cfg(feature = "tonic")]
mod uploads;

#[path = "../support/mod.rs"]
mod support;
