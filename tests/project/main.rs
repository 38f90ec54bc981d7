//! Checks of the project itself: its public API, and the dependencies that it brings.

#![allow(clippy::unwrap_used, reason = "the helpers are tests too")]

mod api;
mod container;
mod dependencies;
mod examples;
mod pages;
mod rules;
