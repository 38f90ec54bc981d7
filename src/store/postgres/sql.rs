//! The statements on records. Each is a transition of its own, at READ COMMITTED, on the server's
//! clock.
//!
//! Times are microseconds since 1970: a `timestamptz` can't represent "forever".

use super::builder::Table;

// Values of `state`, as the schema's comment explains them.
pub(super) const IN_FLIGHT: i16 = 0;
pub(super) const REPLY: i16 = 1;
pub(super) const NOT_RETAINED: i16 = 2;
pub(super) const UNKNOWN: i16 = 3;
/// A released row stays for a while, since the next token must exceed its token.
const RELEASED: i16 = 4;

const NOW: &str = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint";

/// The time for which an expired row is kept. A claim draws its token from the clock when it begins,
/// and may wait for a lock before it inserts: until then no row with a greater token may have been
/// swept, or tokens would go back. Longer than the longest timeout of a verb.
const GRACE_MICROS: i64 = 60_000_000;

/// Returns the hour after a time. Rows are swept by it: it stays as it is when a lease is renewed or an
/// operation completed, so that the server writes the new version of the row to the same page and
/// leaves all indexes alone (HOT), also on a full disk.
fn hour_after(time: &str) -> String {
    const HOUR: i64 = 3_600_000_000;
    format!("(({time}) / {HOUR} + 1) * {HOUR}")
}

#[derive(Debug)]
pub(super) struct Statements {
    pub(super) claim_new: String,
    pub(super) claim_one: String,
    pub(super) claim: String,
    pub(super) renew: String,
    pub(super) complete: String,
    pub(super) complete_batch: String,
    pub(super) complete_one: String,
    pub(super) complete_in: String,
    pub(super) release: String,
    pub(super) sweep: String,
    pub(super) unwatch: String,
    pub(super) unknown_outcomes: String,
    pub(super) unknown_outcome: String,
    pub(super) resolve: String,
    pub(super) resolved: String,
    pub(super) set_free: String,
}

impl Statements {
    pub(super) fn new(table: &Table) -> Self {
        let replies = &table.replies();
        let completing = complete(table, replies);
        let (renewed, released) = (hour_after(&format!("{NOW} + $3 + $4")), hour_after(NOW));
        let (resolved, is_unknown) = (hour_after(&format!("{NOW} + $5")), is_unknown());
        let sweeps_alone = sweeps_alone(table);
        Self {
            claim_new: claim_new(table),
            claim_one: claim_one(table),
            claim: claim(table, replies),
            renew: format!(
                "UPDATE {table} SET lease_until = {NOW} + $3, expires = {NOW} + $3 + $4, \
                   sweep_after = greatest(sweep_after, {renewed}), \
                   claim_id = coalesce($5, claim_id) \
                 WHERE key = $1 AND token = $2 AND state = {IN_FLIGHT} AND expires > {NOW} \
                 RETURNING 1"
            ),
            // Fails with a division by zero if the lease was lost: the server then rolls back the
            // transaction, whatever its owner does next.
            complete_in: format!("{completing} SELECT 1 / count(*) FROM done"),
            complete: format!("{completing} SELECT 1 FROM done"),
            complete_batch: complete_batch(table, replies),
            complete_one: complete_one(table, replies),
            release: format!(
                "UPDATE {table} SET state = {RELEASED}, expires = {NOW}, \
                   sweep_after = {released} \
                 WHERE key = $1 AND token = $2 AND state = {IN_FLIGHT} AND expires > {NOW} \
                 RETURNING 1"
            ),
            // Replies are never updated, so that their `ctid` is as good as a key.
            sweep: format!(
                "WITH swept AS ( \
                   DELETE FROM {table} WHERE key = ANY (ARRAY( \
                     SELECT key FROM {table} WHERE sweep_after < {NOW} - {GRACE_MICROS} \
                       AND ($2 OR {sweeps_alone}) \
                     ORDER BY sweep_after LIMIT $1 FOR UPDATE SKIP LOCKED)) \
                   RETURNING key, token), \
                 gone AS ( \
                   DELETE FROM {replies} WHERE ctid = ANY (ARRAY( \
                     SELECT reply.ctid FROM swept, LATERAL ( \
                       SELECT ctid FROM {replies} r \
                       WHERE r.token = swept.token AND r.key = swept.key LIMIT 1) reply))) \
                 SELECT 1 FROM swept"
            ),
            // An ended operation stays watched until now, since a completion leaves all indexes alone.
            unwatch: format!(
                "UPDATE {table} SET watched = NULL WHERE key = ANY (ARRAY( \
                   SELECT key FROM {table} \
                   WHERE watched IS NOT NULL AND state NOT IN ({IN_FLIGHT}, {UNKNOWN}) \
                     AND {sweeps_alone} \
                   ORDER BY watched, key LIMIT $1 FOR UPDATE SKIP LOCKED)) \
                   AND state NOT IN ({IN_FLIGHT}, {UNKNOWN}) \
                 RETURNING 1"
            ),
            unknown_outcomes: format!(
                "{} AND watched IS NOT NULL AND (watched, key) > ($1, $2) \
                 ORDER BY watched, key LIMIT $3",
                unknown(table)
            ),
            unknown_outcome: format!("{} AND key = $1", unknown(table)),
            resolve: format!(
                "WITH done AS ( \
                   UPDATE {table} SET state = $3, reply = NULL, expires = {NOW} + $5, \
                     token = greatest(token + 1, {NOW}), \
                     sweep_after = greatest(sweep_after, {resolved}), watched = NULL \
                   WHERE key = $1 AND token = $2 AND {is_unknown} \
                   RETURNING key, token, state, $4::bytea AS reply), \
                 {} SELECT 1 FROM done",
                storing(replies)
            ),
            resolved: format!(
                "SELECT 1 FROM {table} r WHERE key = $1 AND token > $2 AND expires > {NOW} \
                   AND state = $3 AND {} IS NOT DISTINCT FROM $4",
                reply(replies)
            ),
            // No owner has an empty id: a repeat, whose first response was lost, is told from a release.
            set_free: format!(
                "UPDATE {table} SET state = {RELEASED}, expires = {NOW}, \
                   sweep_after = {released}, watched = NULL, claim_id = '' \
                 WHERE key = $1 AND token = $2 \
                   AND ({is_unknown} OR state = {RELEASED} AND claim_id = '') RETURNING 1"
            ),
        }
    }
}

/// Returns the condition of a statement that it is the only sweep. Evaluated once, and the lock ends
/// with the statement: it leaves nothing in the session.
pub(super) fn sweeps_alone(table: &Table) -> String {
    format!(
        "(SELECT pg_try_advisory_xact_lock(hashtextextended('tower-reprise sweep {table}', 0)))"
    )
}

/// Returns the condition of rows whose outcome is unknown.
fn is_unknown() -> String {
    format!(
        "(state = {UNKNOWN} OR state = {IN_FLIGHT} AND lease_until <= {NOW}) AND expires > {NOW}"
    )
}

/// Selects rows whose outcome is unknown.
fn unknown(table: &Table) -> String {
    format!(
        "SELECT key, token, note, watched, {NOW} - lease_until, expires - {NOW} FROM {table} \
         WHERE {}",
        is_unknown()
    )
}

/// Claims new keys, as nearly every key is, at the least cost. Returns the claims whose keys did not
/// exist.
fn claim_new(table: &Table) -> String {
    let values = [
        "key",
        "fingerprint",
        "id",
        "lease",
        "retention",
        "note",
        "watched",
    ];
    format!(
        "{}, \
           unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bytea[], \
             $7::boolean[]) \
             AS row (key, fingerprint, id, lease, retention, note, watched) \
         ON CONFLICT (key) DO NOTHING RETURNING claim_id, token",
        claiming(table, values.map(|value| format!("row.{value}")))
    )
}

/// The same for one key, at the cost of a plain insert: a batch of one takes the server 10 µs more,
/// a tenth of all that a claim takes.
fn claim_one(table: &Table) -> String {
    let values = [
        "$1",
        "$2",
        "$3",
        "$4::bigint",
        "$5::bigint",
        "$6",
        "$7::boolean",
    ];
    format!(
        "{} ON CONFLICT (key) DO NOTHING RETURNING token",
        claiming(table, values.map(str::to_owned))
    )
}

/// Returns the start of a statement that inserts claims.
fn claiming(table: &Table, values: [String; 7]) -> String {
    let [key, fingerprint, id, lease, retention, note, watched] = values;
    let sweep_after = hour_after(&format!("now + {lease} + {retention}"));
    format!(
        "INSERT INTO {table} \
           (key, fingerprint, claim_id, token, state, orphaned, lease_until, expires, note, \
            sweep_after, watched) \
         SELECT {key}, {fingerprint}, {id}, now, {IN_FLIGHT}, false, now + {lease}, \
           now + {lease} + {retention}, {note}, {sweep_after}, CASE WHEN {watched} THEN now END \
         FROM (SELECT {NOW} AS now) clock"
    )
}

/// Returns the expression of the reply of a record `r`. Records of an earlier version have theirs in
/// their own row.
fn reply(replies: &Table) -> String {
    format!(
        "coalesce(r.reply, \
         (SELECT s.reply FROM {replies} s WHERE s.token = r.token AND s.key = r.key))"
    )
}

/// Claims any key.
///
/// A record that the claim leaves as it is is only read (`seen`), so that a duplicate costs no write.
/// Everything else goes through the primary key: an insert that conflicts locks the current row and
/// checks it again. If that check fails, another claim came between and no row is returned: the
/// statement has to run again to see the result of the other one.
///
/// `excluded.token` is the time when the statement began. Both checks use it, so that they can't
/// contradict each other; a record that was suspended for this claim ($8) is taken over at once. Times
/// that are written are counted from the moment of writing.
fn claim(table: &Table, replies: &Table) -> String {
    let (sweep_after, reply) = (hour_after("now + $4 + $5"), reply(replies));
    format!(
        "WITH clock AS (SELECT {NOW} AS now), \
         seen AS ( \
           SELECT r.fingerprint, r.fingerprint = $2 AS same, r.state, \
             r.lease_until - clock.now AS remaining, r.note, \
             CASE WHEN r.fingerprint = $2 AND r.state = {REPLY} THEN {reply} END AS reply \
           FROM {table} r, clock \
           WHERE r.key = $1 AND r.state <> {RELEASED} AND r.expires > clock.now \
             AND (r.fingerprint <> $2 OR r.state <> {IN_FLIGHT} \
                  OR (r.claim_id <> $3 AND r.claim_id IS DISTINCT FROM $8 \
                      AND r.lease_until > clock.now))), \
         taken AS ( \
           INSERT INTO {table} AS r \
             (key, fingerprint, claim_id, token, state, orphaned, lease_until, expires, note, \
              sweep_after, watched) \
           SELECT $1, $2, $3, now, {IN_FLIGHT}, false, now + $4, now + $4 + $5, $6, {sweep_after}, \
             CASE WHEN $7 THEN now END \
           FROM clock WHERE NOT EXISTS (SELECT FROM seen) \
           ON CONFLICT (key) DO UPDATE SET \
             (fingerprint, claim_id, token, state, orphaned, lease_until, expires, note, sweep_after, \
              watched, reply) = ( \
               SELECT excluded.fingerprint, excluded.claim_id, \
                 CASE WHEN again THEN r.token ELSE greatest(r.token + 1, excluded.token) END, \
                 CASE WHEN lost THEN {UNKNOWN} ELSE {IN_FLIGHT} END, \
                 orphan OR (again AND r.orphaned), \
                 CASE WHEN lost THEN r.lease_until ELSE now + $4 END, \
                 CASE WHEN lost THEN now + $5 ELSE now + $4 + $5 END, \
                 CASE WHEN lost THEN r.note ELSE excluded.note END, \
                 greatest(r.sweep_after, {sweep_after}), \
                 excluded.watched, \
                 NULL::bytea \
               FROM (SELECT live AND r.claim_id = excluded.claim_id AS again, \
                            live AND r.claim_id <> excluded.claim_id AS orphan, \
                            live AND r.claim_id <> excluded.claim_id AND $7 \
                              AND r.claim_id IS DISTINCT FROM $8 AS lost, \
                            {NOW} AS now \
                     FROM (SELECT r.state <> {RELEASED} AND r.expires > excluded.token AS live) l) j) \
             WHERE r.state = {RELEASED} OR r.expires <= excluded.token \
               OR (r.fingerprint = excluded.fingerprint AND r.state = {IN_FLIGHT} \
                   AND (r.claim_id IN (excluded.claim_id, $8) OR r.lease_until <= excluded.token)) \
           RETURNING r.token, r.orphaned, r.state, r.note), \
         freed AS ( \
           DELETE FROM {replies} s USING {table} old, taken \
           WHERE old.key = $1 AND old.state = {REPLY} AND old.token < taken.token \
             AND s.token = old.token AND s.key = $1) \
         SELECT true, state, token, orphaned, NULL::bigint, NULL::bytea, note, NULL::bytea \
         FROM taken \
         UNION ALL \
         SELECT same, state, NULL, NULL, remaining, reply, note, \
           CASE WHEN NOT same THEN fingerprint END \
         FROM seen"
    )
}

/// Completes a record, as the start of a statement that reads `done`. A repeat rewrites the row instead
/// of reading it first: a concurrent completion with this token may not be committed yet, and a read
/// would miss it, while an update waits for it.
fn complete(table: &Table, replies: &Table) -> String {
    let (completing, kept) = (completing(table, "$3", "$5"), kept());
    let storing = storing(replies);
    format!(
        "WITH done AS ({completing} WHERE r.key = $1 AND r.token = $2 AND {kept} \
           RETURNING r.key, r.token, r.state, $4::bytea AS reply), \
         {storing}"
    )
}

/// Completes many records. Returns those that were completed: rows that are locked, by a transaction in
/// which a handler completes its own say, are left out, so that the others do not wait for them.
fn complete_batch(table: &Table, replies: &Table) -> String {
    let (completing, kept) = (completing(table, "row.state", "row.retention"), kept());
    let storing = storing(replies);
    format!(
        "WITH row AS MATERIALIZED ( \
           SELECT row.* \
           FROM unnest($1::bytea[], $2::bigint[], $3::smallint[], $4::bytea[], $5::bigint[]) \
             AS row (key, token, state, reply, retention) \
           JOIN {table} r ON r.key = row.key AND r.token = row.token \
           FOR UPDATE OF r SKIP LOCKED), \
         done AS ({completing} FROM row \
           WHERE r.key = row.key AND r.token = row.token AND {kept} \
           RETURNING r.key, r.token, r.state, row.reply), \
         {storing} SELECT key, token FROM done"
    )
}

/// Completes one record that is in flight, with a reply, at the least cost: a statement that may be a
/// repeat takes the server 5 µs more. The end of the lease stays, as nobody reads it any more.
fn complete_one(table: &Table, replies: &Table) -> String {
    let sweep_after = hour_after(&format!("{NOW} + $4"));
    format!(
        "WITH done AS ( \
           UPDATE {table} r SET state = {REPLY}, expires = {NOW} + $4, \
             sweep_after = greatest(r.sweep_after, {sweep_after}) \
           WHERE r.key = $1 AND r.token = $2 AND r.state = {IN_FLIGHT} AND r.expires > {NOW} \
           RETURNING r.key, r.token) \
         INSERT INTO {replies} (token, key, reply) SELECT token, key, $3 FROM done RETURNING 1"
    )
}

/// Returns the condition of a record that its owner may complete, perhaps once more.
fn kept() -> String {
    format!("r.state <> {RELEASED} AND r.expires > {NOW}")
}

fn completing(table: &Table, state: &str, retention: &str) -> String {
    let sweep_after = hour_after(&format!("{NOW} + {retention}"));
    format!(
        "UPDATE {table} r SET \
           state = CASE WHEN r.state = {IN_FLIGHT} THEN {state} ELSE r.state END, \
           expires = CASE WHEN r.state = {IN_FLIGHT} THEN {NOW} + {retention} ELSE r.expires END, \
           lease_until = CASE WHEN r.state = {IN_FLIGHT} THEN least(r.lease_until, {NOW}) \
             ELSE r.lease_until END, \
           watched = CASE WHEN r.state = {IN_FLIGHT} AND {state} = {UNKNOWN} \
             THEN coalesce(r.watched, {NOW}) ELSE r.watched END, \
           sweep_after = greatest(r.sweep_after, {sweep_after})"
    )
}

/// Stores the replies of `done` beside their records, as part of a statement. The reply of a repeat is
/// there already.
fn storing(replies: &Table) -> String {
    format!(
        "stored AS ( \
           INSERT INTO {replies} (token, key, reply) \
           SELECT token, key, reply FROM done WHERE state = {REPLY} AND reply IS NOT NULL \
           ON CONFLICT DO NOTHING)"
    )
}
