//! What the guide shows as the code of those who come from elsewhere. It is built here, since the
//! crate itself depends on none of it.
#![allow(dead_code)]

#[path = "../../../src/guide/before/axum_idempotent.rs"]
mod axum_idempotent;
#[path = "../../../src/guide/before/reqwest_retry.rs"]
mod reqwest_retry;
#[path = "../../../src/guide/before/tower_resilience.rs"]
mod tower_resilience;
#[path = "../../../src/guide/before/tower_retry.rs"]
mod tower_retry;
