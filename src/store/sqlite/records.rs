use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Row, types::ValueRef};

use super::{checksum, worker::Batch};
use crate::store::{
    Claim, ClaimId, Claimed, CrashPolicy, FencingToken, Fingerprint, Lease, Note, Ownership,
    RecordKey, Stored,
};

/// The most records, and about the most bytes of replies, that one sweep removes.
const SWEEP_RECORDS: i64 = 256;
const SWEEP_BYTES: i64 = 4 << 20;

const IN_FLIGHT: i64 = 0;
/// The same, after an execution that may have taken effect.
const IN_FLIGHT_AGAIN: i64 = -1;
const REPLY: i64 = 1;
const NOT_RETAINED: i64 = 2;
const UNKNOWN: i64 = 3;

/// The record that a claim finds.
enum Found {
    /// One that the claim leaves as it is.
    Unchanged(Claimed),
    /// None, or an expired one.
    Free { expired: Option<i64> },
    /// One in flight by this very claim.
    Again { token: i64, orphaned: bool },
    /// One in flight whose lease ran out, or that was suspended for this claim.
    Orphan {
        token: i64,
        note: Note,
        resumed: bool,
        lease_until: i64,
    },
}

/// Returns the result of the claim if it changes nothing.
pub(super) fn read_claim(batch: &Batch<'_>, claim: &Claim) -> rusqlite::Result<Option<Claimed>> {
    Ok(match find(batch, claim)? {
        Found::Unchanged(claimed) => Some(claimed),
        _ => None,
    })
}

pub(super) fn claim(batch: &Batch<'_>, claim: &Claim) -> rusqlite::Result<Claimed> {
    let lease_until = after(batch.now, claim.lease);
    let times = (lease_until, after(lease_until, claim.retention));
    // Most keys are new, which the insertion finds out by itself.
    if insert(batch, claim, &claim.note, IN_FLIGHT, times)? {
        return Ok(new_owner(batch.connection.last_insert_rowid(), false));
    }
    let (old, orphan) = match find(batch, claim)? {
        Found::Unchanged(claimed) => return Ok(claimed),
        Found::Again { token, orphaned } => {
            let owner = FencingToken::new(token.unsigned_abs());
            let _ = renew(batch, &claim.key, owner, None, claim.lease, claim.retention)?;
            return Ok(new_owner(token, orphaned));
        }
        Found::Free { expired } => (expired, None),
        Found::Orphan {
            token,
            note,
            resumed,
            lease_until,
        } => (Some(token), Some((note, resumed, lease_until))),
    };
    if let Some(old) = old {
        remove(batch, old)?;
    }
    let orphaned = orphan.is_some();
    let watched = claim.crash_policy == CrashPolicy::Unknown;
    let vanished = |&(_, resumed, _): &(Note, bool, i64)| !resumed && watched;
    if let Some((note, _, lease_until)) = orphan.filter(vanished) {
        let times = (lease_until, after(batch.now, claim.retention));
        insert(batch, claim, &note, UNKNOWN, times)?;
        let stored = Stored::Unknown;
        return Ok(Claimed::Done { stored, note });
    }
    let state = if orphaned { IN_FLIGHT_AGAIN } else { IN_FLIGHT };
    insert(batch, claim, &claim.note, state, times)?;
    Ok(new_owner(batch.connection.last_insert_rowid(), orphaned))
}

fn new_owner(token: i64, orphaned: bool) -> Claimed {
    Claimed::New(Lease {
        token: FencingToken::new(token.unsigned_abs()),
        orphaned,
    })
}

fn find(batch: &Batch<'_>, claim: &Claim) -> rusqlite::Result<Found> {
    const FIND: &str =
        "SELECT token, key, fingerprint, claim, lease_until, expires, state, note, reply, checksum
         FROM idempotency WHERE key = ?1";
    batch.with(FIND, |statement| {
        let mut rows = statement.query([claim.key.as_bytes()])?;
        match rows.next()? {
            Some(row) => found(batch, claim, row),
            None => Ok(Found::Free { expired: None }),
        }
    })
}

fn found(batch: &Batch<'_>, claim: &Claim, row: &Row<'_>) -> rusqlite::Result<Found> {
    checksum::verify(row, 1..9, 9)?;
    let token = row.get(0)?;
    if row.get::<_, i64>(5)? <= batch.now {
        return Ok(Found::Free {
            expired: Some(token),
        });
    }
    let fingerprint = Fingerprint::new(row.get(2)?);
    if fingerprint != claim.fingerprint {
        let note = note(row)?;
        return Ok(Found::Unchanged(Claimed::Mismatch { fingerprint, note }));
    }
    if let Some(stored) = stored(row)? {
        let note = note(row)?;
        return Ok(Found::Unchanged(Claimed::Done { stored, note }));
    }
    let id = ClaimId::new(row.get(3)?);
    if id == claim.id {
        let orphaned = row.get::<_, i64>(6)? == IN_FLIGHT_AGAIN;
        return Ok(Found::Again { token, orphaned });
    }
    let resumed = claim.resumes == Some(id);
    let lease_until: i64 = row.get(4)?;
    let remaining = lease_until.saturating_sub(batch.now);
    Ok(match u64::try_from(remaining) {
        Ok(remaining @ 1..) if !resumed => Found::Unchanged(Claimed::InFlight {
            remaining: Duration::from_micros(remaining),
            note: note(row)?,
        }),
        _ => Found::Orphan {
            token,
            note: note(row)?,
            resumed,
            lease_until,
        },
    })
}

fn note(row: &Row<'_>) -> rusqlite::Result<Note> {
    note_at(row, 7)
}

pub(super) fn note_at(row: &Row<'_>, column: usize) -> rusqlite::Result<Note> {
    let note = row.get_ref(column)?.as_blob_or_null()?.unwrap_or_default();
    let length = i64::try_from(note.len()).unwrap_or(i64::MAX);
    Note::new(note).ok_or(rusqlite::Error::IntegralValueOutOfRange(column, length))
}

/// `None` while in flight.
fn stored(row: &Row<'_>) -> rusqlite::Result<Option<Stored>> {
    Ok(Some(match row.get(6)? {
        IN_FLIGHT | IN_FLIGHT_AGAIN => return Ok(None),
        REPLY => {
            let reply = row.get_ref(8)?;
            Stored::Reply(Bytes::copy_from_slice(reply.as_blob()?))
        }
        NOT_RETAINED => Stored::NotRetained,
        UNKNOWN => Stored::Unknown,
        other => return Err(rusqlite::Error::IntegralValueOutOfRange(6, other)),
    }))
}

/// Returns whether there was no record of the key.
fn insert(
    batch: &Batch<'_>,
    claim: &Claim,
    note: &Note,
    state: i64,
    (lease_until, expires): (i64, i64),
) -> rusqlite::Result<bool> {
    let note = (!note.is_empty()).then_some(note.as_bytes());
    let values = [
        ValueRef::Blob(claim.key.as_bytes()),
        ValueRef::Blob(claim.fingerprint.as_bytes()),
        ValueRef::Blob(claim.id.as_bytes()),
        ValueRef::Integer(lease_until),
        ValueRef::Integer(expires),
        ValueRef::Integer(state),
        note.map_or(ValueRef::Null, ValueRef::Blob),
        ValueRef::Null,
    ];
    let inserted = batch.execute(
        "INSERT INTO idempotency
           (key, fingerprint, claim, lease_until, expires, state, note, watched, checksum)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
         ON CONFLICT (key) DO NOTHING",
        (
            claim.key.as_bytes(),
            claim.fingerprint.as_bytes(),
            claim.id.as_bytes(),
            lease_until,
            expires,
            state,
            note,
            (claim.crash_policy == CrashPolicy::Unknown).then_some(1),
            checksum::checksum(values.into_iter()),
        ),
    )?;
    Ok(inserted == 1)
}

pub(super) fn remove(batch: &Batch<'_>, token: i64) -> rusqlite::Result<()> {
    batch.execute("DELETE FROM idempotency WHERE token = ?1", [token])?;
    Ok(())
}

/// Restarts the lease, and hands the record over to another claim if one is given.
pub(super) fn renew(
    batch: &Batch<'_>,
    key: &RecordKey,
    token: FencingToken,
    resumed_by: Option<ClaimId>,
    lease: Duration,
    retention: Duration,
) -> rusqlite::Result<Ownership> {
    let lease_until = after(batch.now, lease);
    let expires = after(lease_until, retention);
    let changed = batch.execute(
        "UPDATE idempotency SET lease_until = ?4, expires = ?5, claim = coalesce(?6, claim),
           checksum = reprise_checksum(
             key, fingerprint, coalesce(?6, claim), ?4, ?5, state, note, reply)
         WHERE token = ?1 AND key = ?2 AND state <= 0 AND expires > ?3",
        (
            number(token),
            key.as_bytes(),
            batch.now,
            lease_until,
            expires,
            resumed_by.as_ref().map(ClaimId::as_bytes),
        ),
    )?;
    Ok(Ownership::held_if(changed == 1))
}

pub(super) fn complete(
    batch: &Batch<'_>,
    key: &RecordKey,
    token: FencingToken,
    stored: &Stored,
    retention: Duration,
) -> rusqlite::Result<Ownership> {
    let (state, reply) = columns(batch, stored);
    let (token, key, now) = (number(token), key.as_bytes(), batch.now);
    let changed = batch.execute(
        "UPDATE idempotency SET state = ?4, reply = ?5, expires = ?6,
           watched = CASE ?4 WHEN 3 THEN 1 END,
           checksum = reprise_checksum(key, fingerprint, claim, lease_until, ?6, ?4, note, ?5)
         WHERE token = ?1 AND key = ?2 AND state <= 0 AND expires > ?3",
        (token, key, now, state, reply, after(now, retention)),
    )?;
    if changed == 1 {
        return Ok(Ownership::Held);
    }
    let mut repeat = batch.connection.prepare_cached(
        "SELECT 1 FROM idempotency WHERE token = ?1 AND key = ?2 AND expires > ?3",
    )?;
    Ok(Ownership::held_if(repeat.exists((token, key, now))?))
}

/// Returns the columns `state` and `reply`.
pub(super) fn columns<'a>(batch: &Batch<'_>, stored: &'a Stored) -> (i64, Option<&'a [u8]>) {
    match stored {
        Stored::Reply(_) if batch.is_tight => (NOT_RETAINED, None),
        Stored::Reply(bytes) => (REPLY, Some(bytes)),
        Stored::NotRetained => (NOT_RETAINED, None),
        Stored::Unknown => (UNKNOWN, None),
    }
}

pub(super) fn release(
    batch: &Batch<'_>,
    key: &RecordKey,
    token: FencingToken,
) -> rusqlite::Result<Ownership> {
    let changed = batch.execute(
        "DELETE FROM idempotency
         WHERE token = ?1 AND key = ?2 AND state <= 0 AND expires > ?3",
        (number(token), key.as_bytes(), batch.now),
    )?;
    Ok(Ownership::held_if(changed == 1))
}

/// Removes a few expired records. Returns whether there may be more.
pub(super) fn sweep(batch: &Batch<'_>) -> rusqlite::Result<bool> {
    let mut statement = batch.connection.prepare_cached(
        "SELECT token, coalesce(length(reply), 0) FROM idempotency
         WHERE expires <= ?1 ORDER BY expires LIMIT ?2",
    )?;
    let expired = statement.query_map((batch.now, SWEEP_RECORDS), |row| {
        Ok((row.get(0)?, row.get(1)?))
    })?;
    let expired = expired.collect::<rusqlite::Result<Vec<(i64, i64)>>>()?;
    let mut bytes = 0;
    for (n, &(token, reply)) in (1..).zip(&expired) {
        remove(batch, token)?;
        bytes += reply;
        if n == SWEEP_RECORDS || bytes >= SWEEP_BYTES {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the row id of a token; -1, which no row has, for one that this store never gave.
pub(super) fn number(token: FencingToken) -> i64 {
    i64::try_from(token.get()).unwrap_or(-1)
}

/// Adds a duration; a time that can't be represented counts as forever.
pub(super) fn after(time: i64, duration: Duration) -> i64 {
    time.saturating_add(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX))
}
