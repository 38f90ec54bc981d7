//! Conversions between a row and an entry.

use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Error, OptionalExtension, Row, types::Type};

use super::super::{checksum, worker::Batch};
use crate::store::{
    StoreError,
    journal::{Entry, EntryId, EventKind, LeaseToken, Priority, Status, Timestamp, history},
};

/// Returns an entry without payload, result and history.
pub(super) fn summary(row: &Row<'_>, now: i64) -> rusqlite::Result<Entry> {
    let number = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
    let time = |column| number(column).map(Timestamp::from_micros);
    let stored = known(row, 7, Status::from_number)?;
    Ok(Entry {
        sequence: number(0)?,
        id: EntryId::new(row.get(1)?),
        queue: row.get(2)?,
        lane: row.get(3)?,
        owner: row.get(4)?,
        label: row.get(5)?,
        priority: known(row, 6, Priority::from_number)?,
        status: match stored {
            Status::Queued if row.get::<_, i64>(12)? <= now => Status::Expired,
            status => status,
        },
        lease_token: LeaseToken::new(number(8)?),
        attempts: row.get(9)?,
        queued_at: time(10)?,
        due_at: time(11)?,
        expires_at: time(12)?,
        changed_at: time(13)?,
        redrives: row.get(14)?,
        cause: row.get(15)?,
        repeats: row.get(16)?,
        reason: row.get(17)?,
        payload: Bytes::new(),
        result: None,
        history: Vec::new(),
    })
}

pub(super) fn whole(batch: &Batch<'_>, row: &Row<'_>) -> rusqlite::Result<Entry> {
    let shared = row.get_ref(28)?.as_blob_or_null()?;
    checksum::verify(row, (20..27).chain(shared.map(|_| 28)), 27)?;
    let own = row.get_ref(26)?.as_blob()?;
    let result = row.get_ref(18)?.as_blob_or_null()?;
    Ok(Entry {
        payload: match shared {
            None => Bytes::copy_from_slice(own),
            Some(id) => with_shared(batch, own, id)?,
        },
        result: result.map(Bytes::copy_from_slice),
        history: history::parse(row.get_ref(19)?.as_bytes()?),
        ..summary(row, batch.now)?
    })
}

/// Returns the payload that begins with these bytes and ends in those of this id.
fn with_shared(batch: &Batch<'_>, own: &[u8], id: &[u8]) -> rusqlite::Result<Bytes> {
    let mut statement = batch
        .connection
        .prepare_cached("SELECT id, payload, checksum FROM journal_shared WHERE id = ?1")?;
    let payload = statement.query_row([id], |row| {
        checksum::verify(row, 0..2, 2)?;
        Ok([own, row.get_ref(1)?.as_blob()?].concat().into())
    });
    // Otherwise it would be the entry that is not there.
    payload.optional()?.ok_or_else(|| {
        let message = "the shared end of a payload is missing".into();
        Error::FromSqlConversionFailure(28, Type::Blob, message)
    })
}

fn known<T>(
    row: &Row<'_>,
    column: usize,
    known: impl Fn(i64) -> Result<T, StoreError>,
) -> rusqlite::Result<T> {
    let number = row.get(column)?;
    known(number).map_err(|_| Error::IntegralValueOutOfRange(column, number))
}

/// Returns the time that much later, at most the latest that [`Timestamp`] has.
pub(super) fn after(now: i64, duration: Duration) -> i64 {
    let now = Timestamp::from_micros(now.max(0).unsigned_abs());
    micros(now.after(duration).as_micros())
}

pub(super) fn micros(micros: u64) -> i64 {
    i64::try_from(micros).unwrap_or(i64::MAX)
}

/// Returns a note as it is appended to the history; nothing if it is empty.
pub(super) fn noted(kind: EventKind, note: &str, now: i64) -> String {
    let frame = history::frame(kind, note);
    frame.map_or_else(String::new, |frame| format!("{:016}{frame}", now.max(0)))
}
