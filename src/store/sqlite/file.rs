use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, SystemTime},
};

use rusqlite::{Connection, MAIN_DB, OpenFlags};
use tokio::time::Instant;

use super::{
    checksum,
    error::{Failure, is_busy},
    reserve::{self, Reserve},
    schema::{self, VERSION},
};
use crate::{store::StoreErrorKind, telemetry};

/// The size to which the WAL is cut at a checkpoint.
const WAL_LIMIT: i64 = 64 << 20;

/// The cache while the file is checked, in KiB if negative: half the time of SQLite's default of 2 MB.
const CHECK_CACHE: i64 = -(64 << 10);

/// The size of a page, in files that this crate creates.
const PAGE: u64 = 4096;

/// Statements that a connection keeps prepared: more than there are.
const STATEMENTS: usize = 64;

pub(super) type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Settings of a connection.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) path: PathBuf,
    pub(super) busy_timeout: Duration,
    pub(super) max_bytes: Option<u64>,
    /// Whether all of the file is checked when it is opened.
    pub(super) check: bool,
    /// Room for the outcomes of what runs.
    pub(super) reserve: u64,
    pub(super) clock: Clock,
    /// The damage that any connection has seen. Nothing is read or written after that: what can't be
    /// found may have been there.
    pub(super) damage: Arc<OnceLock<Failure>>,
}

impl Settings {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            busy_timeout: Duration::from_secs(5),
            max_bytes: None,
            check: true,
            reserve: 8 << 20,
            clock: Arc::new(SystemTime::now),
            damage: Arc::default(),
        }
    }
}

/// A connection to the file.
pub(super) struct Database {
    pub(super) connection: Connection,
    settings: Settings,
    identity: Identity,
    begin: &'static str,
    reserve: Reserve,
}

impl Database {
    /// Opens a connection that writes. Creates the file, checks all of it, and migrates its schema.
    pub(super) fn writer(settings: &Settings) -> Result<Self, Failure> {
        reserve::create_private(&settings.path);
        let database = Self::open(settings, "BEGIN IMMEDIATE", |connection| {
            if connection.is_readonly(MAIN_DB)? {
                let message = "the file can only be read";
                return Err(Failure::new(StoreErrorKind::Unavailable, message));
            }
            prepare(connection, settings)
        })?;
        // `begin` waits for the lock, and asks for it more often than SQLite does.
        database.connection.busy_timeout(Duration::ZERO)?;
        database.use_whole_file(false)?;
        let _ = database.reserve.is_missing();
        Ok(database)
    }

    /// Opens a connection that only reads, after one that writes.
    pub(super) fn reader(settings: &Settings) -> Result<Self, Failure> {
        Self::open(settings, "BEGIN", |connection| {
            configure(connection)?;
            Ok(connection.pragma_update(None, "query_only", true)?)
        })
    }

    fn open(
        settings: &Settings,
        begin: &'static str,
        set_up: impl Fn(&mut Connection) -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let path = &settings.path;
        let open = || -> Result<Self, Failure> {
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
                | OpenFlags::SQLITE_OPEN_CREATE
                | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let mut connection = Connection::open_with_flags(path, flags)?;
            connection.busy_timeout(settings.busy_timeout)?;
            connection.set_prepared_statement_cache_capacity(STATEMENTS);
            checksum::add_function(&connection)?;
            set_up(&mut connection)?;
            Ok(Self {
                connection,
                settings: settings.clone(),
                identity: Identity::of(path).map_err(unreachable_file)?,
                begin,
                reserve: Reserve::new(path, settings.reserve),
            })
        };
        // Of two processes that create the file at once one fails, and SQLite does not always wait.
        retry_while_busy(settings.busy_timeout, open, |failure| {
            failure.kind() == StoreErrorKind::Timeout
        })
        .map_err(|failure| failure.while_trying(path.display()))
    }

    /// Starts a transaction, and returns the time on the store's clock in microseconds.
    pub(super) fn begin(&self) -> Result<i64, Failure> {
        if let Some(damage) = self.settings.damage.get() {
            return Err(damage.clone());
        }
        self.roll_back()?;
        // SQLite would go on with a file that was moved or deleted.
        match Identity::of(&self.settings.path) {
            Ok(identity) if identity == self.identity => {}
            Ok(_) => return Err(unreachable_file("another file is in its place")),
            Err(error) => return Err(unreachable_file(error)),
        }
        let patience = self.settings.busy_timeout;
        retry_while_busy(
            patience,
            || self.connection.prepare_cached(self.begin)?.execute([]),
            is_busy,
        )
        .map_err(|error| match error {
            error if is_busy(&error) => {
                Failure::from(error).while_trying(format_args!("no lock within {patience:?}"))
            }
            error => error.into(),
        })?;
        // The first read also fixes a reader's snapshot, so the time is taken after it.
        self.check_version()?;
        Ok(micros_since_epoch((self.settings.clock)()))
    }

    /// Commits the transaction. A failure is in doubt unless SQLite was busy.
    pub(super) fn commit(&self) -> Result<(), Failure> {
        let committed = self.connection.prepare_cached("COMMIT")?.execute([]);
        committed.map(drop).map_err(|error| {
            let failure = Failure::from(error).while_trying("commit");
            match failure.kind() {
                StoreErrorKind::Timeout => failure,
                _ => failure.in_doubt(),
            }
        })
    }

    /// Rolls the transaction back, if there is one.
    pub(super) fn roll_back(&self) -> Result<(), Failure> {
        if !self.connection.is_autocommit() {
            self.connection.execute_batch("ROLLBACK")?;
        }
        Ok(())
    }

    /// Remembers a failure that shows damage, for good.
    pub(super) fn note_damage(&self, failure: &Failure) {
        if failure.kind() == StoreErrorKind::Corrupt {
            let path = self.settings.path.display();
            self.settings.damage.get_or_init(|| {
                telemetry::store_damaged(&path);
                let what = format_args!("{path} is damaged, and not used until it is opened again");
                failure.clone().while_trying(what)
            });
        }
    }

    /// Returns the error for new operations while there is no room for the outcomes of those that
    /// run.
    pub(super) fn full(&self) -> Option<Failure> {
        let size = self.reserve.size();
        let full = |message: fmt::Arguments<'_>| Some(Failure::new(StoreErrorKind::Full, message));
        if self.reserve.is_missing() {
            return full(format_args!(
                "the disk has no room for the reserve of {size} bytes"
            ));
        }
        // Free pages of the file take a claim, but perhaps not its outcome.
        let used = || -> rusqlite::Result<i64> {
            self.connection
                .prepare_cached("SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count")?
                .query_row([], |row| row.get(0))
        };
        match self.pages(false) {
            Some(pages) if used().is_ok_and(|used| used >= pages) => {
                full(format_args!("the file has reached its maximum size"))
            }
            _ => None,
        }
    }

    pub(super) fn release_reserve(&self) {
        telemetry::store_full(self.settings.path.display());
        self.reserve.release();
    }

    /// Lets the file grow to its limit, or to where room is left for the outcomes of what runs.
    pub(super) fn use_whole_file(&self, whole: bool) -> Result<(), Failure> {
        if let Some(pages) = self.pages(whole) {
            let connection = &self.connection;
            connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
        }
        Ok(())
    }

    /// Returns the maximum number of pages, if there is one: all, or without the reserve.
    fn pages(&self, whole: bool) -> Option<i64> {
        let bytes = self.settings.max_bytes?;
        let kept = match whole {
            true => 0,
            false => self.settings.reserve.min(bytes / 8),
        };
        i64::try_from((bytes - kept) / PAGE).ok()
    }

    /// Checks the version again, since a newer build may have migrated the file meanwhile.
    fn check_version(&self) -> Result<(), Failure> {
        let mut statement = self.connection.prepare_cached("PRAGMA user_version")?;
        match statement.query_row([], |row| row.get(0))? {
            VERSION => Ok(()),
            version if version > VERSION => Err(schema::newer(version)),
            version => Err(Failure::new(
                StoreErrorKind::Corrupt,
                format_args!("the schema went back from version {VERSION} to {version}"),
            )),
        }
    }
}

fn unreachable_file(why: impl fmt::Display) -> Failure {
    Failure::new(
        StoreErrorKind::Unavailable,
        format_args!("the database file was moved or deleted: {why}"),
    )
}

/// Checks that the file is ours and whole, sets the connection up, and migrates the schema.
fn prepare(connection: &mut Connection, settings: &Settings) -> Result<(), Failure> {
    // Before anything is changed, and in one snapshot: another process may be creating the schema.
    let moment = connection.transaction()?;
    let version = schema::check_owner(&moment)?;
    if version > 0 && settings.check {
        check_whole(&moment)?;
    }
    drop(moment);
    configure(connection)?;
    match version < VERSION {
        true => schema::migrate(connection, (settings.clock)()),
        false => schema::check_layout(connection),
    }
}

/// Reads all of the file. Damage can hide a row: it would be taken for one that was never there.
fn check_whole(connection: &Connection) -> Result<(), Failure> {
    let cache: i64 = connection.pragma_query_value(None, "cache_size", |row| row.get(0))?;
    connection.pragma_update(None, "cache_size", CHECK_CACHE)?;
    let found: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    connection.pragma_update(None, "cache_size", cache)?;
    match &*found {
        "ok" => Ok(()),
        damage => Err(Failure::new(StoreErrorKind::Corrupt, damage)),
    }
}

fn configure(connection: &Connection) -> Result<(), Failure> {
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    if mode != "wal" {
        return Err(Failure::new(
            StoreErrorKind::Other,
            format_args!("journal mode is {mode}, allowed: wal, on a file of a local disk"),
        ));
    }
    connection.pragma_update(None, "synchronous", "full")?;
    // macOS flushes the disk's own cache only if asked; elsewhere this does nothing.
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update_and_check(None, "journal_size_limit", WAL_LIMIT, |_| Ok(()))?;
    Ok(())
}

/// Repeats an attempt while the file is locked and the time is not up.
fn retry_while_busy<T, E>(
    patience: Duration,
    mut attempt: impl FnMut() -> Result<T, E>,
    is_busy: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let started = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_busy(&error) && started.elapsed() < patience => {
                // SQLite tells nobody when the lock is free. Only a thread of the store's own waits, or
                // the caller of `open`, which blocks anyway.
                thread::sleep(Duration::from_micros(rand::random_range(200..800)));
            }
            result => return result,
        }
    }
}

/// Returns microseconds since 1970; negative before.
pub(super) fn micros_since_epoch(time: SystemTime) -> i64 {
    let micros = |duration: Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => micros(since),
        Err(before) => -micros(before.duration()),
    }
}

/// The file that a path leads to.
#[derive(PartialEq, Eq)]
struct Identity(u64, u64);

impl Identity {
    #[cfg(unix)]
    fn of(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt;

        let metadata = fs::metadata(path)?;
        Ok(Self(metadata.dev(), metadata.ino()))
    }

    /// Returns a constant: elsewhere an open file can't be moved.
    #[cfg(not(unix))]
    fn of(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|_| Self(0, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t_4_commits_wait_for_the_disk() {
        let name = format!("reprise-{:016x}.db", rand::random::<u64>());
        let settings = Settings::new(std::env::temp_dir().join(name));
        let writer = Database::writer(&settings).unwrap();
        let reader = Database::reader(&settings).unwrap();
        for database in [&writer, &reader] {
            let pragma = |name: &str| -> String {
                let sql = format!("SELECT CAST({name} AS TEXT) FROM pragma_{name}");
                let value = database.connection.query_row(&sql, [], |row| row.get(0));
                value.unwrap()
            };
            assert_eq!(
                (&*pragma("synchronous"), &*pragma("journal_mode")),
                ("2", "wal")
            );
        }
        let write = reader.connection.execute_batch("DELETE FROM idempotency");
        assert!(write.is_err(), "a reader writes");
        drop((writer, reader));
        let _ = fs::remove_file(settings.path);
    }
}
