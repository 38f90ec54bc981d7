//! The program as its user has it: its own binary, with its flags; the gateway in front of servers
//! that know nothing of it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

mod browser;
mod commands;
mod console;
mod edge;
mod executing;
mod flags;
mod gateway;
mod hands;
mod hostile;
mod keys;
mod once;
mod operation;
mod replays;
mod routes;
mod shop;
mod stores;
mod streaming;
mod traffic;
mod tunnels;

#[path = "../support/mod.rs"]
mod support;
