//! The schema: created and migrated by the first process that opens the file.

use std::time::SystemTime;

use rusqlite::{Connection, TransactionBehavior};

use super::{checksum, error::Failure, file::micros_since_epoch};
use crate::store::StoreErrorKind;

/// The schema, one step for each version. A released step never changes.
const MIGRATIONS: [&str; 10] = [
    include_str!("schema/1.sql"),
    include_str!("schema/2.sql"),
    include_str!("schema/3.sql"),
    include_str!("schema/4.sql"),
    include_str!("schema/5.sql"),
    include_str!("schema/6.sql"),
    include_str!("schema/7.sql"),
    include_str!("schema/8.sql"),
    include_str!("schema/9.sql"),
    include_str!("schema/10.sql"),
];

/// The version that this build reads and writes.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;

/// The application id in the header of our files: "rprs".
const APPLICATION: i64 = 0x7270_7273;

/// Returns an empty database in memory with the newest schema.
pub(super) fn in_memory() -> rusqlite::Result<Connection> {
    let connection = Connection::open_in_memory()?;
    checksum::add_function(&connection)?;
    for step in MIGRATIONS {
        connection.execute_batch(step)?;
    }
    Ok(connection)
}

/// Checks that the tables have the columns of their version. Before the first release a step could
/// still change, and a file of that time would fail at each verb.
pub(super) fn check_layout(connection: &Connection) -> Result<(), Failure> {
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
pub(super) fn check_owner(connection: &Connection) -> Result<i64, Failure> {
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

pub(super) fn migrate(connection: &mut Connection, now: SystemTime) -> Result<(), Failure> {
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

pub(super) fn newer(version: i64) -> Failure {
    Failure::new(
        StoreErrorKind::NewerSchema,
        format_args!(
            "the schema is version {version}, written by a newer release; this one knows up to \
             {VERSION}"
        ),
    )
}
