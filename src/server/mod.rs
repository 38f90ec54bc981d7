//! Layers for a server: the second call is harmless, and callers are told what to do next.

pub mod deadline;
#[cfg(feature = "server")]
pub mod dialect;
#[cfg(feature = "server")]
pub mod idempotency;
pub mod inbound_budget;
pub mod problem;
