//! Records in a SQLite file: for the processes of one machine, and for what must survive them.
//!
//! Nothing to install and nothing to run: SQLite is part of the program. What was answered is on
//! disk (write-ahead log, `synchronous = FULL`), so that a kill, a crash or a power cut loses
//! nothing that somebody was told.
//!
//! ```
//! use std::time::Duration;
//! use tower_reprise::store::{
//!     Claim, ClaimId, Claimed, Fingerprint, IdempotencyStore, Orphans, RecordKey, SqliteStore,
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
//!     orphans: Orphans::Reexecute,
//! };
//!
//! let store = SqliteStore::open(&path)?;
//! assert!(matches!(store.claim(claim).await?, Claimed::New(_)));
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
//! Records that are past their time are removed along with what is written anyway, a few at a
//! time. Their room in the file is used again, but the file does not shrink. A disk that is full,
//! or [`max_bytes`](SqliteStoreBuilder::max_bytes), refuses new operations, never drops a record,
//! and still answers for those that are done.

mod error;
mod file;
mod records;
mod worker;

use std::{
    fmt,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::sync::oneshot;

use self::{
    error::Failure,
    file::{Clock, Database, Settings},
    worker::{Batch, Job, Work, Worker},
};
use super::{
    Claim, Claimed, FencingToken, IdempotencyStore, Ownership, RecordKey, StoreError,
    StoreErrorKind, Stored,
};
use crate::error::ConfigError;

/// Records in a SQLite file. The [module](self) says what it keeps, and what it needs.
///
/// # Clone
///
/// Clones share the connections. When the last one is dropped, what is queued is still done and
/// answered.
#[derive(Clone)]
pub struct SqliteStore {
    reader: Worker,
    writer: Worker,
    path: Arc<Path>,
}

impl SqliteStore {
    /// Opens the file, and creates it if need be.
    ///
    /// # Errors
    ///
    /// The file can't be created, read or written, is another application's, or was written by a
    /// newer release.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        Self::builder().open(path)
    }

    /// Opens a file in the way that you say.
    pub fn builder() -> SqliteStoreBuilder {
        SqliteStoreBuilder {
            busy_timeout: Duration::from_secs(5),
            queue: 4096,
            batch: 256,
            max_bytes: None,
            clock: Arc::new(SystemTime::now),
        }
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Opens a [`SqliteStore`].
#[derive(Clone)]
#[must_use]
pub struct SqliteStoreBuilder {
    busy_timeout: Duration,
    queue: usize,
    batch: usize,
    max_bytes: Option<u64>,
    clock: Clock,
}

impl SqliteStoreBuilder {
    /// How long to wait for the lock while another process writes. 5 seconds, at most a minute.
    pub fn busy_timeout(mut self, busy_timeout: Duration) -> Self {
        self.busy_timeout = busy_timeout;
        self
    }

    /// How many transitions may wait; more are refused at once, as
    /// [`PoolExhausted`](StoreErrorKind::PoolExhausted). 4096, at most a million.
    pub fn queue(mut self, queue: usize) -> Self {
        self.queue = queue;
        self
    }

    /// How many transitions are committed together at most. 256, at most ten thousand.
    pub fn batch(mut self, batch: usize) -> Self {
        self.batch = batch;
        self
    }

    /// How large the file may grow, without the log beside it. At least 1 MiB; as large as the
    /// disk, unless you say.
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = Some(max_bytes);
        self
    }

    /// Another clock than the machine's, for tests. Whatever opens the file must have the same.
    pub fn clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Opens the file, and creates it if need be. It waits for the disk, so do it at start.
    ///
    /// # Errors
    ///
    /// A setting is out of its range; or the file can't be created, read or written, is another
    /// application's, or was written by a newer release.
    pub fn open(self, path: impl Into<PathBuf>) -> Result<SqliteStore, StoreError> {
        self.check().map_err(|error| {
            StoreError::new(StoreErrorKind::Other, error.to_string()).because(error)
        })?;
        let settings = Settings {
            path: path.into(),
            busy_timeout: self.busy_timeout,
            max_bytes: self.max_bytes,
            clock: self.clock,
        };
        let start = |name, database: Result<Database, Failure>, chore| {
            let database = database.map_err(|failure| failure.to_error())?;
            Worker::start(name, database, self.queue, self.batch, chore).map_err(|error| {
                let message = format!("no thread for {}: {error}", settings.path.display());
                StoreError::new(StoreErrorKind::Unavailable, message).because(error)
            })
        };
        let writer = Database::writer(&settings);
        Ok(SqliteStore {
            writer: start("reprise-writer", writer, Some(records::sweep))?,
            reader: start("reprise-reader", Database::reader(&settings), None)?,
            path: settings.path.into(),
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        let minute = Duration::from_secs(60);
        if self.busy_timeout > minute {
            let value = format_args!("{:?}", self.busy_timeout);
            let field = "sqlite.busy_timeout";
            return Err(ConfigError::new(None, field, value, "at most 60s"));
        }
        let bounds = |field, value: usize, allowed: RangeInclusive<usize>| {
            let (least, most) = (allowed.start(), allowed.end());
            match allowed.contains(&value) {
                true => Ok(()),
                false => Err(ConfigError::new(
                    None,
                    field,
                    value,
                    format!("{least} to {most}"),
                )),
            }
        };
        bounds("sqlite.queue", self.queue, 1..=1_000_000)?;
        bounds("sqlite.batch", self.batch, 1..=10_000)?;
        match self.max_bytes {
            Some(bytes @ ..0x10_0000) => {
                let (field, allowed) = ("sqlite.max_bytes", "at least 1048576");
                Err(ConfigError::new(None, field, bytes, allowed))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for SqliteStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStoreBuilder")
            .field("busy_timeout", &self.busy_timeout)
            .field("queue", &self.queue)
            .field("batch", &self.batch)
            .field("max_bytes", &self.max_bytes)
            .finish_non_exhaustive()
    }
}

impl IdempotencyStore for SqliteStore {
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.reader.submit(Box::new(Look {
            claim,
            found: None,
            reply,
            writer: self.writer.clone(),
        }));
        worker::wait(answer).await
    }

    async fn renew(
        &self,
        key: RecordKey,
        token: FencingToken,
        lease: Duration,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        self.writer
            .call(0, move |batch| {
                records::renew(batch, &key, token, lease, retention)
            })
            .await
    }

    async fn complete(
        &self,
        key: RecordKey,
        token: FencingToken,
        stored: Stored,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let bytes = match &stored {
            Stored::Reply(bytes) => bytes.len(),
            Stored::NotRetained | Stored::Unknown => 0,
        };
        self.writer
            .call(bytes, move |batch| {
                records::complete(batch, &key, token, &stored, retention)
            })
            .await
    }

    async fn release(&self, key: RecordKey, token: FencingToken) -> Result<Ownership, StoreError> {
        self.writer
            .call(0, move |batch| records::release(batch, &key, token))
            .await
    }
}

/// A claim, as the reader sees it: what changes nothing is answered, since it is what a claim at
/// this moment gets; all else the writer decides anew.
struct Look {
    claim: Claim,
    found: Option<Claimed>,
    reply: oneshot::Sender<Result<Claimed, StoreError>>,
    writer: Worker,
}

impl Work for Look {
    fn run(&mut self, batch: &Batch<'_>) -> rusqlite::Result<()> {
        self.found = records::look(batch, &self.claim)?;
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self {
            claim,
            found,
            reply,
            writer,
        } = *self;
        match found {
            Some(claimed) if outcome.is_ok() => drop(reply.send(Ok(claimed))),
            _ => writer.submit(Box::new(Job {
                run: move |batch: &Batch<'_>| records::claim(batch, &claim),
                result: None,
                bytes: 0,
                reply,
            })),
        }
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }
}
