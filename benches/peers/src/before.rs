//! The code before a migration, as the guide shows it. It is built here, since the crate itself
//! depends on none of these libraries.
#![allow(dead_code)]

#[path = "../../../src/guide/before/axum_idempotent.rs"]
mod axum_idempotent;
#[path = "../../../src/guide/before/reqwest_retry.rs"]
mod reqwest_retry;
#[path = "../../../src/guide/before/tower_resilience.rs"]
mod tower_resilience;
#[path = "../../../src/guide/before/tower_retry.rs"]
mod tower_retry;
