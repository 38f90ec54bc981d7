//! The layers together, in every subset and order, and what each adds to the others.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

mod arrangements;
mod breaker;
mod by_hand;
mod circuit_breaker;
mod deadline;
mod edges;
mod gate;
mod hedges;
mod honoured;
mod inbound;
mod keys;
mod registry;
mod setup;
mod whole;

#[path = "../support/mod.rs"]
mod support;
