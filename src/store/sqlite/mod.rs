//! Records and a queue in a SQLite file, shared by the processes of one machine.
//!
//! SQLite is linked into the program: there is nothing to install or to run. Every acknowledged
//! transition is on disk (write-ahead log, `synchronous = FULL`) and survives a kill, a crash or a
//! power cut.
//!
//! ```
//! use std::time::Duration;
//! use tower_reprise::store::{
//!     Claim, ClaimId, Claimed, Fingerprint, IdempotencyStore, Note, CrashPolicy, RecordKey, SqliteStore,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("reprise-{}", uuid::Uuid::from_bytes(*ClaimId::random().as_bytes())));
//! # std::fs::create_dir(&folder)?;
//! let path = folder.join("idempotency.db");
//! let claim = Claim {
//!     key: RecordKey::new([1; 32]),
//!     fingerprint: Fingerprint::new([2; 32]),
//!     id: ClaimId::random(),
//!     lease: Duration::from_secs(30),
//!     retention: Duration::from_secs(24 * 60 * 60),
//!     crash_policy: CrashPolicy::Reexecute,
//!     note: Note::NONE,
//!     resumes: None,
//! };
//!
//! let store = SqliteStore::open(&path)?;
//! assert!(matches!(store.claim(claim.clone()).await?, Claimed::New(_)));
//!
//! // Another process, or this one after a restart.
//! let other = SqliteStore::builder().busy_timeout(Duration::from_secs(1)).open(&path)?;
//! let duplicate = Claim { id: ClaimId::random(), ..claim };
//! assert!(matches!(other.claim(duplicate).await?, Claimed::InFlight { .. }));
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! One thread writes. Transitions that queue up while the disk is busy are committed together
//! (group commit), so many requests at once cost hardly more than one. Another thread looks claims up:
//! one that finds a reply, a mismatch or a lease in force is answered there, without a commit. A third
//! one reads everything else, so that a slow count or list stalls no claim.
//!
//! # The journal
//!
//! The same file holds a [`Journal`](super::journal::Journal). An index finds the next entry of a
//! lane, however many wait.
//!
//! # Several processes
//!
//! Any number of processes of one machine can open the same file; each waits for the lock for at
//! most [`busy_timeout`](SqliteStoreBuilder::busy_timeout). The file must be on a local disk. While
//! it is open, do not overwrite, move or delete it or the files beside it: every verb then fails
//! until the file is opened again. A process that is stopped in the middle of a commit blocks the
//! others; one that is killed does not.
//!
//! # Time
//!
//! Leases and expiry run on the machine's wall clock, which all its processes share. Setting it
//! forward ends leases and records earlier by as much: another claim may take over an operation in
//! flight, and the late owner's completion is rejected. Setting it back ends them later. Tokens do
//! not depend on the clock.
//!
//! # Room
//!
//! Commits remove expired records and entries along the way, a few at a time. The file reuses their
//! room and does not shrink. A full disk, or [`max_bytes`](SqliteStoreBuilder::max_bytes), rejects
//! new operations ([`Full`](super::StoreErrorKind::Full)), never drops a record, and completed
//! operations are still found. What runs can be renewed, completed and settled: a
//! [reserve](SqliteStoreBuilder::reserve) is kept for that. A reply that does not fit in there either
//! is not retained, so that its operation is not executed again.
//!
//! # Damage
//!
//! All of the file is read and [checked](SqliteStoreBuilder::check_on_open) when it is opened, and
//! every row has a checksum that is verified when it is read. A damaged file is refused
//! ([`Corrupt`](super::StoreErrorKind::Corrupt)); one that is found damaged later fails every verb
//! until it is opened again. Restore it from a backup, or start with a new one: operations that were
//! completed before are executed again then. The files are readable for their owner alone.
//!
//! Committed transitions are in the log beside the file until they are copied over. SQLite can't
//! tell a log that was damaged or deleted from one that was never finished: transitions in it are
//! lost.

mod builder;
mod checksum;
mod error;
mod file;
mod journal;
mod records;
mod reserve;
mod schema;
mod store;
mod unknown;
mod worker;

pub use self::{builder::SqliteStoreBuilder, store::SqliteStore};
