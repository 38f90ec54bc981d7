//! A test suite for stores.
//!
//! [`run`] tries the known ways to get a store wrong: two claims that both win, an owner that comes
//! back late and overwrites, a record that outlives its lease by a day. [`model`] plays random
//! interleavings of claim, renew, complete, release, expiry and crash, and compares every result with
//! a simple model. [`unknown_outcomes`] tests the verbs for those, and [`journal`] does the same for a [`Journal`](super::journal::Journal). All panic at
//! the first difference.
//!
//! ```
//! use std::time::Duration;
//! use tower_reprise::store::{MemoryStore, conformance};
//!
//! struct Memory(MemoryStore);
//!
//! impl conformance::Backend for Memory {
//!     type Store = MemoryStore;
//!
//!     async fn open(&self) -> MemoryStore {
//!         self.0.clone()
//!     }
//!
//!     async fn pass(&self, time: Duration) {
//!         tokio::time::advance(time).await;
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let backend = Memory(MemoryStore::new());
//! conformance::run(&backend).await;
//! conformance::unknown_outcomes(&backend).await;
//! conformance::model(&backend, 1, 500).await;
//! conformance::journal(&backend).await;
//! # }
//! ```
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "it is a test"
)]

mod cases;
mod journal;
mod model;

use std::{future::Future, time::Duration};

pub use self::{
    cases::{run, unknown_outcomes},
    journal::journal,
    model::model,
};

/// A store under test, and its clock.
pub trait Backend {
    /// The store: an [`IdempotencyStore`](super::IdempotencyStore), a
    /// [`Journal`](super::journal::Journal), or both.
    type Store: Send + Sync + 'static;

    /// Opens another handle on the same records, as another process would.
    fn open(&self) -> impl Future<Output = Self::Store>;

    /// Advances the clock of the store, for all handles. A store whose clock can't be moved has to
    /// sleep, and should have a short [`unit`](Backend::unit).
    fn pass(&self, time: Duration) -> impl Future<Output = ()>;

    /// Returns the unit of time: leases last a few of them, and the verbs between two calls of
    /// [`pass`](Backend::pass) must take far less than one.
    fn unit(&self) -> Duration {
        Duration::from_secs(60)
    }
}
