use std::{
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{
    SqliteStore,
    error::Failure,
    file::{Database, Settings},
    journal, records,
    worker::{Batch, Worker},
};
use crate::{
    error::ConfigError,
    store::{StoreError, StoreErrorKind},
};

const MAX_RESERVE: u64 = 1 << 30;

/// Builds a [`SqliteStore`].
#[derive(Clone)]
#[must_use]
pub struct SqliteStoreBuilder {
    settings: Settings,
    queue: usize,
    batch: usize,
}

impl SqliteStoreBuilder {
    pub(super) fn new() -> Self {
        Self {
            settings: Settings::new(PathBuf::new()),
            queue: 4096,
            batch: 256,
        }
    }

    /// The longest wait for the lock while another process writes; 5 s by default, at most 60 s.
    pub fn busy_timeout(mut self, busy_timeout: Duration) -> Self {
        self.settings.busy_timeout = busy_timeout;
        self
    }

    /// The number of transitions that may wait; 4096 by default, at most 1,000,000. One more fails at
    /// once with [`PoolExhausted`](StoreErrorKind::PoolExhausted).
    pub fn queue(mut self, queue: usize) -> Self {
        self.queue = queue;
        self
    }

    /// The most transitions in one commit; 256 by default, at most 10,000.
    pub fn batch(mut self, batch: usize) -> Self {
        self.batch = batch;
        self
    }

    /// The maximum size of the file, without the log beside it; at least 1 MiB, unlimited by
    /// default.
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.settings.max_bytes = Some(max_bytes);
        self
    }

    /// The room kept for the outcomes of what runs, in bytes; 8 MiB by default, at most 1 GiB. A file
    /// beside the database takes it up, and is emptied when the disk is full; of
    /// [`max_bytes`](Self::max_bytes) it is at most an eighth. Until there is room for it again no new
    /// operation is taken.
    pub fn reserve(mut self, reserve: u64) -> Self {
        self.settings.reserve = reserve;
        self
    }

    /// Whether all of the file is read and checked when it is opened; `true` by default. It takes 4 s
    /// for 500,000 records. Without it, damage that hides a record is found only by chance.
    pub fn check_on_open(mut self, check: bool) -> Self {
        self.settings.check = check;
        self
    }

    /// Replaces the machine's clock, for tests. All processes that open the file must agree on it.
    pub fn clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.settings.clock = Arc::new(clock);
        self
    }

    /// Opens the file and checks all of it, or creates it. This blocks on the disk, so call it at
    /// start.
    ///
    /// # Errors
    ///
    /// A setting is out of its range; or the file can't be created, read or written, is damaged,
    /// belongs to another application, or was written by a newer version of this crate.
    pub fn open(self, path: impl Into<PathBuf>) -> Result<SqliteStore, StoreError> {
        self.check()?;
        let settings = Settings {
            path: path.into(),
            // Other files that are opened by this builder are no worse for it.
            damage: Arc::default(),
            ..self.settings
        };
        let start = |name, database: Result<Database, Failure>, chore| {
            let database = database.map_err(|failure| failure.to_error())?;
            Worker::start(name, database, self.queue, self.batch, chore).map_err(|error| {
                let message = format!("no thread for {}: {error}", settings.path.display());
                StoreError::new(StoreErrorKind::Unavailable, message).because(error)
            })
        };
        let writer = start("reprise-writer", Database::writer(&settings), Some(sweep))?;
        let reader = |name| start(name, Database::reader(&settings), None);
        let readers = [reader("reprise-claims")?, reader("reprise-reader")?];
        Ok(SqliteStore::new(&settings.path, writer, readers))
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.settings.busy_timeout > Duration::from_secs(60) {
            let value = format_args!("{:?}", self.settings.busy_timeout);
            let field = "sqlite.busy_timeout";
            return Err(ConfigError::new(None, field, value, "at most 60s"));
        }
        for (field, value, most) in [
            ("sqlite.queue", self.queue, 1_000_000),
            ("sqlite.batch", self.batch, 10_000),
        ] {
            if !(1..=most).contains(&value) {
                return Err(ConfigError::new(None, field, value, format!("1 to {most}")));
            }
        }
        if self.settings.reserve > MAX_RESERVE {
            let (field, allowed) = ("sqlite.reserve", format!("at most {MAX_RESERVE}"));
            return Err(ConfigError::new(
                None,
                field,
                self.settings.reserve,
                allowed,
            ));
        }
        match self.settings.max_bytes {
            Some(bytes @ ..0x10_0000) => {
                let (field, allowed) = ("sqlite.max_bytes", "at least 1048576");
                Err(ConfigError::new(None, field, bytes, allowed))
            }
            _ => Ok(()),
        }
    }
}

/// Removes a few expired records and entries. Returns whether there may be more.
fn sweep(batch: &Batch<'_>) -> rusqlite::Result<bool> {
    let (records, entries) = (records::sweep(batch)?, journal::sweep(batch)?);
    Ok(records || entries)
}

impl fmt::Debug for SqliteStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStoreBuilder")
            .field("busy_timeout", &self.settings.busy_timeout)
            .field("queue", &self.queue)
            .field("batch", &self.batch)
            .field("max_bytes", &self.settings.max_bytes)
            .field("reserve", &self.settings.reserve)
            .finish_non_exhaustive()
    }
}
