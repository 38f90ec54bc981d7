//! On the server: an operation is executed once, however often it is asked for.

mod body;
mod builder;
mod digest;
mod engine;
mod execute;
mod execution;
mod future;
mod hygiene;
mod key;
mod keyed;
mod layer;
mod outcome;
mod reply;
mod service;
mod settings;

pub use self::{
    body::IdempotencyBody,
    builder::{IdempotencyBuilder, Missing, Scoped},
    execution::Execution,
    future::IdempotencyFuture,
    layer::IdempotencyLayer,
    outcome::{Outcome, ServerErrors},
    service::Idempotency,
    settings::Requirement,
};
