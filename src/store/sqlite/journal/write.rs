//! The transitions of an entry other than a lease.

use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Error, OptionalExtension, Params};

use super::{
    super::worker::Batch,
    row::{self, after, noted},
};
use crate::store::{
    Ownership,
    journal::{
        CommandResult, Enqueued, Entry, EntryCommand, EntryId, EventKind, LeaseToken, NewEntry,
        QueueBounds, Settlement, SharedPayload, Status, Timestamp,
    },
};

/// The most entries, and bytes of them, that one sweep removes.
const SWEEP_ENTRIES: i64 = 256;
const SWEEP_BYTES: i64 = 4 << 20;

/// Queues an entry, unless its bounds leave no room for it.
pub(super) fn enqueue(batch: &Batch<'_>, new: &NewEntry) -> rusqlite::Result<Enqueued> {
    if let Some(bounds) = new.bounds
        && is_full(batch, new, bounds)?
    {
        let found = existing(batch, new)?;
        return Ok(found.unwrap_or(Enqueued::Full));
    }
    put(batch, new, new.bounds.is_some())
}

const FULL: &str = "SELECT 1 FROM journal_open
       WHERE queue = ?1 AND whole = 1 AND owner = '' AND entries >= ?3
     UNION ALL SELECT 1 FROM journal_open
       WHERE queue = ?1 AND whole = 0 AND owner = ?2 AND entries >= ?4";

fn is_full(batch: &Batch<'_>, new: &NewEntry, bounds: QueueBounds) -> rusqlite::Result<bool> {
    let QueueBounds { in_all, per_owner } = bounds;
    if in_all == 0 || per_owner == 0 {
        return Ok(true);
    }
    let mut full = batch.connection.prepare_cached(FULL)?;
    full.exists((&new.queue, &new.owner, in_all, per_owner))
}

/// Queues an entry.
fn put(batch: &Batch<'_>, new: &NewEntry, bounded: bool) -> rusqlite::Result<Enqueued> {
    // An id and a key may each be taken by an entry that has to be removed first.
    for _ in 0..3 {
        if let Some(sequence) = insert(batch, new, bounded)? {
            return Ok(Enqueued::New(queued(new, sequence, batch.now)));
        }
        if let Some(existing) = existing(batch, new)? {
            return Ok(existing);
        }
    }
    Err(Error::StatementChangedRows(0))
}

/// Returns the sequence of the entry, unless its id or key was taken.
fn insert(batch: &Batch<'_>, new: &NewEntry, bounded: bool) -> rusqlite::Result<Option<i64>> {
    const INSERT: &str =
        "INSERT INTO journal (id, queue, lane, owner, label, dedup, fingerprint, priority, status,
           turn, attempts, queued, due, expires, changed, until, history, payload, version,
           bounded, reason, shared, checksum)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0, 0, 0, ?9, ?10, ?11, ?9, ?9, '', ?12, ?13, ?14, ?15,
           ?16, iif(?16 IS NULL, reprise_checksum(?1, ?2, ?3, ?4, ?5, ?7, ?12),
             reprise_checksum(?1, ?2, ?3, ?4, ?5, ?7, ?12, ?16)))
         ON CONFLICT DO NOTHING";
    let expires = after(batch.now, new.ttl);
    let (own, shared) = new.parts();
    let inserted = batch.execute(
        INSERT,
        (
            new.id.as_bytes(),
            &new.queue,
            &new.lane,
            &new.owner,
            &new.label,
            new.dedup.as_ref().map(|dedup| dedup.key.as_bytes()),
            new.dedup.as_ref().map(|dedup| dedup.fingerprint.as_bytes()),
            new.priority as i64,
            batch.now,
            after(batch.now, new.delay).min(expires),
            expires,
            own,
            &new.version,
            bounded,
            &new.reason,
            shared.map(SharedPayload::id),
        ),
    )?;
    if inserted == 0 {
        return Ok(None);
    }
    let sequence = batch.connection.last_insert_rowid();
    if let Some(shared) = shared {
        keep(batch, shared)?;
    }
    Ok(Some(sequence))
}

/// Stores the shared end of a payload, unless it is there.
fn keep(batch: &Batch<'_>, shared: &SharedPayload) -> rusqlite::Result<()> {
    let mut kept = batch
        .connection
        .prepare_cached("SELECT 1 FROM journal_shared WHERE id = ?1")?;
    if kept.exists([shared.id()])? {
        return Ok(());
    }
    const KEEP: &str = "INSERT INTO journal_shared (id, payload, checksum)
         VALUES (?1, ?2, reprise_checksum(?1, ?2))";
    batch.execute(KEEP, (shared.id(), &**shared.bytes()))?;
    Ok(())
}

/// Returns the entry that was just inserted, without a query.
fn queued(new: &NewEntry, sequence: i64, now: i64) -> Entry {
    let now = Timestamp::from_micros(now.max(0).unsigned_abs());
    let mut entry = new.clone().queued(sequence.unsigned_abs(), now);
    entry.payload = Bytes::new();
    if entry.expires_at <= now {
        entry.status = Status::Expired;
    }
    entry
}

/// Returns the entry that has the id or the key of a new one. One that is gone, cancelled or expired
/// makes room instead.
fn existing(batch: &Batch<'_>, new: &NewEntry) -> rusqlite::Result<Option<Enqueued>> {
    const BY_ID: &str = concat!(
        "SELECT ",
        summary!(),
        ", fingerprint, status > 1 AND until <= ?1 FROM journal WHERE id = ?2"
    );
    const BY_KEY: &str = concat!(
        "SELECT ",
        summary!(),
        ", fingerprint, status > 1 AND until <= ?1 FROM journal WHERE queue = ?2 AND dedup = ?3"
    );
    let by_id = (batch.now, new.id.as_bytes());
    if let Some((entry, ..)) = taken_by(batch, BY_ID, by_id)? {
        return Ok(Some(Enqueued::Existing(entry)));
    }
    let Some(dedup) = new.dedup else {
        return Ok(None);
    };
    let by_key = (batch.now, &new.queue, dedup.key.as_bytes());
    let Some((entry, fingerprint)) = taken_by(batch, BY_KEY, by_key)? else {
        return Ok(None);
    };
    if matches!(entry.status, Status::Cancelled | Status::Expired) {
        let mut free = batch
            .connection
            .prepare_cached("UPDATE journal SET dedup = NULL WHERE id = ?1")?;
        free.execute([entry.id.as_bytes()])?;
        return Ok(None);
    }
    Ok(Some(
        match fingerprint.as_ref() == Some(dedup.fingerprint.as_bytes()) {
            true => Enqueued::Existing(entry),
            false => Enqueued::Mismatch,
        },
    ))
}

/// Returns an entry and its fingerprint. One that was kept long enough is removed.
fn taken_by(
    batch: &Batch<'_>,
    sql: &str,
    params: impl Params,
) -> rusqlite::Result<Option<(Entry, Option<[u8; 32]>)>> {
    let mut statement = batch.connection.prepare_cached(sql)?;
    let found = statement.query_row(params, |row| {
        let entry = row::summary(row, batch.now)?;
        Ok((entry, row.get(18)?, row.get(19)?))
    });
    match found.optional()? {
        Some((entry, _, true)) => {
            remove(batch, row::micros(entry.sequence))?;
            Ok(None)
        }
        Some((entry, fingerprint, false)) => Ok(Some((entry, fingerprint))),
        None => Ok(None),
    }
}

pub(super) fn extend(
    batch: &Batch<'_>,
    id: EntryId,
    lease_token: LeaseToken,
    lease: Duration,
) -> rusqlite::Result<Ownership> {
    let mut statement = batch.connection.prepare_cached(
        "UPDATE journal SET until = ?3 WHERE id = ?1 AND turn = ?2 AND status = 1",
    )?;
    let until = after(batch.now, lease);
    let changed = statement.execute((id.as_bytes(), lease_token.column(), until))?;
    Ok(Ownership::held_if(changed == 1))
}

pub(super) fn settle(
    batch: &Batch<'_>,
    id: EntryId,
    lease_token: LeaseToken,
    settlement: &Settlement,
) -> rusqlite::Result<Ownership> {
    let (status, time) = settlement.outcome.transition();
    // The lease of an entry past its time has counted no attempt.
    const SETTLE: &str = "UPDATE journal SET status = ?4, changed = ?3, until = ?5,
           due = iif(?4 = 0 AND NOT ?10, min(?5, expires), due),
           attempts = attempts - (?6 AND expires > changed AND attempts > 0),
           cause = iif(?6, cause, ?9),
           repeats = iif(?6, repeats, iif(?9 IS NULL, 0, iif(cause = ?9, repeats, 0) + 1)),
           result = coalesce(?7, result), history = history || ?8,
           payload = coalesce(?11, payload), shared = iif(?11 IS NULL, shared, NULL),
           checksum = iif(?11 IS NULL, checksum,
             reprise_checksum(id, queue, lane, owner, label, fingerprint, ?11))
         WHERE id = ?1 AND turn = ?2 AND status = 1";
    let settled = batch.execute(
        SETTLE,
        (
            id.as_bytes(),
            lease_token.column(),
            batch.now,
            status.number(),
            after(batch.now, time),
            settlement.outcome.is_release(),
            settlement.result.as_deref(),
            noted(EventKind::Settlement, &settlement.note, batch.now),
            settlement.stored_cause(),
            settlement.keeps_place,
            settlement.stored_remainder().map(|bytes| &**bytes),
        ),
    )?;
    if settled == 1 {
        for new in &settlement.outbox {
            put(batch, new, false)?;
        }
        return Ok(Ownership::Held);
    }
    let mut repeat = batch
        .connection
        .prepare_cached("SELECT 1 FROM journal WHERE id = ?1 AND turn = ?2")?;
    Ok(Ownership::held_if(
        repeat.exists((id.as_bytes(), lease_token.column()))?,
    ))
}

pub(super) fn bury(
    batch: &Batch<'_>,
    new: &NewEntry,
    attempts: u32,
    settlement: &Settlement,
) -> rusqlite::Result<Enqueued> {
    const BURY: &str = concat!(
        "UPDATE journal SET status = ?2, until = ?3, attempts = ?4, cause = ?5,
           repeats = ?5 IS NOT NULL, result = ?6, history = ?7
         WHERE id = ?1 RETURNING ",
        summary!()
    );
    let enqueued = put(batch, new, false)?;
    if !matches!(enqueued, Enqueued::New(_)) {
        return Ok(enqueued);
    }
    for new in &settlement.outbox {
        put(batch, new, false)?;
    }
    let (status, keep) = settlement.outcome.transition();
    let buried = (
        new.id.as_bytes(),
        status.number(),
        after(batch.now, keep),
        attempts,
        settlement.stored_cause(),
        settlement.result.as_deref(),
        noted(EventKind::Settlement, &settlement.note, batch.now),
    );
    let entry = one(batch, BURY, buried)?;
    entry
        .map(Enqueued::New)
        .ok_or(Error::StatementChangedRows(0))
}

pub(super) fn command(
    batch: &Batch<'_>,
    id: EntryId,
    command: EntryCommand,
) -> rusqlite::Result<Option<CommandResult>> {
    const CANCEL: &str = concat!(
        "UPDATE journal SET status = 5, changed = ?2, until = ?3, history = history || ?4,
           payload = x'', shared = NULL, checksum = reprise_checksum(id, queue, lane, owner, label, fingerprint, x'')
         WHERE id = ?1 AND status = 0 AND expires > ?2 RETURNING ",
        summary!()
    );
    const TRIGGER: &str = concat!(
        "UPDATE journal SET priority = 0, due = ?2, until = ?2, history = history || ?4
         WHERE id = ?1 AND status = 0 AND expires > ?2 RETURNING ",
        summary!()
    );
    const REDRIVE: &str = concat!(
        "UPDATE journal SET status = 0, changed = ?2, attempts = 0, redrives = redrives + 1,
           repeats = 0, due = ?2, until = ?2, expires = ?3, history = history || ?4
         WHERE id = ?1 AND status = 3 AND until > ?2 RETURNING ",
        summary!()
    );
    // Names the parameters that it has no use for: all commands have the same.
    const PURGE: &str = concat!(
        "DELETE FROM journal WHERE id = ?1 AND status = 3 AND until > ?2
           AND ?3 IS NOT NULL AND ?4 IS NOT NULL RETURNING ",
        summary!()
    );
    let now = batch.now;
    let sql = match command {
        EntryCommand::Cancel(_) => CANCEL,
        EntryCommand::Trigger => TRIGGER,
        EntryCommand::Redrive(_) => REDRIVE,
        EntryCommand::Purge => PURGE,
    };
    let (time, note) = command.time_and_note();
    let note = noted(EventKind::Command, note, now);
    if let Some(entry) = one(batch, sql, (id.as_bytes(), now, after(now, time), note))? {
        let applied = true;
        return Ok(Some(CommandResult { applied, entry }));
    }
    const LOOK: &str = concat!(
        "SELECT ",
        summary!(),
        " FROM journal WHERE id = ?1 AND NOT (status > 1 AND until <= ?2)"
    );
    let entry = one(batch, LOOK, (id.as_bytes(), now))?;
    Ok(entry.map(|entry| CommandResult {
        applied: false,
        entry,
    }))
}

fn one(batch: &Batch<'_>, sql: &str, params: impl Params) -> rusqlite::Result<Option<Entry>> {
    let mut statement = batch.connection.prepare_cached(sql)?;
    statement
        .query_row(params, |row| row::summary(row, batch.now))
        .optional()
}

/// Removes a few entries that were kept long enough, and returns whether there may be more.
pub(in super::super) fn sweep(batch: &Batch<'_>) -> rusqlite::Result<bool> {
    let mut statement = batch.connection.prepare_cached(
        "SELECT sequence, length(payload) + coalesce(length(result), 0) FROM journal
         WHERE status > 1 AND until <= ?1 ORDER BY until LIMIT ?2",
    )?;
    let over = statement.query_map((batch.now, SWEEP_ENTRIES), |row| {
        Ok((row.get(0)?, row.get(1)?))
    })?;
    let over = over.collect::<rusqlite::Result<Vec<(i64, i64)>>>()?;
    let mut bytes = 0;
    for (n, &(sequence, size)) in (1..).zip(&over) {
        remove(batch, sequence)?;
        bytes += size;
        if n == SWEEP_ENTRIES || bytes >= SWEEP_BYTES {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn remove(batch: &Batch<'_>, sequence: i64) -> rusqlite::Result<()> {
    let mut statement = batch
        .connection
        .prepare_cached("DELETE FROM journal WHERE sequence = ?1")?;
    statement.execute([sequence])?;
    Ok(())
}
