//! The statements of the journal. Each is one transition, at READ COMMITTED, on the server's clock
//! at the start of the statement.

mod enqueue;

use self::enqueue::{
    enqueue, enqueue_batch, enqueue_batch_sharing, enqueue_once, enqueue_sharing, existing,
};
use super::super::{builder::Table, sql::sweeps_alone};
use crate::store::journal::{Priority, Query, Status};

/// The time at the start of the statement, which an index can be searched by.
const NOW: &str = "(date_part('epoch', statement_timestamp()) * 1000000)::bigint";

/// The same, computed once for all rows of a statement.
const NOW_ONCE: &str = "(SELECT (date_part('epoch', statement_timestamp()) * 1000000)::bigint)";

/// The year 2255, as good as forever.
const FOREVER: i64 = (1 << 53) - 1;

/// The entry was kept long enough.
fn gone() -> String {
    format!("(status > 1 AND until <= {NOW})")
}

/// The two states that `status` does not tell apart: see the schema.
const QUEUED: &str = "status = 0 AND leased = 0";
const PROCESSING: &str = "status = 0 AND leased > 0";

/// The entry's key is free for another one.
fn off() -> String {
    let gone = gone();
    format!("(status IN (4, 5) OR ({QUEUED} AND expires <= {NOW}) OR {gone})")
}

/// The entry's state, of which the column `status` is only a part.
fn status() -> String {
    format!(
        "CASE WHEN {PROCESSING} THEN 1 WHEN {QUEUED} AND expires <= {NOW} THEN 4 ELSE status \
         END::smallint"
    )
}

/// The columns that `row::summary` reads.
fn summary() -> String {
    format!(
        "sequence, id, queue, lane, owner, label, priority, {} AS status, \
         turn, attempts, redrives, cause, repeats, reason, queued, due, expires, changed",
        status()
    )
}

/// The columns that `row::whole` reads. A payload that shares its end is put together.
fn whole(shared: &Table) -> String {
    format!(
        "{}, coalesce(payload, own || (SELECT s.payload FROM {shared} s WHERE s.id = shared)) \
           AS payload, result, history",
        summary()
    )
}

fn after(duration: &str) -> String {
    format!("least({NOW_ONCE} + {duration}::bigint, {FOREVER})")
}

/// The history with a note added, which is NULL if there is none.
fn noted(note: &str) -> String {
    format!(
        "history || coalesce( \
           (SELECT convert_to(lpad({NOW}::text, 16, '0'), 'UTF8')) || {note}::bytea, '')"
    )
}

#[derive(Debug)]
pub(in super::super) struct Statements {
    pub(super) enqueue: String,
    pub(super) enqueue_sharing: String,
    pub(super) enqueue_batch: String,
    pub(super) enqueue_batch_sharing: String,
    pub(in super::super) enqueue_once: String,
    pub(super) existing: String,
    pub(super) ready: String,
    pub(super) lanes_from: String,
    pub(super) lanes_after: String,
    pub(in super::super) lease: String,
    pub(super) lease_in_order: String,
    pub(super) extend: String,
    pub(super) settle: String,
    pub(super) settle_batch: String,
    pub(super) same_lease: String,
    pub(super) bury: String,
    pub(super) cancel: String,
    pub(super) trigger: String,
    pub(super) redrive: String,
    pub(super) purge: String,
    pub(super) erase: String,
    pub(super) left: String,
    pub(super) look: String,
    pub(super) find: String,
    pub(super) find_duplicate: String,
    pub(super) counts: String,
    pub(in super::super) sum_up: [String; 2],
    pub(super) sweeps_alone: String,
    pub(super) count_leased: String,
    pub(super) position: String,
    pub(super) secret: String,
    pub(in super::super) sweep: String,
    pub(in super::super) release: String,
    table: Table,
}

impl Statements {
    pub(in super::super) fn new(table: &Table) -> Self {
        let (secret, open) = (table.secret(), table.open());
        let (finished, entries) = (&table.finished(), &table.entries());
        let (shared, released) = (&table.shared(), table.released());
        let sweeps_alone = sweeps_alone(table);
        let table = &table.journal();
        let (gone, summary, whole) = (gone(), summary(), whole(shared));
        let [cancelled, redriven] = [noted("$3"), noted("$3")];
        Self {
            enqueue: enqueue(table),
            enqueue_sharing: enqueue_sharing(table, shared),
            enqueue_batch: enqueue_batch(table),
            enqueue_batch_sharing: enqueue_batch_sharing(table, shared),
            enqueue_once: enqueue_once(table),
            existing: existing(table),
            ready: format!(
                "SELECT lane, leased <= {NOW} FROM {table} \
                 WHERE queue = $1 AND status = 0 AND due <= {NOW} ORDER BY due LIMIT $2"
            ),
            lanes_from: lanes(table, ">="),
            lanes_after: lanes(table, ">"),
            lease: lease(table, entries, &whole),
            lease_in_order: lease_in_order(table, entries, &whole),
            extend: format!(
                "UPDATE {table} SET leased = {} WHERE id = $1 AND turn = $2 AND {PROCESSING} \
                 RETURNING 1",
                after("$3")
            ),
            settle: settle(table, entries),
            settle_batch: settle_batch(table, &open, finished, entries),
            same_lease: format!("SELECT turn = $2 FROM {table} WHERE id = $1"),
            bury: format!(
                "UPDATE {table} SET status = 3, until = {}, attempts = $3, cause = $4, \
                   repeats = ($4::text IS NOT NULL)::int, result = $5, history = {} \
                 WHERE id = $1 RETURNING {summary}",
                after("$2"),
                noted("$6")
            ),
            cancel: format!(
                "UPDATE {table} SET status = 5, changed = {NOW}, until = {}, history = {cancelled}, \
                   payload = '', own = NULL, shared = NULL \
                 WHERE id = $1 AND {QUEUED} AND expires > {NOW} RETURNING {summary}",
                after("$2")
            ),
            trigger: format!(
                "UPDATE {table} SET priority = 0, due = {NOW}, until = 0 \
                 WHERE id = $1 AND {QUEUED} AND expires > {NOW} RETURNING {summary}"
            ),
            redrive: format!(
                "UPDATE {table} SET status = 0, changed = {NOW}, until = 0, attempts = 0, \
                   redrives = redrives + 1, repeats = 0, due = {NOW}, expires = {}, history = {redriven} \
                 WHERE id = $1 AND status = 3 AND until > {NOW} RETURNING {summary}",
                after("$2")
            ),
            purge: format!(
                "DELETE FROM {table} WHERE id = $1 AND status = 3 AND until > {NOW} \
                 RETURNING {summary}"
            ),
            erase: format!(
                "WITH erased AS ( \
                   DELETE FROM {table} WHERE queue = $1 AND sequence = ANY (ARRAY( \
                     SELECT sequence FROM {table} \
                     WHERE queue = $1 AND owner = $2 AND owner <> '' \
                       AND (status > 1 OR leased <= {NOW}) \
                     ORDER BY sequence LIMIT $3 FOR UPDATE SKIP LOCKED)) \
                   RETURNING status = 0 AND leased > 0 AS lapsed), \
                 ended AS (INSERT INTO {entries} (queue, leased, entries) \
                   SELECT $1, true, -count(*) FROM erased WHERE lapsed HAVING count(*) > 0) \
                 SELECT 1 FROM erased"
            ),
            left: format!(
                "SELECT count(*) FROM (SELECT 1 FROM {table} \
                   WHERE queue = $1 AND owner = $2 AND owner <> '' LIMIT $3) entries"
            ),
            look: format!("SELECT {summary} FROM {table} WHERE id = $1 AND NOT {gone}"),
            find: format!("SELECT {whole} FROM {table} WHERE id = $1 AND NOT {gone}"),
            find_duplicate: format!(
                "SELECT {summary}, fingerprint FROM {table} \
                 WHERE queue = $1 AND dedup = $2 AND NOT {}",
                off()
            ),
            counts: counts(table, finished, entries),
            sum_up: [(finished, "status"), (entries, "leased")].map(|(table, column)| {
                format!(
                    "WITH summed AS ( \
                       DELETE FROM {table} WHERE {sweeps_alone} \
                         AND (SELECT count(*) > $1::bigint \
                              FROM (SELECT FROM {table} LIMIT $1::bigint + 1) few) \
                       RETURNING queue, {column}, entries) \
                     INSERT INTO {table} (queue, {column}, entries) \
                     SELECT queue, {column}, sum(entries) FROM summed GROUP BY 1, 2 \
                     HAVING sum(entries) <> 0"
                )
            }),
            sweeps_alone: format!("SELECT {sweeps_alone}"),
            count_leased: format!(
                "INSERT INTO {entries} (queue, leased, entries) \
                 SELECT queue, true, sum(missing) FROM ( \
                   SELECT queue, 1 AS missing FROM {table} WHERE {PROCESSING} \
                   UNION ALL SELECT queue, -entries FROM {entries} WHERE leased) counted \
                 WHERE (SELECT count(*) <= $1::bigint \
                   FROM (SELECT FROM {table} WHERE status = 0 LIMIT $1::bigint + 1) few) \
                 GROUP BY 1 HAVING sum(missing) <> 0"
            ),
            position: format!(
                "SELECT before.entries FROM {table} e, LATERAL ( \
                   SELECT count(*) AS entries FROM ( \
                     SELECT 1 FROM {table} b \
                     WHERE b.queue = e.queue AND b.lane = e.lane AND b.status = 0 \
                       AND b.leased = 0 \
                       AND (b.priority, b.due, b.sequence) < (e.priority, e.due, e.sequence) \
                     LIMIT $2) counted) before \
                 WHERE e.id = $1 AND e.status = 0 AND e.leased = 0 AND e.expires > {NOW}"
            ),
            secret: format!("SELECT secret FROM {secret}"),
            sweep: format!(
                "DELETE FROM {table} WHERE ctid = ANY (ARRAY( \
                   SELECT ctid FROM {table} WHERE {gone} \
                   ORDER BY until LIMIT $1 FOR UPDATE SKIP LOCKED)) \
                 RETURNING 1"
            ),
            // Returns how many rows it took. The table's trigger removes ends that no entry needs.
            // Statements that keep ends lock them in this order, too.
            release: format!(
                "WITH released AS ( \
                   DELETE FROM {released} WHERE ctid = ANY (ARRAY( \
                     SELECT ctid FROM {released} WHERE $1 OR {sweeps_alone} \
                     LIMIT $2 FOR UPDATE SKIP LOCKED)) \
                   RETURNING shared), \
                 counted AS (SELECT shared, count(*) AS entries FROM released GROUP BY 1), \
                 locked AS MATERIALIZED ( \
                   SELECT s.id FROM {shared} s JOIN counted c ON c.shared = s.id \
                   ORDER BY s.id FOR UPDATE OF s), \
                 updated AS ( \
                   UPDATE {shared} s SET entries = s.entries - c.entries FROM counted c \
                   WHERE s.id = c.shared AND (SELECT count(*) FROM locked) >= 0) \
                 SELECT count(*) FROM released"
            ),
            table: table.clone(),
        }
    }

    /// Returns the statement for a combination of filters, so that each finds its index. Owner and
    /// label, if given, are the parameters from the fourth on.
    pub(super) fn list(&self, query: &Query) -> String {
        let status = match query.status {
            None => String::new(),
            Some(Status::Queued) => format!("AND {QUEUED} AND expires > {NOW}"),
            Some(Status::Processing) => format!("AND {PROCESSING}"),
            Some(Status::Expired) => {
                format!("AND (status = 4 OR ({QUEUED} AND expires <= {NOW}))")
            }
            Some(status) => format!("AND status = {}", status.number()),
        };
        let filters = [("owner", &query.owner), ("label", &query.label)];
        let given = filters.iter().filter(|(_, value)| value.is_some());
        let given: String = given
            .zip(4..)
            .map(|((column, _), number)| format!(" AND {column} = ${number}"))
            .collect();
        // The index of owners leaves out entries without one.
        let owned = query.owner.as_ref().is_some_and(|owner| !owner.is_empty());
        let owned = if owned { " AND owner <> ''" } else { "" };
        format!(
            "SELECT {} FROM {} WHERE queue = $1 AND sequence > $2 AND NOT {} {status}{given}{owned} \
             ORDER BY sequence LIMIT $3",
            summary(),
            self.table,
            gone()
        )
    }
}

/// Counts by state, and how long the first queued entry waits. All are counted already; those that are past
/// their time, and those that wait for a sweep, are found by that alone. The latter are found whatever their
/// queue. Of several indexes that have what waits, an order tells the server which one to use, even if it knows
/// nothing of a new table.
fn counts(table: &Table, finished: &Table, entries: &Table) -> String {
    let queued = format!("queue = $1 AND {QUEUED}");
    format!(
        "WITH past AS MATERIALIZED ( \
           SELECT count(*) AS entries FROM ( \
             SELECT 1 FROM {table} WHERE {queued} AND expires <= {NOW} ORDER BY expires) entries), \
         leased AS MATERIALIZED ( \
           SELECT sum(entries)::bigint AS entries FROM {entries} WHERE queue = $1 AND leased), \
         finished AS MATERIALIZED ( \
           SELECT status, sum(entries)::bigint AS entries FROM {finished} WHERE queue = $1 GROUP BY 1) \
         SELECT status, sum(entries)::bigint, coalesce(max(waits), 0) FROM ( \
           SELECT 0::smallint AS status, sum(entries)::bigint AS entries, \
             (SELECT {NOW} - queued FROM {table} WHERE {queued} AND expires + 0 > {NOW} \
              ORDER BY sequence LIMIT 1) AS waits \
           FROM {entries} WHERE queue = $1 AND NOT leased \
           UNION ALL SELECT 0::smallint, -entries, NULL FROM finished \
           UNION ALL SELECT status, entries, NULL FROM finished \
           UNION ALL SELECT 0::smallint, -entries, NULL FROM leased \
           UNION ALL SELECT 1::smallint, entries, NULL FROM leased \
           UNION ALL SELECT 0::smallint, -entries, NULL FROM past \
           UNION ALL SELECT 4::smallint, entries, NULL FROM past \
           UNION ALL \
           SELECT status, -count(*), NULL FROM {table} \
           WHERE status > 1 AND until <= {NOW} AND queue || '' = $1 GROUP BY 1) counted \
         GROUP BY 1 HAVING sum(entries) > 0"
    )
}

/// Finds lanes where much is due. Steps from one lane to the next without reading the entries in between, and reads no more than
/// the first that is due: of an EXISTS the server may make a list of all there is.
fn lanes(table: &Table, from: &str) -> String {
    let here = format!("SELECT true FROM {table} j WHERE j.queue = $1 AND j.lane = lanes.lane");
    let due = Priority::ALL.map(|priority| {
        let priority = priority as u8;
        format!(
            "({here} AND j.status = 0 AND j.priority = {priority} AND j.due <= {NOW} \
             AND j.leased <= {NOW} LIMIT 1)"
        )
    });
    format!(
        "WITH RECURSIVE lanes AS ( \
           (SELECT lane FROM {table} WHERE queue = $1 AND status = 0 AND lane {from} $2 \
            ORDER BY lane LIMIT 1) \
           UNION ALL \
           SELECT (SELECT j.lane FROM {table} j \
                   WHERE j.queue = $1 AND j.status = 0 AND j.lane > lanes.lane \
                   ORDER BY j.lane LIMIT 1) \
           FROM lanes WHERE lane IS NOT NULL) \
         SELECT lane FROM lanes WHERE lane IS NOT NULL AND ({} \
           OR ({here} AND j.status = 0 AND j.expires <= {NOW} AND j.leased <= {NOW} LIMIT 1)) \
         LIMIT $3",
        due.join(" OR ")
    )
}

/// Locks the entries that it leases and nothing else: other workers skip what is locked, and would
/// lease what comes after it.
///
/// Queued entries and those whose lease ran out are both found by `leased`, which is 0 for the
/// first. Each priority is searched by itself, so that entries that are not due are not read.
fn lease(table: &Table, entries: &Table, whole: &str) -> String {
    let free = format!("queue = $1 AND lane = $2 AND status = 0 AND leased <= {NOW}");
    let mut ctes = format!(
        "past AS (SELECT sequence, leased FROM {table} WHERE {free} AND expires <= {NOW} \
         ORDER BY expires, sequence LIMIT $3 FOR UPDATE SKIP LOCKED)"
    );
    let mut next = "SELECT sequence, leased FROM past".to_owned();
    for priority in Priority::ALL {
        let (name, number) = (priority.as_str(), priority as u8);
        ctes += &format!(
            ", {name} AS (SELECT sequence, leased FROM {table} WHERE {free} AND $5::smallint >= {number} \
             AND priority = {number} AND due <= {NOW} AND expires > {NOW} \
             ORDER BY due, sequence LIMIT $3 - (SELECT count(*) FROM ({next}) taken) \
             FOR UPDATE SKIP LOCKED)"
        );
        next += &format!(" UNION ALL SELECT sequence, leased FROM {name}");
    }
    taken(table, entries, whole, &ctes, &next)
}

/// Leases the first entry of a lane that is due, unless it waits or another one is leased.
///
/// A leased entry was the first of its priority, and stays among the first until it is past its time;
/// those are looked for as well. The lock keeps two workers that see different firsts from leasing both;
/// it is held for this statement.
fn lease_in_order(table: &Table, entries: &Table, whole: &str) -> String {
    const LOOK_AT: u32 = 16;
    let lane = "queue = $1 AND lane = $2 AND status = 0";
    let firsts = Priority::ALL.map(|priority| {
        let priority = priority as u8;
        format!(
            "(SELECT priority, due, sequence, leased, until FROM {table} WHERE {lane} \
             AND priority = {priority} AND due <= {NOW} AND expires > {NOW} \
             ORDER BY due, sequence LIMIT {LOOK_AT})"
        )
    });
    let ctes = format!(
        "lane AS MATERIALIZED ( \
           SELECT pg_try_advisory_xact_lock(hashtextextended($1 || ' ' || $2, 0)) AS locked), \
         past AS (SELECT sequence, leased FROM {table} WHERE {lane} AND leased <= {NOW} \
           AND expires <= {NOW} AND (SELECT locked FROM lane) \
           ORDER BY expires, sequence LIMIT $3 FOR UPDATE SKIP LOCKED), \
         firsts AS MATERIALIZED ({}), \
         first AS (SELECT sequence, until FROM firsts WHERE priority <= $5::smallint \
           ORDER BY priority, due, sequence LIMIT 1), \
         next AS (SELECT j.sequence, j.leased FROM {table} j \
           WHERE j.queue = $1 AND j.status = 0 AND j.leased <= {NOW} \
             AND j.sequence = (SELECT sequence FROM first WHERE until <= {NOW}) \
             AND (SELECT locked FROM lane) \
             AND NOT EXISTS (SELECT FROM firsts WHERE leased > {NOW}) \
             AND (SELECT true FROM {table} WHERE {lane} AND leased > {NOW} AND expires <= {NOW} \
               ORDER BY expires, sequence LIMIT 1) IS NULL \
           LIMIT $3 - (SELECT count(*) FROM past) FOR UPDATE SKIP LOCKED)",
        firsts.join(" UNION ALL ")
    );
    taken(
        table,
        entries,
        whole,
        &ctes,
        "SELECT sequence, leased FROM past UNION ALL SELECT sequence, leased FROM next",
    )
}

/// Leases the entries that `next` selects from these parts of a statement, and counts those that were not
/// leased.
fn taken(table: &Table, entries: &Table, whole: &str, ctes: &str, next: &str) -> String {
    format!(
        "WITH {ctes}, leased AS ( \
           UPDATE {table} SET turn = turn + 1, changed = {NOW_ONCE}, leased = {}, \
             attempts = attempts + CASE WHEN expires > {NOW_ONCE} THEN 1 ELSE 0 END \
           WHERE queue = $1 AND sequence = ANY (ARRAY(SELECT sequence FROM ({next}) next)) \
           RETURNING {whole}), \
         counted AS (INSERT INTO {entries} (queue, leased, entries) \
           SELECT $1, true, count(*) FROM ({next}) next WHERE leased = 0 HAVING count(*) > 0) \
         SELECT * FROM leased ORDER BY expires > changed, \
           CASE WHEN expires > changed THEN priority END, \
           CASE WHEN expires > changed THEN due ELSE expires END, sequence",
        after("$4")
    )
}

/// Settles many leases: each parameter is an array with an element for each. What it completes is counted
/// in one row for each queue, or removed if it is kept for no time.
///
/// The triggers that count entries lock a row for each bounded queue, in the order of the update, which
/// is the planner's. If there are several, they are locked before it in the order of their names, as
/// those of other batches are: otherwise two batches could wait for each other. With one bounded queue
/// nothing is looked at: a settlement costs an eighth more otherwise.
fn settle_batch(table: &Table, open: &Table, finished: &Table, entries: &Table) -> String {
    let columns = [
        "status",
        "time",
        "releases",
        "result",
        "note",
        "cause",
        "keeps",
        "remainder",
    ];
    let settling = settling(
        table,
        columns.map(|column| format!("row.{column}")),
        "CASE WHEN row.status = 2 THEN entry.leased ELSE 0 END",
    );
    let leased = "entry.id = row.id AND entry.turn = row.turn AND entry.status = 0 \
                  AND entry.leased > 0 AND (SELECT count(*) FROM locked) >= 0";
    let is_removed = "(row.status = 2 AND row.time <= 0)";
    format!(
        "WITH bounded AS MATERIALIZED ( \
           SELECT DISTINCT entry.queue FROM unnest($1::bytea[], $3::smallint[]) AS row (id, status) \
           JOIN {table} entry ON entry.id = row.id \
           WHERE row.status > 1 AND entry.in_all IS NOT NULL \
             AND (SELECT min(queue) FROM {open}) < (SELECT max(queue) FROM {open})), \
         locked AS MATERIALIZED ( \
           SELECT FROM {open} WHERE whole AND queue IN (SELECT queue FROM bounded) \
             AND (SELECT count(*) FROM bounded) > 1 ORDER BY queue FOR UPDATE), \
         settled AS ({settling} \
           FROM unnest($1::bytea[], $2::bigint[], $3::smallint[], $4::bigint[], $5::boolean[], \
             $6::bytea[], $7::bytea[], $8::text[], $9::boolean[], $10::bytea[]) \
             AS row (id, turn, status, time, releases, result, note, cause, keeps, remainder) \
           WHERE {leased} AND NOT {is_removed} \
           RETURNING entry.id, entry.turn, entry.queue, entry.status), \
         removed AS (DELETE FROM {table} entry \
           USING unnest($1::bytea[], $2::bigint[], $3::smallint[], $4::bigint[]) \
             AS row (id, turn, status, time) \
           WHERE {leased} AND {is_removed} RETURNING entry.id, entry.turn, entry.queue), \
         counted AS (INSERT INTO {finished} (queue, status, entries) \
           SELECT queue, status, count(*) FROM settled WHERE status = 2 GROUP BY 1, 2), \
         ended AS (INSERT INTO {entries} (queue, leased, entries) \
           SELECT queue, true, -count(*) FROM ( \
             SELECT queue FROM settled UNION ALL SELECT queue FROM removed) ended GROUP BY 1) \
         SELECT id, turn FROM settled UNION ALL SELECT id, turn FROM removed"
    )
}

fn settle(table: &Table, entries: &Table) -> String {
    format!(
        "WITH settled AS ({} WHERE id = $1 AND turn = $2 AND {PROCESSING} RETURNING entry.queue), \
         ended AS (INSERT INTO {entries} (queue, leased, entries) \
           SELECT queue, true, -1 FROM settled) \
         SELECT 1 FROM settled",
        settling(
            table,
            [
                "$3::smallint",
                "$4",
                "$5::boolean",
                "$6",
                "$7",
                "$8::text",
                "$9::boolean",
                "$10::bytea",
            ]
            .map(str::to_owned),
            "0",
        )
    )
}

/// Returns the start of a statement that settles an entry. The lease of an entry past its time has
/// counted no attempt.
fn settling(table: &Table, parameters: [String; 8], leased: &str) -> String {
    let [
        status,
        time,
        releases,
        result,
        note,
        cause,
        keeps,
        remainder,
    ] = parameters;
    let (time, history) = (after(&time), noted(&note));
    format!(
        "UPDATE {table} entry SET status = {status}, changed = {NOW_ONCE}, leased = {leased}, \
           until = CASE WHEN {status} = 0 AND NOT {keeps} THEN 0 ELSE {time} END, \
           due = CASE WHEN {status} = 0 AND NOT {keeps} THEN least({time}, expires) ELSE due END, \
           attempts = attempts - \
             CASE WHEN {releases} AND expires > changed AND attempts > 0 THEN 1 ELSE 0 END, \
           cause = CASE WHEN {releases} THEN entry.cause ELSE {cause} END, \
           repeats = CASE WHEN {releases} THEN repeats WHEN {cause} IS NULL THEN 0 \
             WHEN entry.cause = {cause} THEN repeats + 1 ELSE 1 END, \
           result = coalesce({result}, entry.result), history = {history}, \
           payload = coalesce({remainder}, entry.payload), \
           own = CASE WHEN {remainder} IS NULL THEN entry.own END, \
           shared = CASE WHEN {remainder} IS NULL THEN entry.shared END"
    )
}
