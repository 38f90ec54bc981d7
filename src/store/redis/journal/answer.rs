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
    let values: [Value; 20] = values.try_into().map_err(|_| unreadable())?;
    let [
        id,
        queue,
        lane,
        owner,
        label,
        priority,
        status,
        sequence,
        lease_token,
        attempts,
        queued,
        due,
        expires,
        changed,
        redrives,
        repeats,
        cause,
        payload,
        result,
        history,
    ] = values;
    let small = |value| Ok::<_, StoreError>(i64::try_from(number(value)?).unwrap_or(i64::MAX));
    let count = |value| Ok::<_, StoreError>(u32::try_from(number(value)?).unwrap_or(u32::MAX));
    let time = |value| number(value).map(Timestamp::from_micros);
    Ok(Entry {
        id: text(id)?.parse().map_err(|_| unreadable())?,
        queue: text(queue)?,
        lane: text(lane)?,
        owner: text(owner)?,
        label: text(label)?,
        priority: Priority::from_number(small(&priority)?)?,
        status: Status::from_number(small(&status)?)?,
        sequence: number(&sequence)?,
        lease_token: LeaseToken::new(number(&lease_token)?),
        attempts: count(&attempts)?,
        redrives: count(&redrives)?,
        cause: Some(text(cause)?).filter(|cause| !cause.is_empty()),
        repeats: count(&repeats)?,
        queued_at: time(&queued)?,
        due_at: time(&due)?,
        expires_at: time(&expires)?,
        changed_at: time(&changed)?,
        payload: bytes(payload)?.into(),
        result: match result {
            Value::Nil => None,
            result => Some(bytes(result)?.into()),
        },
        history: history::parse(&bytes(history)?),
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
