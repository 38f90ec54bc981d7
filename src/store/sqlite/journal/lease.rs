//! Leases the next entries of a lane.
//!
//! Each kind of entry that can be leased has an index that begins where to look, so that a lease
//! costs the same whatever else is queued: past its time, lapsed, and due, the last one once for
//! each priority.

use rusqlite::{OptionalExtension, Params};

use super::{
    super::worker::Batch,
    row::{self, after},
};
use crate::store::journal::{Entry, LeaseRequest, Priority};

/// Entries past their time, by when that was.
const PAST: &str = "SELECT expires, sequence FROM journal
     WHERE queue = ?1 AND lane = ?2 AND status = 0 AND expires <= ?3
     ORDER BY expires, queued LIMIT ?4";

/// Entries whose lease ran out: in no order, but there are only so many workers.
const LAPSED: &str = "SELECT priority, due, expires, sequence FROM journal
     WHERE queue = ?1 AND lane = ?2 AND status = 1 AND until <= ?3";

/// Entries that are due, without those past their time: these are fewer than the limit if it comes
/// to this.
const DUE: &str = "SELECT due, sequence FROM journal
     WHERE queue = ?1 AND lane = ?2 AND status = 0 AND priority = ?5 AND due <= ?3 AND expires > ?3
     ORDER BY due, sequence LIMIT ?4";

/// Whether an entry is leased.
const BUSY: &str = "SELECT 1 FROM journal
     WHERE queue = ?1 AND lane = ?2 AND status = 1 AND until > ?3 LIMIT 1";

/// The first entry that is due, and when its wait is over.
const HEAD: &str = "SELECT due, sequence, until FROM journal
     WHERE queue = ?1 AND lane = ?2 AND status = 0 AND priority = ?4 AND due <= ?3 AND expires > ?3
     ORDER BY due, sequence LIMIT 1";

const TAKE: &str = concat!(
    "UPDATE journal SET status = 1, turn = turn + 1, attempts = attempts + (expires > ?2),
       changed = ?2, until = ?3
     WHERE sequence = ?1 RETURNING ",
    whole!()
);

/// An entry whose lease ran out.
struct Lapsed {
    priority: i64,
    due: i64,
    expires: i64,
    sequence: i64,
}

pub(super) fn lease(batch: &Batch<'_>, request: &LeaseRequest) -> rusqlite::Result<Vec<Entry>> {
    let until = after(batch.now, request.lease);
    let mut take = batch.connection.prepare_cached(TAKE)?;
    next(batch, request)?
        .into_iter()
        .map(|sequence| {
            let taken = (sequence, batch.now, until);
            take.query_row(taken, |row| row::whole(batch, row))
        })
        .collect()
}

/// Returns the entries to lease, in order.
fn next(batch: &Batch<'_>, request: &LeaseRequest) -> rusqlite::Result<Vec<i64>> {
    let (now, limit) = (batch.now, request.limit as usize);
    let lapsed = lapsed(batch, request)?;
    let past = lapsed.iter().filter(|lapsed| lapsed.expires <= now);
    let past = past.map(|lapsed| (lapsed.expires, lapsed.sequence));
    let queued = (&*request.queue, &request.lane, now, request.limit);
    let mut next = merge(batch, PAST, queued, past, limit)?;
    if request.in_order {
        if next.len() < limit {
            next.extend(head(batch, request, &lapsed)?);
        }
        return Ok(next);
    }
    for priority in Priority::ALL {
        if next.len() == limit || priority > request.through {
            break;
        }
        let left = limit - next.len();
        let priority = priority as i64;
        let due = lapsed
            .iter()
            .filter(|lapsed| lapsed.priority == priority && lapsed.expires > now)
            .map(|lapsed| (lapsed.due, lapsed.sequence));
        let queued = (
            &*request.queue,
            &request.lane,
            now,
            i64::try_from(left).unwrap_or(i64::MAX),
            priority,
        );
        next.extend(merge(batch, DUE, queued, due, left)?);
    }
    Ok(next)
}

/// Returns the first entry of a lane that is free, unless it waits.
fn head(
    batch: &Batch<'_>,
    request: &LeaseRequest,
    lapsed: &[Lapsed],
) -> rusqlite::Result<Option<i64>> {
    let (queue, lane, now) = (&*request.queue, &request.lane, batch.now);
    let mut busy = batch.connection.prepare_cached(BUSY)?;
    if busy.exists((queue, lane, now))? {
        return Ok(None);
    }
    let mut head = batch.connection.prepare_cached(HEAD)?;
    let urgent_enough = |priority: &Priority| *priority <= request.through;
    for priority in Priority::ALL.into_iter().take_while(urgent_enough) {
        let number = priority as i64;
        let queued = head.query_row((queue, lane, now, number), |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        });
        let lapsed = lapsed
            .iter()
            .filter(|lapsed| lapsed.priority == number && lapsed.expires > now)
            .map(|lapsed| (lapsed.due, lapsed.sequence, now));
        let first: Option<(i64, i64, i64)> = lapsed.chain(queued.optional()?).min();
        if let Some((_, sequence, until)) = first {
            return Ok((until <= now).then_some(sequence));
        }
    }
    Ok(None)
}

/// Returns what the statement finds and what lapsed, in order of time and sequence.
fn merge(
    batch: &Batch<'_>,
    sql: &str,
    params: impl Params,
    lapsed: impl Iterator<Item = (i64, i64)>,
    limit: usize,
) -> rusqlite::Result<Vec<i64>> {
    let mut statement = batch.connection.prepare_cached(sql)?;
    let queued = statement.query_map(params, |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut found = queued.collect::<rusqlite::Result<Vec<(i64, i64)>>>()?;
    found.extend(lapsed);
    found.sort_unstable();
    found.truncate(limit);
    Ok(found.into_iter().map(|(_, sequence)| sequence).collect())
}

fn lapsed(batch: &Batch<'_>, request: &LeaseRequest) -> rusqlite::Result<Vec<Lapsed>> {
    let mut statement = batch.connection.prepare_cached(LAPSED)?;
    let lapsed = statement.query_map((&*request.queue, &request.lane, batch.now), |row| {
        Ok(Lapsed {
            priority: row.get(0)?,
            due: row.get(1)?,
            expires: row.get(2)?,
            sequence: row.get(3)?,
        })
    })?;
    lapsed.collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rusqlite::StatementStatus;

    use super::{
        super::{super::schema::in_memory, write},
        *,
    };
    use crate::store::journal::NewEntry;

    const STATEMENTS: [&str; 4] = [PAST, LAPSED, DUE, TAKE];

    /// Fills a lane, most of it for later, and counts the steps that SQLite takes to lease ten.
    fn steps(entries: usize) -> i32 {
        let connection = in_memory().unwrap();
        let batch = Batch::new(&connection, 1_000_000);
        connection.execute_batch("BEGIN").unwrap();
        for n in 0..entries {
            let new = NewEntry {
                priority: Priority::ALL[n % 4],
                delay: Duration::from_secs(if n < entries / 10 { 0 } else { 60 }),
                ..NewEntry::new("mails", "payload")
            };
            write::enqueue(&batch, &new).unwrap();
        }
        let later = Batch::new(&connection, 2_000_000);
        let request = LeaseRequest::new("mails", "", 10, Duration::from_secs(30));
        assert_eq!(lease(&later, &request).unwrap().len(), 10);
        let steps = STATEMENTS.map(|sql| {
            let statement = connection.prepare_cached(sql).unwrap();
            let sorts = statement.get_status(StatementStatus::Sort);
            assert_eq!(sorts, 0, "{sql}");
            statement.get_status(StatementStatus::VmStep)
        });
        assert!(steps.iter().all(|steps| *steps > 0), "{steps:?}");
        steps.iter().sum()
    }

    #[test]
    fn j_5_what_is_next_costs_the_same_in_a_long_queue() {
        let (short, long) = (steps(200), steps(20_000));
        assert!(long <= short + short / 10, "{short} steps, then {long}");
    }
}
