//! Conversions between rows and records.

use std::time::Duration;

use bytes::Bytes;
use tokio_postgres::Row;

use super::sql;
use crate::{
    error::BoxError,
    store::{Claimed, FencingToken, Fingerprint, Lease, Note, StoreError, StoreErrorKind, Stored},
};

/// Reads the row that a claim returned.
pub(super) fn claimed(row: &Row) -> Result<Claimed, StoreError> {
    try_claimed(row).map_err(|error| {
        let message = "a record can't be read";
        StoreError::new(StoreErrorKind::Corrupt, message).because(error)
    })
}

fn try_claimed(row: &Row) -> Result<Claimed, BoxError> {
    let (same, state): (bool, i16) = (row.try_get(0)?, row.try_get(1)?);
    let token: Option<i64> = row.try_get(2)?;
    Ok(match (same, state, token) {
        (false, ..) => Claimed::Mismatch {
            fingerprint: Fingerprint::new(row.try_get::<_, &[u8]>(7)?.try_into()?),
            note: note(row)?,
        },
        (true, sql::IN_FLIGHT, Some(token)) => Claimed::New(Lease {
            token: FencingToken::new(u64::try_from(token)?),
            orphaned: row.try_get(3)?,
        }),
        (true, sql::IN_FLIGHT, None) => Claimed::InFlight {
            remaining: Duration::from_micros(u64::try_from(row.try_get::<_, i64>(4)?)?),
            note: note(row)?,
        },
        (true, state, _) => Claimed::Done {
            stored: match state {
                sql::REPLY => Stored::Reply(Bytes::copy_from_slice(row.try_get(5)?)),
                sql::NOT_RETAINED => Stored::NotRetained,
                sql::UNKNOWN => Stored::Unknown,
                state => return Err(format!("state {state}").into()),
            },
            note: note(row)?,
        },
    })
}

fn note(row: &Row) -> Result<Note, BoxError> {
    note_at(row, 6)
}

pub(super) fn note_at(row: &Row, column: usize) -> Result<Note, BoxError> {
    let note: Option<&[u8]> = row.try_get(column)?;
    let note = note.unwrap_or_default();
    Note::new(note).ok_or_else(|| format!("a note of {} bytes", note.len()).into())
}

/// Returns the columns `state` and `reply`.
pub(super) fn columns(stored: &Stored) -> (i16, Option<&[u8]>) {
    match stored {
        Stored::Reply(bytes) => (sql::REPLY, Some(bytes)),
        Stored::NotRetained => (sql::NOT_RETAINED, None),
        Stored::Unknown => (sql::UNKNOWN, None),
    }
}

/// Returns a token's number; 0, which no row has, for one that this store never gave.
pub(super) fn number(token: FencingToken) -> i64 {
    i64::try_from(token.get()).unwrap_or_default()
}

/// Returns at most 36,000 years: several can be added to the current time without overflow.
pub(super) fn micros(duration: Duration) -> i64 {
    const FOREVER: i64 = 1 << 60;
    i64::try_from(duration.as_micros()).map_or(FOREVER, |micros| micros.min(FOREVER))
}
