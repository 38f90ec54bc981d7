//! Tower layers that make calls safe to repeat.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backoff;
pub mod circuit_breaker;
pub mod classify;
pub mod dependency;
pub mod error;
pub mod idempotency_key;
pub mod policy;
pub mod retry;
pub mod retry_after;
pub mod retry_budget;

mod sync;
mod telemetry;
mod wire;

pub use self::{
    circuit_breaker::CircuitBreakerLayer,
    dependency::Dependencies,
    idempotency_key::{IdempotencyKey, IdempotencyKeyLayer},
    policy::Policy,
    retry::{RetryLayer, RetryOutcome, RetryOverride},
    retry_after::RetryAfterLayer,
    retry_budget::RetryBudgetLayer,
};

/// Gives back what a service reserved when it was made ready, because it will not be called: a
/// refused call must not keep a place in a concurrency limit below.
fn release<S: Clone>(service: &mut S) {
    *service = service.clone();
}
