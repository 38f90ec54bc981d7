//! Records in a SQLite file: for the processes of one machine, and for what must survive them.
//!
//! Nothing to install and nothing to run: SQLite is part of the program. What was answered is on
//! disk (write-ahead log, `synchronous = FULL`), so that a kill, a crash or a power cut loses
//! nothing that somebody was told.
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
//!     orphans: CrashPolicy::Reexecute,
//!     note: Note::NONE,
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
//! One thread writes. What queues up while the disk is busy is committed together, so that many
//! requests at once cost hardly more than one. Another thread reads: a claim that finds a reply, a
//! mismatch or somebody else's lease is answered from there and never waits for a commit.
//!
//! # The journal
//!
//! The same file holds a [`Journal`](super::journal::Journal): an entry that was accepted is on
//! disk, along with whatever else was committed then. What is next in a lane is found by index,
//! however many wait. A disk that is full refuses new entries, and also outcomes: an entry whose
//! outcome could not be written is leased again later, so leave some room.
//!
//! # Several processes
//!
//! Any number of processes of one machine can open the same file; each waits for the lock for at
//! most [`busy_timeout`](SqliteStoreBuilder::busy_timeout). The file must be on a local disk, and
//! as long as it is open neither it nor the files beside it may be copied over, moved or deleted:
//! if it is, everything is refused until it is opened again. A process that is stopped in the
//! middle of a commit keeps the others waiting; one that is killed does not.
//!
//! # Time
//!
//! Leases and expiry run on the machine's wall clock, which all its processes share. When the clock
//! is set forward, leases and records end that much earlier: an operation in flight may be taken
//! over, and then the late owner's completion is rejected. When it is set back, they end that much
//! later. Tokens don't depend on the clock.
//!
//! # Room
//!
//! Records and entries that are past their time are removed along with what is written anyway, a few at a
//! time. Their room in the file is used again, but the file does not shrink. A disk that is full,
//! or [`max_bytes`](SqliteStoreBuilder::max_bytes), refuses new operations, never drops a record,
//! and still answers for those that are done.

mod builder;
mod error;
mod file;
mod journal;
mod records;
mod store;
mod worker;

pub use self::{builder::SqliteStoreBuilder, store::SqliteStore};
