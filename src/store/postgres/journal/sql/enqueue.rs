//! The statements that queue entries.

use super::{super::super::builder::Table, FOREVER, NOW, gone, off, summary};

/// The columns of an entry that the caller decides about, and their types. All but the bounds are the
/// parameters of each statement that queues one entry.
const NEW: [(&str, &str); 15] = [
    ("id", "bytea"),
    ("queue", "text"),
    ("lane", "text"),
    ("owner", "text"),
    ("label", "text"),
    ("dedup", "bytea"),
    ("fingerprint", "bytea"),
    ("priority", "smallint"),
    ("delay", "bigint"),
    ("ttl", "bigint"),
    ("payload", "bytea"),
    ("version", "text"),
    ("reason", "text"),
    ("in_all", "integer"),
    ("per_owner", "integer"),
];

/// The place of the payload among them.
const PAYLOAD: usize = 10;

/// Returns no row if another entry has the id or the key.
pub(super) fn enqueue(table: &Table) -> String {
    format!("{} RETURNING {}", insert(table, "", true), summary())
}

/// Queues many entries: each parameter is an array with an element for each. `ago` is how many
/// microseconds before the others of the batch an entry came, so that they stay in that order.
pub(super) fn enqueue_batch(table: &Table) -> String {
    let (values, columns, arrays) = batch();
    format!(
        "{} FROM unnest({arrays}, $16::bigint[]) AS new ({columns}, ago) \
         ON CONFLICT DO NOTHING RETURNING {}",
        inserted(table, &values, &format!("({NOW} - new.ago)"), None),
        summary()
    )
}

/// Returns the values of a statement that queues many entries, the columns they are read from, and the
/// arrays of those.
fn batch() -> ([String; 15], String, String) {
    let arrays: Vec<_> = (1..)
        .zip(NEW)
        .map(|(n, (_, kind))| format!("${n}::{kind}[]"))
        .collect();
    (
        NEW.map(|(column, _)| format!("new.{column}")),
        NEW.map(|(column, _)| column).join(", "),
        arrays.join(", "),
    )
}

/// The same for an entry whose payload ends in what others share: the payload's parameter is the rest,
/// the last two are the id and the bytes of that end.
pub(super) fn enqueue_sharing(table: &Table, shared: &Table) -> String {
    let mut values = parameters();
    let own = std::mem::replace(&mut values[PAYLOAD], "NULL".to_owned());
    let insert = inserted(table, &values, NOW, Some([&own, "$16::bytea"]));
    with_shared(
        &format!("{insert} ON CONFLICT DO NOTHING"),
        shared,
        "VALUES ($16::bytea, $17::bytea)",
    )
}

/// The same for many entries, of which some share the end of their payload: theirs is NULL in the
/// array of payloads. The arrays behind `ago` have the rest of it and the id of the end for each entry,
/// and the ids and the bytes of the ends, each once.
pub(super) fn enqueue_batch_sharing(table: &Table, shared: &Table) -> String {
    let (values, columns, arrays) = batch();
    let now = format!("({NOW} - new.ago)");
    let insert = inserted(table, &values, &now, Some(["new.own", "new.shared"]));
    with_shared(
        &format!(
            "{insert} FROM unnest({arrays}, $16::bigint[], $17::bytea[], $18::bytea[]) \
             AS new ({columns}, ago, own, shared) ON CONFLICT DO NOTHING"
        ),
        shared,
        "SELECT * FROM unnest($19::bytea[], $20::bytea[])",
    )
}

/// Returns a statement that inserts entries and counts those that share an end, which it stores where it is
/// not there yet: in one order, in which others that do so wait for each other. An end whose last
/// entry goes meanwhile is stored anew.
fn with_shared(insert: &str, shared: &Table, ends: &str) -> String {
    let summary = summary();
    format!(
        "WITH new AS ({insert} RETURNING {summary}, shared), \
         kept AS ( \
           INSERT INTO {shared} AS s (id, entries, payload) \
           SELECT ends.id, used.entries, ends.payload FROM ({ends}) AS ends (id, payload) \
           JOIN (SELECT shared, count(*) AS entries FROM new WHERE shared IS NOT NULL GROUP BY 1) \
             AS used ON used.shared = ends.id \
           ORDER BY ends.id \
           ON CONFLICT (id) DO UPDATE SET entries = s.entries + excluded.entries) \
         SELECT * FROM new"
    )
}

/// Returns the parameters of a statement that queues one entry, in the order of [`NEW`].
fn parameters() -> [String; 15] {
    let mut parameter = 0;
    NEW.map(|(_, kind)| {
        parameter += 1;
        format!("${parameter}::{kind}")
    })
}

fn insert(table: &Table, from: &str, bounded: bool) -> String {
    let mut values = parameters();
    if !bounded {
        values[13..].fill("NULL".to_owned());
    }
    let insert = inserted(table, &values, NOW, None);
    format!("{insert} {from} ON CONFLICT DO NOTHING")
}

/// Returns the start of a statement that inserts these values, in the order of [`NEW`], and those of the
/// columns `own` and `shared`.
fn inserted(table: &Table, values: &[String; 15], now: &str, sharing: Option<[&str; 2]>) -> String {
    let [
        id,
        queue,
        lane,
        owner,
        label,
        dedup,
        fingerprint,
        priority,
        delay,
        ttl,
        rest @ ..,
    ] = values;
    let after = |duration| format!("least({now} + {duration}, {FOREVER})");
    let (due, expires) = (after(delay), after(ttl));
    let (columns, rest) = match sharing {
        Some([own, shared]) => (
            ", own, shared",
            format!("{}, {own}, {shared}", rest.join(", ")),
        ),
        None => ("", rest.join(", ")),
    };
    format!(
        "INSERT INTO {table} (id, queue, lane, owner, label, dedup, fingerprint, priority, status, \
           turn, attempts, queued, due, expires, changed, leased, until, history, payload, version, \
           reason, in_all, per_owner{columns}) \
         SELECT {id}, {queue}, {lane}, {owner}, {label}, {dedup}, {fingerprint}, {priority}, 0, 0, 0, \
           {now}, least({due}, {expires}), {expires}, {now}, 0, 0, '', {rest}"
    )
}

/// Queues an entry, or tells which one there is, in a single statement: for drivers that run no loop.
/// The rows that make room have to be gone before the insert looks, so the insert reads from it. An entry that
/// was committed since the statement began is in its way and not visible to it: then it fails.
pub(super) fn enqueue_once(table: &Table) -> String {
    let (gone, off) = (gone(), off());
    let insert = insert(
        table,
        "FROM (SELECT count(*) FROM freed) f, (SELECT count(*) FROM gone) g",
        false,
    );
    format!(
        "WITH freed AS ( \
           UPDATE {table} SET dedup = NULL \
           WHERE queue = $2 AND dedup = $6 AND id <> $1 AND {off} RETURNING 1), \
         gone AS (DELETE FROM {table} WHERE id = $1 AND {gone} RETURNING 1), \
         new AS ({insert} RETURNING 1), \
         existing AS ( \
           SELECT true AS same, 0 AS rank FROM {table} WHERE id = $1 AND NOT {gone} \
           UNION ALL \
           SELECT fingerprint = $7 AS same, 1 AS rank FROM {table} \
           WHERE queue = $2 AND dedup = $6 AND id <> $1 AND NOT {off} \
           ORDER BY rank LIMIT 1) \
         SELECT CASE WHEN EXISTS (SELECT FROM new) THEN 'new' \
           WHEN (SELECT same FROM existing) THEN 'existing' \
           WHEN EXISTS (SELECT FROM existing) THEN 'mismatch' \
           ELSE (1 / (SELECT count(*) FROM existing))::text END AS enqueued"
    )
}

/// Finds the entry that has the id or the key of a new one. One that is gone, cancelled or expired
/// makes room; if that was all, no row is returned and the insert can be tried again.
pub(super) fn existing(table: &Table) -> String {
    let (gone, off, summary) = (gone(), off(), summary());
    format!(
        "WITH freed AS ( \
           UPDATE {table} SET dedup = NULL WHERE queue = $2 AND dedup = $3 AND id <> $1 AND {off}), \
         gone AS (DELETE FROM {table} WHERE id = $1 AND {gone}) \
         SELECT {summary}, true AS same, 0 AS rank FROM {table} WHERE id = $1 AND NOT {gone} \
         UNION ALL \
         SELECT {summary}, fingerprint = $4 AS same, 1 AS rank FROM {table} \
         WHERE queue = $2 AND dedup = $3 AND id <> $1 AND NOT {off} \
         ORDER BY rank"
    )
}
