use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, SystemTime},
};

use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use tokio::time::Instant;

use super::error::{Failure, is_busy};
use crate::store::StoreErrorKind;

/// The schema, one step for each version. A released step never changes.
const MIGRATIONS: [&str; 4] = [
    include_str!("schema/1.sql"),
    include_str!("schema/2.sql"),
    include_str!("schema/3.sql"),
    include_str!("schema/4.sql"),
];

/// The version that this build reads and writes.
const VERSION: i64 = MIGRATIONS.len() as i64;

/// The application id in the header of our files: "rprs".
const APPLICATION: i64 = 0x7270_7273;

/// The size to which the WAL is cut at a checkpoint.
const WAL_LIMIT: i64 = 64 << 20;

/// Statements that a connection keeps prepared: more than there are.
const STATEMENTS: usize = 64;

pub(super) type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Settings of a connection.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) path: PathBuf,
    pub(super) busy_timeout: Duration,
    pub(super) max_bytes: Option<u64>,
    pub(super) clock: Clock,
}

/// A connection to the file.
pub(super) struct Database {
    pub(super) connection: Connection,
    settings: Settings,
    identity: Identity,
    begin: &'static str,
}

impl Database {
    /// Opens a connection that writes. Creates the file and migrates its schema.
    pub(super) fn writer(settings: &Settings) -> Result<Self, Failure> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let database = Self::open(settings, flags, "BEGIN IMMEDIATE")?;
        // `begin` waits for the lock, and asks for it more often than SQLite does.
        database.connection.busy_timeout(Duration::ZERO)?;
        Ok(database)
    }

    /// Opens a connection that only reads.
    pub(super) fn reader(settings: &Settings) -> Result<Self, Failure> {
        let database = Self::open(settings, OpenFlags::SQLITE_OPEN_READ_WRITE, "BEGIN")?;
        database
            .connection
            .pragma_update(None, "query_only", true)?;
        Ok(database)
    }

    fn open(settings: &Settings, flags: OpenFlags, begin: &'static str) -> Result<Self, Failure> {
        let path = &settings.path;
        let open = || -> Result<Self, Failure> {
            let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let mut connection = Connection::open_with_flags(path, flags)?;
            connection.busy_timeout(settings.busy_timeout)?;
            connection.set_prepared_statement_cache_capacity(STATEMENTS);
            prepare(&mut connection, settings)?;
            Ok(Self {
                connection,
                settings: settings.clone(),
                identity: Identity::of(path).map_err(unreachable_file)?,
                begin,
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

    /// Checks the version again, since a newer build may have migrated the file meanwhile.
    fn check_version(&self) -> Result<(), Failure> {
        let mut statement = self.connection.prepare_cached("PRAGMA user_version")?;
        match statement.query_row([], |row| row.get(0))? {
            VERSION => Ok(()),
            version if version > VERSION => Err(newer(version)),
            version => Err(Failure::new(
                StoreErrorKind::Corrupt,
                format_args!("the schema went back from version {VERSION} to {version}"),
            )),
        }
    }
}

fn newer(version: i64) -> Failure {
    Failure::new(
        StoreErrorKind::NewerSchema,
        format_args!(
            "the schema is version {version}, written by a newer release; this one knows up to \
             {VERSION}"
        ),
    )
}

fn unreachable_file(why: impl fmt::Display) -> Failure {
    Failure::new(
        StoreErrorKind::Unavailable,
        format_args!("the database file was moved or deleted: {why}"),
    )
}

/// Checks that the file is ours, sets the connection up, and migrates the schema.
fn prepare(connection: &mut Connection, settings: &Settings) -> Result<(), Failure> {
    // Before anything is changed, and in one snapshot: another process may be creating the schema.
    let moment = connection.transaction()?;
    let version = check_owner(&moment)?;
    drop(moment);
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
    match version < VERSION {
        true => migrate(connection, (settings.clock)())?,
        false => check_layout(connection)?,
    }
    // After the migration, which needs room for a copy of a table that may fill the file.
    if let Some(bytes) = settings.max_bytes {
        let page: u32 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let pages = i64::try_from(bytes / u64::from(page.max(1))).unwrap_or(i64::MAX);
        connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    }
    Ok(())
}

/// Returns an empty database in memory with the newest schema.
pub(super) fn in_memory() -> rusqlite::Result<Connection> {
    let connection = Connection::open_in_memory()?;
    for step in MIGRATIONS {
        connection.execute_batch(step)?;
    }
    Ok(connection)
}

/// Checks that the tables have the columns of their version. Before the first release a step could
/// still change, and a file of that time would fail at each verb.
fn check_layout(connection: &Connection) -> Result<(), Failure> {
    let columns = |connection: &Connection| -> Result<Vec<String>, Failure> {
        let columns = "SELECT t.name || '.' || c.name \
            FROM sqlite_schema AS t, pragma_table_info(t.name) AS c WHERE t.type = 'table'";
        let mut columns = connection.prepare(columns)?;
        let columns = columns.query_map([], |row| row.get(0))?;
        Ok(columns.collect::<Result<_, _>>()?)
    };
    let there = columns(connection)?;
    match columns(&in_memory()?)?
        .iter()
        .find(|column| !there.contains(column))
    {
        None => Ok(()),
        Some(missing) => Err(Failure::new(
            StoreErrorKind::Other,
            format_args!(
                "the schema says version {VERSION}, and has no {missing}: it was written before \
                 that version was released, allowed: another file"
            ),
        )),
    }
}

/// Returns the schema's version, 0 if there is none yet.
fn check_owner(connection: &Connection) -> Result<i64, Failure> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (application, version) = (pragma("application_id")?, pragma("user_version")?);
    if application != APPLICATION {
        let tables = "SELECT count(*) FROM sqlite_schema";
        let tables: i64 = connection.query_row(tables, [], |row| row.get(0))?;
        if application != 0 || version != 0 || tables != 0 {
            return Err(Failure::new(
                StoreErrorKind::Other,
                "this is another application's database, allowed: a file of its own",
            ));
        }
    }
    match version {
        version if version > VERSION => Err(newer(version)),
        version => Ok(version),
    }
}

fn migrate(connection: &mut Connection, now: SystemTime) -> Result<(), Failure> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have migrated it meanwhile.
    let version = check_owner(&transaction)?;
    let done = usize::try_from(version).unwrap_or_default();
    for step in MIGRATIONS.iter().skip(done) {
        transaction.execute_batch(step)?;
    }
    if done == 0 {
        // Fencing tokens start at the time, so that they grow even if the file is deleted.
        let first = micros_since_epoch(now).clamp(0, 1 << 52);
        let seed = "INSERT INTO sqlite_sequence (name, seq) VALUES ('idempotency', ?1)";
        transaction.execute(seed, [first])?;
    }
    if done < 2 {
        let secret: [u8; 32] = rand::random();
        let insert = "INSERT INTO journal_secret (secret) VALUES (?1)";
        transaction.execute(insert, [secret])?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()?;
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
                thread::sleep(Duration::from_micros(rand::random_range(200..800)));
            }
            result => return result,
        }
    }
}

/// Returns microseconds since 1970; negative before.
fn micros_since_epoch(time: SystemTime) -> i64 {
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
        let settings = Settings {
            path: std::env::temp_dir().join(name),
            busy_timeout: Duration::from_secs(5),
            max_bytes: None,
            clock: Arc::new(SystemTime::now),
        };
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
