//! What changes nothing.

use std::{fmt::Write, time::Duration};

use rusqlite::OptionalExtension;

use super::{
    super::worker::Batch,
    row::{self, micros},
};
use crate::store::journal::{Counts, Entry, EntryId, Query, Status};

pub(super) fn find(batch: &Batch<'_>, id: EntryId) -> rusqlite::Result<Option<Entry>> {
    let mut statement = batch.connection.prepare_cached(concat!(
        "SELECT ",
        whole!(),
        " FROM journal WHERE id = ?1 AND NOT (status > 1 AND until <= ?2)"
    ))?;
    statement
        .query_row((id.as_bytes(), batch.now), |row| row::whole(row, batch.now))
        .optional()
}

/// From one lane to the next, without a look at what is in between: the first one of which
/// something is queued or leased, and whether any of that can be leased now.
pub(super) fn lanes(
    batch: &Batch<'_>,
    queue: &str,
    after: Option<&str>,
    limit: u32,
) -> rusqlite::Result<Vec<String>> {
    let from = match after {
        Some(_) => ">",
        None => ">=",
    };
    let mut statement = batch.connection.prepare_cached(&format!(
        "WITH RECURSIVE lanes (lane) AS (
           SELECT min(lane) FROM (
             SELECT min(lane) AS lane FROM journal WHERE queue = ?1 AND status = 0 AND lane {from} ?2
             UNION ALL
             SELECT min(lane) FROM journal WHERE queue = ?1 AND status = 1 AND lane {from} ?2)
           UNION ALL
           SELECT (SELECT min(next) FROM (
             SELECT min(j.lane) AS next FROM journal j
             WHERE j.queue = ?1 AND j.status = 0 AND j.lane > lanes.lane
             UNION ALL
             SELECT min(j.lane) FROM journal j
             WHERE j.queue = ?1 AND j.status = 1 AND j.lane > lanes.lane))
           FROM lanes WHERE lane IS NOT NULL)
         SELECT lane FROM lanes WHERE lane IS NOT NULL AND (
           EXISTS (SELECT 1 FROM (SELECT 0 AS p UNION ALL SELECT 1 UNION ALL SELECT 2
                                  UNION ALL SELECT 3)
                   WHERE EXISTS (SELECT 1 FROM journal j
                                 WHERE j.queue = ?1 AND j.lane = lanes.lane AND j.status = 0
                                   AND j.priority = p AND j.due <= ?3))
           OR EXISTS (SELECT 1 FROM journal j
                      WHERE j.queue = ?1 AND j.lane = lanes.lane AND j.status = 0
                        AND j.expires <= ?3)
           OR EXISTS (SELECT 1 FROM journal j
                      WHERE j.queue = ?1 AND j.lane = lanes.lane AND j.status = 1
                        AND j.until <= ?3))
         LIMIT ?4"
    ))?;
    let after = after.unwrap_or_default();
    let lanes = statement.query_map((queue, after, batch.now, limit), |row| row.get(0))?;
    lanes.collect()
}

pub(super) fn list(batch: &Batch<'_>, query: &Query) -> rusqlite::Result<Vec<Entry>> {
    // Each combination has its own statement, so that it finds its index. Without owner and end,
    // entries are read in their sequence: a plus sign keeps a column from being looked up.
    let over = query.status.filter(|status| {
        matches!(
            status,
            Status::Completed | Status::Failed | Status::Cancelled
        )
    });
    let queue = match query.owner.is_some() || over.is_some() {
        true => "queue",
        false => "+queue",
    };
    let mut sql = format!(
        "SELECT {} FROM journal
         WHERE {queue} = ?1 AND sequence > ?2 AND NOT (+status > 1 AND until <= ?3)",
        summary!()
    );
    let wrote = match query.status {
        None => Ok(()),
        Some(Status::Queued) => write!(sql, " AND +status = 0 AND expires > ?3"),
        Some(Status::Expired) => {
            write!(sql, " AND (+status = 4 OR +status = 0 AND expires <= ?3)")
        }
        Some(Status::Processing) => write!(sql, " AND +status = 1"),
        Some(over) => write!(sql, " AND status > 1 AND status = {}", over.number()),
    };
    wrote.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    if query.owner.is_some() {
        sql += " AND owner = ?4";
    }
    if query.label.is_some() {
        sql += " AND label = ?5";
    }
    sql += " ORDER BY sequence LIMIT ?6";
    let mut statement = batch.connection.prepare_cached(&sql)?;
    let params = (
        &query.queue,
        micros(query.after),
        batch.now,
        &query.owner,
        &query.label,
        query.limit,
    );
    let entries = statement.query_map(params, |row| row::summary(row, batch.now))?;
    entries.collect()
}

pub(super) fn counts(batch: &Batch<'_>, queue: &str) -> rusqlite::Result<Counts> {
    let mut counts = Counts::default();
    let mut add = |status: Status, count: i64| {
        counts.by_status[usize::from(status.number())] += count.unsigned_abs();
    };
    let mut queued = batch.connection.prepare_cached(
        "SELECT count(*), coalesce(sum(expires <= ?2), 0), min(iif(expires > ?2, queued, NULL))
         FROM journal WHERE queue = ?1 AND status = 0",
    )?;
    let (all, past, oldest): (i64, i64, Option<i64>) = queued
        .query_row((queue, batch.now), |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
    add(Status::Queued, all - past);
    add(Status::Expired, past);
    let mut leased = batch
        .connection
        .prepare_cached("SELECT count(*) FROM journal WHERE queue = ?1 AND status = 1")?;
    add(
        Status::Processing,
        leased.query_row([queue], |row| row.get(0))?,
    );
    let mut over = batch.connection.prepare_cached(
        "SELECT count(*) FROM journal
         WHERE queue = ?1 AND status > 1 AND status = ?3 AND until > ?2",
    )?;
    for status in Status::ALL.into_iter().filter(|status| status.is_over()) {
        let params = (queue, batch.now, status.number());
        add(status, over.query_row(params, |row| row.get(0))?);
    }
    counts.oldest = oldest
        .map(|oldest| Duration::from_micros(u64::try_from(batch.now - oldest).unwrap_or_default()));
    Ok(counts)
}

pub(super) fn position(
    batch: &Batch<'_>,
    id: EntryId,
    limit: u32,
) -> rusqlite::Result<Option<u32>> {
    let mut find = batch.connection.prepare_cached(
        "SELECT queue, lane, priority, due, sequence FROM journal
         WHERE id = ?1 AND status = 0 AND expires > ?2",
    )?;
    let mut rows = find.query((id.as_bytes(), batch.now))?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let mut count = batch.connection.prepare_cached(
        "SELECT count(*) FROM (
           SELECT 1 FROM journal
           WHERE queue = ?1 AND lane = ?2 AND status = 0
             AND (priority, due, sequence) < (?3, ?4, ?5)
           LIMIT ?6)",
    )?;
    let place = (
        row.get::<_, String>(0)?,
        row.get::<_, String>(1)?,
        row.get::<_, i64>(2)?,
        row.get::<_, i64>(3)?,
        row.get::<_, i64>(4)?,
        limit,
    );
    count.query_row(place, |row| row.get(0)).map(Some)
}

pub(super) fn secret(batch: &Batch<'_>) -> rusqlite::Result<[u8; 32]> {
    let mut statement = batch
        .connection
        .prepare_cached("SELECT secret FROM journal_secret")?;
    statement.query_row([], |row| row.get(0))
}
