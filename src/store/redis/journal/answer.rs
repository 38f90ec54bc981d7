//! Reads the answers of the scripts.

use redis::Value;

use super::unreadable;
use crate::store::{
    StoreError,
    journal::{Entry, LeaseToken, Priority, Status, Timestamp, history},
};

/// Reads a list of entries, alone in an answer.
pub(super) fn entries(mut rest: Vec<Value>) -> Result<Vec<Entry>, StoreError> {
    match &mut *rest {
        [Value::Array(found)] => found.drain(..).map(entry).collect(),
        _ => Err(unreadable()),
    }
}

pub(super) fn entry(value: Value) -> Result<Entry, StoreError> {
    let Value::Array(values) = value else {
        return Err(unreadable());
    };
    let mut values = values.into_iter();
    let mut next = || values.next().ok_or_else(unreadable);
    let small = |value| Ok::<_, StoreError>(i64::try_from(number(&value)?).unwrap_or(i64::MAX));
    let count = |value| Ok::<_, StoreError>(u32::try_from(number(&value)?).unwrap_or(u32::MAX));
    let time = |value| number(&value).map(Timestamp::from_micros);
    // In the order of the answer, which is that of `FIELDS` in `common.lua`.
    Ok(Entry {
        id: text(next()?)?.parse().map_err(|_| unreadable())?,
        queue: text(next()?)?,
        lane: text(next()?)?,
        owner: text(next()?)?,
        label: text(next()?)?,
        priority: Priority::from_number(small(next()?)?)?,
        status: Status::from_number(small(next()?)?)?,
        sequence: number(&next()?)?,
        lease_token: LeaseToken::new(number(&next()?)?),
        attempts: count(next()?)?,
        queued_at: time(next()?)?,
        due_at: time(next()?)?,
        expires_at: time(next()?)?,
        changed_at: time(next()?)?,
        redrives: count(next()?)?,
        repeats: count(next()?)?,
        cause: Some(text(next()?)?).filter(|cause| !cause.is_empty()),
        reason: Some(text(next()?)?).filter(|reason| !reason.is_empty()),
        payload: bytes(next()?)?.into(),
        result: match next()? {
            Value::Nil => None,
            result => Some(bytes(result)?.into()),
        },
        history: history::parse(&bytes(next()?)?),
    })
}

pub(super) fn bytes(value: Value) -> Result<Vec<u8>, StoreError> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        _ => Err(unreadable()),
    }
}

pub(super) fn text(value: Value) -> Result<String, StoreError> {
    String::from_utf8(bytes(value)?).map_err(|_| unreadable())
}

/// Reads an integer, or digits where the server's numbers would not be exact.
pub(super) fn number(value: &Value) -> Result<u64, StoreError> {
    let number = match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(digits) => std::str::from_utf8(digits)
            .ok()
            .and_then(|n| n.parse().ok()),
        _ => None,
    };
    number.ok_or_else(unreadable)
}
