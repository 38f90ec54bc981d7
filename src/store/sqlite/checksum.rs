//! Checksums of rows: what was damaged on disk is not taken for what was written.
//!
//! SQLite has none for its pages (its checksum VFS is an extension in C). A row that is read is
//! verified here; a row that can't be found any more is noticed by the check of the whole file when
//! it is opened.

use std::ops::Range;

use rusqlite::{
    Connection, Error, Row,
    functions::FunctionFlags,
    types::{Type, ValueRef},
};

use crate::http::digest::Digest;

/// Adds `reprise_checksum(value, …)` to the SQL of a connection.
pub(super) fn add_function(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        | FunctionFlags::SQLITE_DIRECTONLY;
    connection.create_scalar_function("reprise_checksum", -1, flags, |context| {
        let values = (0..context.len()).map(|n| context.get_raw(n));
        Ok(checksum(values))
    })
}

/// Compares the columns of a row with the checksum in the column behind them.
pub(super) fn verify(row: &Row<'_>, columns: Range<usize>) -> rusqlite::Result<()> {
    let at = columns.end;
    let values = columns
        .map(|column| row.get_ref(column))
        .collect::<Result<Vec<_>, _>>()?;
    if checksum(values.into_iter()) == row.get::<_, i64>(at)? {
        return Ok(());
    }
    let message = "the checksum of a row is wrong".into();
    Err(Error::FromSqlConversionFailure(at, Type::Integer, message))
}

fn checksum<'a>(values: impl Iterator<Item = ValueRef<'a>>) -> i64 {
    let mut digest = Digest::new("row");
    for value in values {
        match value {
            ValueRef::Null => digest.part([]),
            ValueRef::Integer(number) => digest.part(number.to_le_bytes()),
            ValueRef::Real(number) => digest.part(number.to_le_bytes()),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => digest.part(bytes),
        }
    }
    let [a, b, c, d, e, f, g, h, ..] = digest.finish();
    i64::from_le_bytes([a, b, c, d, e, f, g, h])
}
