//! Requests that can't be served now: how they are journaled, replayed and followed.

mod accept;
mod attempts;
mod callbacks;
mod control;
mod drain;
mod records;
mod shop;
mod targets;
