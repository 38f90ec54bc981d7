//! Send a second attempt.
mod call;
mod decide;
mod future;
mod layer;
mod second;
mod service;

pub use self::{future::HedgeFuture, layer::HedgeLayer, service::Hedge};
