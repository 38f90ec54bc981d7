use std::{
    fmt,
    ops::RangeInclusive,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{
    SqliteStore,
    error::Failure,
    file::{Clock, Database, Settings},
    journal, records,
    worker::{Batch, Worker},
};
use crate::{
    error::ConfigError,
    store::{StoreError, StoreErrorKind},
};

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
    pub(super) fn new() -> Self {
        Self {
            busy_timeout: Duration::from_secs(5),
            queue: 4096,
            batch: 256,
            max_bytes: None,
            clock: Arc::new(SystemTime::now),
        }
    }

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
            writer: start("reprise-writer", writer, Some(sweep))?,
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

/// Removes a little of what is past its time; whether there may be more.
fn sweep(batch: &Batch<'_>) -> rusqlite::Result<bool> {
    let (records, entries) = (records::sweep(batch)?, journal::sweep(batch)?);
    Ok(records || entries)
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
