//! Conversions from a row to an entry.

use bytes::Bytes;
use tokio_postgres::Row;

use crate::{
    error::BoxError,
    store::{
        StoreError, StoreErrorKind,
        journal::{Entry, EntryId, LeaseToken, Priority, Status, Timestamp, history},
    },
};

/// Returns an entry without payload, result and history.
pub(super) fn summary(row: &Row) -> Result<Entry, StoreError> {
    try_summary(row).map_err(unreadable)
}

pub(super) fn whole(row: &Row) -> Result<Entry, StoreError> {
    try_whole(row).map_err(unreadable)
}

pub(super) fn unreadable(error: impl Into<BoxError>) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, "an entry can't be read").because(error)
}

fn try_whole(row: &Row) -> Result<Entry, BoxError> {
    let result: Option<&[u8]> = row.try_get("result")?;
    Ok(Entry {
        payload: Bytes::copy_from_slice(row.try_get("payload")?),
        result: result.map(Bytes::copy_from_slice),
        history: history::parse(row.try_get("history")?),
        ..try_summary(row)?
    })
}

fn try_summary(row: &Row) -> Result<Entry, BoxError> {
    let number = |column| Ok::<_, BoxError>(u64::try_from(row.try_get::<_, i64>(column)?)?);
    let time = |column| number(column).map(Timestamp::from_micros);
    let small = |column| Ok::<_, BoxError>(row.try_get::<_, i16>(column)?.into());
    Ok(Entry {
        sequence: number("sequence")?,
        id: EntryId::new(row.try_get::<_, &[u8]>("id")?.try_into()?),
        queue: row.try_get("queue")?,
        lane: row.try_get("lane")?,
        owner: row.try_get("owner")?,
        label: row.try_get("label")?,
        priority: Priority::from_number(small("priority")?)?,
        status: Status::from_number(small("status")?)?,
        lease_token: LeaseToken::new(number("turn")?),
        attempts: u32::try_from(row.try_get::<_, i32>("attempts")?)?,
        redrives: u32::try_from(row.try_get::<_, i32>("redrives")?)?,
        cause: row.try_get("cause")?,
        repeats: u32::try_from(row.try_get::<_, i32>("repeats")?)?,
        reason: row.try_get("reason")?,
        queued_at: time("queued")?,
        due_at: time("due")?,
        expires_at: time("expires")?,
        changed_at: time("changed")?,
        payload: Bytes::new(),
        result: None,
        history: Vec::new(),
    })
}
