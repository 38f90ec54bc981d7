//! Unknown outcomes, for the people who resolve them.

use std::time::Duration;

use rusqlite::{OptionalExtension, Row};

use super::{
    records::{after, columns, note_at, number, remove},
    worker::Batch,
};
use crate::store::{
    FencingToken, OutcomeCursor, OutcomePage, RecordKey, Resolution, Resolved, UnknownOutcome,
};

/// Selects unknown outcomes; ?1 is the time.
macro_rules! unknown {
    ($and:literal) => {
        concat!(
            "SELECT token, key, note, lease_until, expires FROM idempotency
             WHERE (state = 3 OR state <= 0 AND lease_until <= ?1) AND expires > ?1 ",
            $and
        )
    };
}

const LIST: &str = unknown!("AND watched = 1 AND token > ?2 ORDER BY token LIMIT ?3");

fn unknown(row: &Row<'_>, now: i64) -> rusqlite::Result<(i64, UnknownOutcome)> {
    let span = |from: i64, to: i64| {
        let micros = to.saturating_sub(from);
        Duration::from_micros(u64::try_from(micros).unwrap_or_default())
    };
    let token: i64 = row.get(0)?;
    let unknown = UnknownOutcome {
        key: RecordKey::new(row.get(1)?),
        token: FencingToken::new(token.unsigned_abs()),
        note: note_at(row, 2)?,
        unknown_for: span(row.get(3)?, now),
        expires_in: span(now, row.get(4)?),
    };
    Ok((token, unknown))
}

/// Goes on behind a token.
pub(super) fn list(batch: &Batch<'_>, after: i64, limit: u32) -> rusqlite::Result<OutcomePage> {
    let mut statement = batch.connection.prepare_cached(LIST)?;
    let found = statement.query_map((batch.now, after, limit), |row| unknown(row, batch.now))?;
    let found = found.collect::<rusqlite::Result<Vec<_>>>()?;
    let is_full = found.len() == limit as usize;
    let last = found.last().filter(|_| is_full);
    Ok(OutcomePage {
        next: last.and_then(|(token, _)| OutcomeCursor::new(token.to_be_bytes())),
        outcomes: found.into_iter().map(|(_, unknown)| unknown).collect(),
    })
}

pub(super) fn find(batch: &Batch<'_>, key: &RecordKey) -> rusqlite::Result<Option<UnknownOutcome>> {
    let sql = unknown!("AND key = ?2");
    let mut statement = batch.connection.prepare_cached(sql)?;
    let found = statement.query_row((batch.now, key.as_bytes()), |row| unknown(row, batch.now));
    Ok(found.optional()?.map(|(_, unknown)| unknown))
}

pub(super) fn resolve(
    batch: &Batch<'_>,
    key: &RecordKey,
    token: FencingToken,
    resolution: &Resolution,
) -> rusqlite::Result<Resolved> {
    let is_unknown = find(batch, key)?.is_some_and(|unknown| unknown.token == token);
    if !is_unknown {
        return Ok(Resolved::Conflict);
    }
    if let Resolution::Executed(stored, retention) = resolution {
        let (state, reply) = columns(batch, stored);
        // The next number, as a new owner would get: the former one has lost the record.
        let next = "UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'idempotency'";
        batch.execute(next, ())?;
        batch.execute(
            "UPDATE idempotency SET
               token = (SELECT seq FROM sqlite_sequence WHERE name = 'idempotency'),
               state = ?2, reply = ?3, expires = ?4, watched = CASE ?2 WHEN 3 THEN 1 END,
               checksum = reprise_checksum(
                 key, fingerprint, claim, lease_until, ?4, ?2, note, ?3)
             WHERE token = ?1",
            (number(token), state, reply, after(batch.now, *retention)),
        )?;
        return Ok(Resolved::Made);
    }
    remove(batch, number(token))?;
    Ok(Resolved::Made)
}

#[cfg(test)]
mod tests {
    use super::{super::schema::in_memory, *};

    /// Settled records are many, and no list reads them.
    #[test]
    fn i_27_a_list_reads_its_index_alone() {
        let connection = in_memory().unwrap();
        let plan = format!("EXPLAIN QUERY PLAN {LIST}");
        let plan = connection.query_row(&plan, (0, 0, 0), |row| row.get::<_, String>(3));
        let plan = plan.unwrap();
        assert!(plan.contains("USING INDEX idempotency_watched"), "{plan}");
    }
}
