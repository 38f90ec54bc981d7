//! Guarantees of each store.
//!
//! "Exactly once" is two guarantees: an acknowledged request is not lost, and its effect does not
//! happen twice. Both depend on the store.
//!
//! # An operation with a key
//!
//! While its record is kept:
//!
//! | | memory | SQLite | PostgreSQL | Redis |
//! | --- | --- | --- | --- | --- |
//! | of concurrent duplicates, one is executed | in one process | on one machine | everywhere | everywhere |
//! | a repeat gets the first one's reply, byte for byte | yes | yes | yes | yes |
//! | the client hangs up: the handler ends, its reply is kept | yes | yes | yes | yes |
//! | the server's process is killed: replies survive | no | yes | yes | yes |
//! | the store's process is killed: replies survive | | | yes | with `appendfsync always`, or [`fsync`](crate::store::redis#what-it-can-lose) |
//! | the machine loses power: replies survive | no | yes | yes | with `appendfsync always`, or [`fsync`](crate::store::redis#what-it-can-lose) |
//! | the store fails over to a replica: replies survive | | | if replication is synchronous | not the last moments |
//! | a clock that is wrong does no harm | yes | leases end early or late | yes, but for the database's own | yes, but for the server's own |
//! | the store is down | | 503 | 503 | 503 |
//! | the store is full | 503 | 503 | 503 | 503 |
//!
//! # When the server dies in the middle
//!
//! After a crash in the middle of an operation no store can tell whether its effect happened. The
//! layer's builder takes the decision, since it depends on the effect:
//!
//! - [`CrashPolicy::Reexecute`](crate::store::CrashPolicy::Reexecute): after the lease the operation is
//!   executed again. Choose it if the effect is harmless twice, or guarded by the
//!   [fencing token](crate::server::idempotency::Execution::token).
//! - [`CrashPolicy::Unknown`](crate::store::CrashPolicy::Unknown): duplicates get an error that says that
//!   the outcome is unknown, for a person to resolve.
//! - [`PostgresStore::complete_in`](crate::store::PostgresStore::complete_in): the effect and
//!   its record are committed in one transaction, which is exactly once for effects in that
//!   database. See the example `exactly_once`.
//!
//! The fencing token is useful with each of them: it grows with each owner, so that a process that
//! was paused can't overwrite what its successor did. In SQL:
//!
#![cfg_attr(feature = "server", doc = "```")]
#![cfg_attr(not(feature = "server"), doc = "```rust,ignore")]
//! use tower_reprise::server::idempotency::Execution;
//!
//! fn guarded(execution: &Execution) -> (&'static str, i64) {
//!     let token = i64::try_from(execution.token().get()).unwrap_or(i64::MAX);
//!     ("UPDATE orders SET state = 'paid', token = $1 WHERE id = $2 AND token < $1", token)
//! }
//! ```
//!
//! # When the store goes down
//!
//! New operations get a 503, and nothing is executed. Operations that run end; their callers get the
//! reply, and the store gets it when it is back. As long as a renewal gets through within two thirds of
//! the [lease](crate::server::idempotency::IdempotencyBuilder::lease) (20 s by default), each key keeps
//! its owner: nothing is lost and nothing is executed twice, whatever the crash policy. After a longer
//! outage, or several in a row, a repeat that comes before the completion finds an orphan, and the crash
//! policy decides: choose a lease of several times what your store takes to restart and to catch up.
//!
//! # A request that was accepted for later
//!
//! | | memory | SQLite | PostgreSQL | Redis |
//! | --- | --- | --- | --- | --- |
//! | 202 means: it survives a kill of this process | no | yes | yes | yes |
//! | it survives a power cut | no | yes | yes | with `appendfsync always`, or `fsync` |
//! | it is attempted at least once, or expires and says so | yes | yes | yes | yes |
//! | its effect happens once | under an [`IdempotencyLayer`](crate::server::idempotency::IdempotencyLayer), as above | | | |
//! | a webhook about it is sent at least once | yes | yes | yes | yes |
//!
//! Deliveries are at least once: a receiver that answers too late gets the event again, with the
//! same id. [`EventDedupLayer`](crate::server::idempotency::events::EventDedupLayer) discards it there.
//!
//! # Tests
//!
//! [`store::conformance`](crate::store::conformance) is the contract as a test, run on all four
//! stores, and on a store of your own. The tests kill servers with SIGKILL in the middle of
//! operations, pause and resume workers, fill disks and cut connections.
