//! Every pair of a layer of this crate and one of tower-http or tower, in both orders, on the
//! servers and clients that people have: each is compiled, and called once. `--nocapture` prints the
//! tables.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::vec_init_then_push,
    reason = "these are tests"
)]

mod clients;
mod hops;
mod layers;
mod routers;
mod servers;
mod table;
mod tonic;
