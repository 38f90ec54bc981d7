//! Layers for a client: whether, when and how often to call again.
//!
//! Each module is one layer and works alone. Stacked on one
//! [`Dependencies`](crate::dependency::Dependencies) registry they share its policy and its state;
//! [`stacks::client`](crate::stacks::client) has all of them in the right order.

#[cfg(feature = "tracing")]
pub mod attempt_span;
pub mod circuit_breaker;
mod guard;
pub mod hedge;
pub mod idempotency_key;
mod located;
pub mod peek;
mod pool;
pub mod retry;
pub mod retry_after;
pub mod retry_budget;
mod timer;

pub use self::{
    guard::{Guard, GuardFuture, GuardLayer},
    located::CallLocated,
};

#[cfg(all(test, not(reprise_loom)))]
mod tests;
