//! Queries that change nothing.

use std::time::Duration;

use rusqlite::OptionalExtension;

use super::{
    super::worker::Batch,
    row::{self, micros},
};
use crate::store::journal::{
    Counts, Duplicate, Entry, EntryId, FEW_DUE, Query, Status, page_of_lanes,
};
use crate::store::{Fingerprint, RecordKey};

pub(super) fn find(batch: &Batch<'_>, id: EntryId) -> rusqlite::Result<Option<Entry>> {
    let mut statement = batch.connection.prepare_cached(concat!(
        "SELECT ",
        whole!(),
        " FROM journal WHERE id = ?1 AND NOT (status > 1 AND until <= ?2)"
    ))?;
    statement
        .query_row((id.as_bytes(), batch.now), |row| row::whole(batch, row))
        .optional()
}

pub(super) fn find_duplicate(
    batch: &Batch<'_>,
    queue: &str,
    key: RecordKey,
) -> rusqlite::Result<Option<Duplicate>> {
    let mut statement = batch.connection.prepare_cached(concat!(
        "SELECT ",
        summary!(),
        ", fingerprint FROM journal
         WHERE queue = ?1 AND dedup = ?2 AND NOT (status > 1 AND until <= ?3)"
    ))?;
    let found = statement.query_row((queue, key.as_bytes(), batch.now), |row| {
        Ok(Duplicate {
            entry: row::summary(row, batch.now)?,
            fingerprint: Fingerprint::new(row.get(18)?),
        })
    });
    let free = [Status::Cancelled, Status::Expired];
    let found = found.optional()?;
    Ok(found.filter(|found| !free.contains(&found.entry.status)))
}

/// Lanes of entries that are due; those past their time are among them.
const READY: &str = "SELECT lane FROM journal INDEXED BY journal_ready
     WHERE queue = ?1 AND status = 0 AND due <= ?2 LIMIT ?3";

/// Lanes with a lease that ran out. No more entries are leased than workers handle.
const LAPSED: &str = "SELECT lane FROM journal INDEXED BY journal_leased
     WHERE queue = ?1 AND status = 1 AND until <= ?2";

/// Returns lanes with work. If little is due, only that is read, however many lanes wait.
pub(super) fn lanes(
    batch: &Batch<'_>,
    queue: &str,
    after: Option<&str>,
    limit: u32,
) -> rusqlite::Result<Vec<String>> {
    let mut ready = batch.connection.prepare_cached(READY)?;
    let ready = ready.query_map((queue, batch.now, FEW_DUE + 1), |row| row.get(0))?;
    let mut lanes = ready.collect::<rusqlite::Result<Vec<String>>>()?;
    if lanes.len() > FEW_DUE as usize {
        return step_through_lanes(batch, queue, after, limit);
    }
    let mut lapsed = batch.connection.prepare_cached(LAPSED)?;
    for lane in lapsed.query_map((queue, batch.now), |row| row.get(0))? {
        lanes.push(lane?);
    }
    Ok(page_of_lanes(lanes, after, limit))
}

/// Returns lanes with work where much is due. The recursion steps from one lane to the next without reading the
/// entries in between, and asks of each whether anything in it can be leased now.
fn step_through_lanes(
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
    let mut statement = batch.connection.prepare_cached(&list_sql(query))?;
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

/// Returns the statement for a combination of filters, so that each finds its index. A plus sign
/// keeps a column from being looked up in one.
fn list_sql(query: &Query) -> String {
    let status = match query.status {
        None => String::new(),
        Some(Status::Queued) => "AND +status = 0 AND expires > ?3".to_owned(),
        Some(Status::Processing) => "AND +status = 1".to_owned(),
        Some(Status::Expired) => "AND (+status = 4 OR +status = 0 AND expires <= ?3)".to_owned(),
        Some(over) => format!("AND status > 1 AND status = {}", over.number()),
    };
    let owner = query.owner.as_ref().map_or("", |_| "AND owner = ?4");
    let label = query.label.as_ref().map_or("", |_| "AND label = ?5");
    format!(
        "SELECT {} FROM journal
         WHERE queue = ?1 AND sequence > ?2 AND NOT (+status > 1 AND until <= ?3)
           {status} {owner} {label}
         ORDER BY sequence LIMIT ?6",
        summary!()
    )
}

/// Those that are queued or processed are counted as queued.
const COUNT_STATES: &str = "SELECT status, entries FROM journal_states WHERE queue = ?1";

const COUNT_LEASED: &str =
    "SELECT count(*) FROM journal INDEXED BY journal_leased WHERE queue = ?1 AND status = 1";

const COUNT_PAST: &str = "SELECT count(*) FROM journal INDEXED BY journal_expiring
     WHERE queue = ?1 AND status = 0 AND expires <= ?2";

/// When the first of those that wait was queued.
const OLDEST: &str = "SELECT queued FROM journal INDEXED BY journal_waiting
     WHERE queue = ?1 AND status = 0 AND expires > ?2 ORDER BY sequence LIMIT 1";

/// Those that were kept long enough and wait for a sweep.
const COUNT_GONE: &str = "SELECT status, -count(*) FROM journal INDEXED BY journal_until
     WHERE status > 1 AND until <= ?2 AND queue = ?1 GROUP BY status";

pub(super) fn counts(batch: &Batch<'_>, queue: &str) -> rusqlite::Result<Counts> {
    let mut counts = Counts::default();
    let mut add = |status: i64, count: i64| {
        let status = usize::try_from(status).unwrap_or(usize::MAX);
        if let Some(total) = counts.by_status.get_mut(status) {
            *total = total.saturating_add_signed(count);
        }
    };
    let mut states = batch.connection.prepare_cached(COUNT_STATES)?;
    let mut rows = states.query([queue])?;
    while let Some(row) = rows.next()? {
        add(row.get(0)?, row.get(1)?);
    }
    let mut leased = batch.connection.prepare_cached(COUNT_LEASED)?;
    let leased: i64 = leased.query_row([queue], |row| row.get(0))?;
    let mut past = batch.connection.prepare_cached(COUNT_PAST)?;
    let past: i64 = past.query_row((queue, batch.now), |row| row.get(0))?;
    add(Status::Queued as i64, -leased - past);
    add(Status::Processing as i64, leased);
    add(Status::Expired as i64, past);
    let mut gone = batch.connection.prepare_cached(COUNT_GONE)?;
    let mut rows = gone.query((queue, batch.now))?;
    while let Some(row) = rows.next()? {
        add(row.get(0)?, row.get(1)?);
    }
    let mut oldest = batch.connection.prepare_cached(OLDEST)?;
    let oldest = oldest.query_row((queue, batch.now), |row| row.get::<_, i64>(0));
    counts.oldest = oldest
        .optional()?
        .map(|oldest| Duration::from_micros(u64::try_from(batch.now - oldest).unwrap_or_default()));
    Ok(counts)
}

/// Three ranges of the index: SQLite would read the whole lane for a comparison of rows.
const POSITION: &str = "SELECT (SELECT count(*) FROM (
       SELECT 1 FROM journal b WHERE b.queue = e.queue AND b.lane = e.lane AND b.status = 0
         AND b.priority < e.priority
       UNION ALL
       SELECT 1 FROM journal b WHERE b.queue = e.queue AND b.lane = e.lane AND b.status = 0
         AND b.priority = e.priority AND b.due < e.due
       UNION ALL
       SELECT 1 FROM journal b WHERE b.queue = e.queue AND b.lane = e.lane AND b.status = 0
         AND b.priority = e.priority AND b.due = e.due AND b.sequence < e.sequence
       LIMIT ?3))
     FROM journal e WHERE e.id = ?1 AND e.status = 0 AND e.expires > ?2";

pub(super) fn position(
    batch: &Batch<'_>,
    id: EntryId,
    limit: u32,
) -> rusqlite::Result<Option<u32>> {
    let mut statement = batch.connection.prepare_cached(POSITION)?;
    statement
        .query_row((id.as_bytes(), batch.now, limit), |row| row.get(0))
        .optional()
}

pub(super) fn secret(batch: &Batch<'_>) -> rusqlite::Result<[u8; 32]> {
    let mut statement = batch
        .connection
        .prepare_cached("SELECT secret FROM journal_secret")?;
    statement.query_row([], |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::{
        super::{super::schema::in_memory, write},
        *,
    };
    use crate::store::journal::{EntryCommand, NewEntry};

    /// Entries of another queue are many, and no list reads them; none sorts, so that a page costs
    /// no more than what is before its end.
    #[test]
    fn j_10_a_page_is_read_by_its_index() {
        let connection = in_memory().unwrap();
        let batch = Batch::new(&connection, 1_000_000);
        for n in 0..2_000 {
            let new = NewEntry {
                owner: format!("owner {}", n % 2),
                ..NewEntry::new(if n % 100 == 0 { "mails" } else { "orders" }, "payload")
            };
            write::enqueue(&batch, &new).unwrap();
            if n % 200 == 0 {
                let cancel = EntryCommand::Cancel(Duration::from_secs(60));
                write::command(&batch, new.id, cancel).unwrap();
            }
        }
        for status in [None, Some(Status::Queued), Some(Status::Cancelled)] {
            for owner in [None, Some("owner 0".to_owned())] {
                let query = Query {
                    status,
                    owner,
                    ..Query::new("mails", 5)
                };
                assert_eq!(list(&batch, &query).unwrap().len(), 5, "{query:?}");
                let statement = connection.prepare_cached(&list_sql(&query)).unwrap();
                let of = |status| statement.get_status(status);
                let seen = (of(StatementStatus::FullscanStep), of(StatementStatus::Sort));
                assert_eq!(seen, (0, 0), "{query:?}");
                assert!(of(StatementStatus::VmStep) < 1_000, "{query:?}");
            }
        }
    }

    /// Fills a lane, and counts the steps that SQLite takes to tell where the first and the last stand.
    fn steps(entries: u32) -> [i32; 2] {
        let connection = in_memory().unwrap();
        let batch = Batch::new(&connection, 1_000_000);
        connection.execute_batch("BEGIN").unwrap();
        let ids: Vec<_> = (0..entries)
            .map(|_| {
                let new = NewEntry::new("mails", "payload");
                write::enqueue(&batch, &new).unwrap();
                new.id
            })
            .collect();
        [(ids[0], 0), (ids[ids.len() - 1], 100)].map(|(id, before)| {
            assert_eq!(position(&batch, id, 100).unwrap(), Some(before));
            let statement = connection.prepare_cached(POSITION).unwrap();
            assert_eq!(statement.get_status(StatementStatus::Sort), 0);
            statement.reset_status(StatementStatus::VmStep)
        })
    }

    #[test]
    fn j_19_where_an_entry_stands_costs_the_same_in_a_long_queue() {
        let (short, long) = (steps(200), steps(20_000));
        for (short, long) in short.into_iter().zip(long) {
            assert!(long <= short + short / 10, "{short} steps, then {long}");
        }
    }

    /// Fills lanes with entries that wait for their next attempt, and counts the steps that SQLite takes to
    /// find one that is due.
    fn steps_to_a_lane(waiting: usize) -> i32 {
        let connection = in_memory().unwrap();
        let batch = Batch::new(&connection, 1_000_000);
        connection.execute_batch("BEGIN").unwrap();
        for n in 0..=waiting {
            let new = NewEntry {
                lane: format!("lane {n:05}"),
                delay: Duration::from_secs(if n == waiting { 0 } else { 60 }),
                ..NewEntry::new("mails", "payload")
            };
            write::enqueue(&batch, &new).unwrap();
        }
        let found = lanes(&batch, "mails", None, 100).unwrap();
        assert_eq!(found, [format!("lane {waiting:05}")]);
        let statements = [READY, LAPSED].map(|sql| connection.prepare_cached(sql).unwrap());
        let steps = statements.map(|statement| statement.get_status(StatementStatus::VmStep));
        steps.iter().sum()
    }

    #[test]
    fn t_8_lanes_cost_nothing_that_grows_with_lanes_that_wait() {
        let (few, many) = (steps_to_a_lane(10), steps_to_a_lane(10_000));
        assert!(
            few > 0 && many <= few + few / 10,
            "{few} steps, then {many}"
        );
    }

    /// Finishes so many entries, leaves as many waiting, and counts the steps that SQLite takes to count
    /// them.
    fn steps_to_count(entries: u32) -> i32 {
        const STATEMENTS: [&str; 5] = [COUNT_STATES, COUNT_LEASED, COUNT_PAST, OLDEST, COUNT_GONE];
        let connection = in_memory().unwrap();
        let batch = Batch::new(&connection, 1_000_000);
        connection.execute_batch("BEGIN").unwrap();
        for n in 0..2 * entries {
            let new = NewEntry {
                delay: Duration::from_secs(60),
                ..NewEntry::new("mails", "payload")
            };
            write::enqueue(&batch, &new).unwrap();
            if n < entries {
                let cancel = EntryCommand::Cancel(Duration::from_secs(60));
                write::command(&batch, new.id, cancel).unwrap();
            }
        }
        let found = counts(&batch, "mails").unwrap();
        let entries = u64::from(entries);
        assert_eq!(found.by_status, [entries, 0, 0, 0, 0, entries]);
        let statements = STATEMENTS.map(|sql| connection.prepare_cached(sql).unwrap());
        let steps = statements.map(|statement| statement.get_status(StatementStatus::VmStep));
        steps.iter().sum()
    }

    #[test]
    fn t_8_counting_costs_nothing_that_grows_with_what_is_over_or_waits() {
        let (few, many) = (steps_to_count(1), steps_to_count(5_000));
        assert!(
            few > 0 && many <= few + few / 10,
            "{few} steps, then {many}"
        );
    }

    /// SQLite reads a row up to the last column that it is asked for, and payloads are in pages of
    /// their own behind it.
    #[test]
    fn j_19_lists_read_no_column_behind_a_payload() {
        let connection = in_memory().unwrap();
        let columns = "SELECT name FROM pragma_table_info('journal') ORDER BY cid";
        let mut columns = connection.prepare(columns).unwrap();
        let columns = columns.query_map([], |row| row.get::<_, String>(0));
        let columns: Vec<_> = columns.unwrap().map(Result::unwrap).collect();
        let payload = columns.iter().position(|column| column == "payload");
        let listed: Vec<&str> = summary!().split(", ").map(str::trim).collect();
        for column in [&listed[..], &["until", "dedup", "fingerprint", "bounded"]].concat() {
            let place = columns.iter().position(|known| known == column);
            assert!(place.is_some() && place < payload, "{column}");
        }
    }
}
