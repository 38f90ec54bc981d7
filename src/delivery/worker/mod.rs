//! A worker for one queue of a [`Journal`](crate::store::journal::Journal).
//!
//! A worker leases due entries a few at a time and passes each to its [`Handler`]. It visits all
//! lanes in turn and handles only a few entries of each at once, so that one slow target does not
//! delay the others. It extends the lease of an entry while the handler runs; when the process dies
//! the lease runs out, and another worker takes over. Any number of workers, in any number of
//! processes, can share a queue.
//!
//! Use it for jobs of your own. Replays, webhooks and alerts have handlers already:
//! [`Replay::worker`](crate::delivery::replay::Replay::worker),
//! [`Webhooks::worker`](crate::delivery::webhooks::Webhooks::worker),
//! [`DeadLetters::alerts`](crate::delivery::dead_letter::DeadLetters::alerts).
//!
//! | setting of [`WorkerBuilder`] | default | allowed |
//! | --- | --- | --- |
//! | [`concurrency`](WorkerBuilder::concurrency) | 64 | 1 to 10,000 |
//! | [`per_lane`](WorkerBuilder::per_lane) | 4 | 1 to 10,000 |
//! | [`prefetch`](WorkerBuilder::prefetch) | 0 | up to 10,000 |
//! | [`in_order`](WorkerBuilder::in_order) | off | |
//! | [`lease`](WorkerBuilder::lease) | 30 s | 1 s to 10 min |
//! | [`poll`](WorkerBuilder::poll) | 1 s | 10 ms to 1 min |
//!
//! ```
//! use std::time::Duration;
//! use tower_reprise::{
//!     delivery::worker::{Handler, WorkerBuilder},
//!     store::{MemoryStore, journal::{Entry, Journal, NewEntry, Settlement, Status}},
//! };
//!
//! struct Mails;
//!
//! impl Handler for Mails {
//!     async fn handle(&self, entry: Entry) -> Settlement {
//!         // Send entry.payload.
//!         Settlement::completed("sent", Duration::from_secs(3600))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let journal = MemoryStore::new();
//! let mail = NewEntry::new("mails", "welcome, Ada");
//! let id = mail.id;
//! journal.enqueue(mail).await?;
//!
//! let worker = WorkerBuilder::new(journal.clone(), "mails", Mails).concurrency(8).start()?;
//! # while journal.find(id).await?.is_some_and(|mail| !mail.status.is_over()) {
//! #     tokio::task::yield_now().await;
//! # }
//! worker.shutdown(Duration::from_secs(10)).await;
//! assert_eq!(journal.find(id).await?.map(|mail| mail.status), Some(Status::Completed));
//! # Ok(())
//! # }
//! ```
//!
//! # Many small jobs
//!
//! Where a handler takes less time than a commit, let the worker hold more entries:
//! [`prefetch`](WorkerBuilder::prefetch) of twice the concurrency, and
//! [`per_lane`](WorkerBuilder::per_lane) of as many if there are few lanes. Keep results for as long as
//! they are read, no longer: PostgreSQL removes an entry that is completed and kept for no time
//! ([`Duration::ZERO`](std::time::Duration::ZERO)) instead of writing it again.
//!
//! # Retries
//!
//! An attempt after the first is logged and counted as a client's retry is (`retry_attempts_total`,
//! `retry_backoff_duration_seconds`, `retry_exhausted_total`), under the name of the entry's
//! [target](Handler::target) or else of its queue. Retries to one target share a budget, a fifth of its
//! first attempts by default: an entry past it waits, without having used an attempt. One retry every
//! 30 s goes out to a target all the same, so that a target that is back is noticed.
//! [`dependencies`](WorkerBuilder::dependencies) sets the registry that has those budgets.
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | an entry is handled until it is settled, by some worker, also after a crash | that it is handled once: handlers must be idempotent |
//! | a settlement and its outbox are one commit | an order among entries, but for [`in_order`](WorkerBuilder::in_order) |
//! | attempts are counted before they begin; a shutdown is none | that a handler is stopped at the end of its lease: it is extended while it runs |
//!
//! # What goes wrong
//!
//! - An entry is handled twice if its lease is lost while the handler runs: handlers must be
//!   idempotent.
//! - A handler that panics is called again after 5 s; a handler that counts
//!   [`attempts`](crate::store::journal::Entry::attempts) can give up.
//! - A journal that fails is asked again with backoff, and leases are extended meanwhile. Handlers go
//!   on while their predecessors are settled, but at most four times `concurrency` entries are
//!   handled or unsettled.
//! - A shutdown that interrupts a handler is no attempt of its entry.

mod alert;
mod builder;
mod handle;
mod handler;
mod job;
mod retries;
mod run;
mod slots;

pub(crate) use self::alert::{ALERTS, alert};
pub use self::{
    builder::WorkerBuilder,
    handle::{WorkerHandle, WorkerNotifier},
    handler::{Admission, Handler, LaneAdmission, TargetAdmission},
    retries::AttemptLabels,
};
