//! Webhooks.

pub mod guard;
mod headers;
mod key;
mod schedule;
pub mod sign;
pub mod verify;

pub use self::{headers::UserHeaders, schedule::Schedule};
