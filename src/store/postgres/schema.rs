//! The tables: created and migrated by the first process that connects.

mod sharing;

use deadpool_postgres::Transaction;
use tokio_postgres::{error::SqlState, types::Type};

use super::{builder::Table, error};
use crate::store::{StoreError, StoreErrorKind};

/// Returns one script for each version: what it changes, and the note that it was applied. A released
/// one never changes, and leaves the statements of the version before it working, since processes of
/// both serve during an update. The version of a table is the number of scripts that were applied to
/// it.
///
/// The exception is an entry that shares the end of its payload: see [`sharing::shared`].
pub(super) fn migrations(table: &Table) -> Vec<String> {
    let versions = table.versions();
    let create = format!(
        "{} CREATE TABLE {versions} (version integer PRIMARY KEY, \
         applied timestamptz NOT NULL DEFAULT now()); {}",
        table.create_schema(),
        records(table)
    );
    let steps = [
        create,
        journal(table),
        counters(table),
        calls(table),
        hot_updates(table),
        watched(table),
        replies(table),
        bounds(table),
        finished(table),
        calls_with_nul(table),
        counted_together(table),
        entries(table),
        sharing::shared(table),
        vacuumed(table),
    ];
    let noted =
        |(step, version)| format!("{step} INSERT INTO {versions} (version) VALUES ({version});");
    steps.into_iter().zip(1..).map(noted).collect()
}

fn records(table: &Table) -> String {
    let expires = table.index("expires");
    format!(
        "CREATE TABLE {table} ( \
           key bytea PRIMARY KEY, \
           fingerprint bytea NOT NULL, \
           claim_id bytea NOT NULL, \
           token bigint NOT NULL, \
           state smallint NOT NULL, \
           orphaned boolean NOT NULL, \
           lease_until bigint NOT NULL, \
           expires bigint NOT NULL, \
           note bytea, \
           reply bytea); \
         CREATE INDEX {expires} ON {table} (expires); \
         COMMENT ON TABLE {table} IS 'Idempotency records of tower-reprise. Times are microseconds \
         since 1970. state: 0 in flight, 1 reply, 2 reply not retained, 3 outcome unknown, 4 released';"
    )
}

/// Returns the step that creates the journal.
///
/// Entries that are queued or processed are in two indexes, by when they are due and by when they
/// are past their time; those that are over by when they may be removed; lists have an index of all,
/// of those with an owner, and of those that are over. A settlement writes to each index that has
/// the row, so entries without an owner are left out of that one.
///
/// A lease changes no indexed column, and half of a page is left free for it: the server then writes
/// the new row to the same page (HOT), at a fraction of the cost of an update that seven indexes have
/// to follow. That is why `status` does not tell queued from processing.
///
/// The payload is behind all columns that a lease or another attempt changes: of a row that stays on its
/// page, the server logs the bytes between the first and the last that differ.
fn journal(records: &Table) -> String {
    let (table, secret) = (records.journal(), records.secret());
    let index = |name| table.index(name);
    let [key, due, past] = ["key", "due", "past"].map(index);
    let [until, owner, over] = ["until", "owner", "over"].map(index);
    let bytes: [u8; 32] = rand::random();
    let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "CREATE TABLE {table} ( \
           sequence bigint GENERATED ALWAYS AS IDENTITY, \
           id bytea NOT NULL UNIQUE, \
           queue text COLLATE \"C\" NOT NULL, \
           lane text COLLATE \"C\" NOT NULL, \
           owner text COLLATE \"C\" NOT NULL, \
           label text COLLATE \"C\" NOT NULL, \
           dedup bytea, \
           fingerprint bytea, \
           priority smallint NOT NULL, \
           status smallint NOT NULL, \
           turn bigint NOT NULL, \
           attempts integer NOT NULL, \
           queued bigint NOT NULL, \
           due bigint NOT NULL, \
           expires bigint NOT NULL, \
           changed bigint NOT NULL, \
           leased bigint NOT NULL, \
           until bigint NOT NULL, \
           history bytea NOT NULL, \
           result bytea, \
           payload bytea NOT NULL, \
           PRIMARY KEY (queue, sequence)) WITH (fillfactor = 50); \
         CREATE UNIQUE INDEX {key} ON {table} (queue, dedup) WHERE dedup IS NOT NULL; \
         CREATE INDEX {due} ON {table} (queue, lane, priority, due, sequence) WHERE status = 0; \
         CREATE INDEX {past} ON {table} (queue, lane, expires, sequence) WHERE status = 0; \
         CREATE INDEX {until} ON {table} (until) WHERE status > 1; \
         CREATE INDEX {owner} ON {table} (queue, owner, sequence) WHERE owner <> ''; \
         CREATE INDEX {over} ON {table} (queue, status, sequence) WHERE status > 1; \
         COMMENT ON TABLE {table} IS 'The journal of tower-reprise. Times are microseconds since \
         1970. priority: 0 urgent, 1 high, 2 normal, 3 low. status: 0 queued, or processing if \
         leased is not 0, 2 completed, 3 failed, 4 expired, 5 cancelled. leased: when the lease runs \
         out. until: when what is over may go'; \
         CREATE TABLE {secret} (secret bytea NOT NULL); \
         INSERT INTO {secret} VALUES ('\\x{bytes}');"
    )
}

/// Returns the step that adds counters and the cause of an entry. The payload moves behind them, since
/// leases and attempts change them. Earlier redrives are counted once, from the history.
fn counters(records: &Table) -> String {
    let table = records.journal();
    format!(
        "ALTER TABLE {table} RENAME COLUMN payload TO payload_2; \
         ALTER TABLE {table} \
           ADD COLUMN redrives integer NOT NULL DEFAULT 0, \
           ADD COLUMN repeats integer NOT NULL DEFAULT 0, \
           ADD COLUMN cause text COLLATE \"C\", \
           ADD COLUMN payload bytea; \
         UPDATE {table} SET payload = payload_2, redrives = ( \
           length(encode(history, 'escape')) \
           - length(replace(encode(history, 'escape'), '0008redriven', ''))) / 12; \
         ALTER TABLE {table} ALTER COLUMN payload SET NOT NULL, DROP COLUMN payload_2; \
         COMMENT ON COLUMN {table}.turn IS 'The lease token: leases so far.'; \
         COMMENT ON COLUMN {table}.attempts IS 'Since the entry was queued or redriven.'; \
         COMMENT ON COLUMN {table}.cause IS 'Of the last failed attempt, if it is known.'; \
         COMMENT ON COLUMN {table}.repeats IS 'Failed attempts in a row with that cause.';"
    )
}

/// Returns the step that shows people the function and the version of a call. Those of a record are in
/// its note, which begins with 0x1f, and ends each of them with it, where the dialect knows them; a
/// view reads them, so that claims pay nothing. A step that changes the type of a column has to drop
/// the view before.
fn calls(records: &Table) -> String {
    let journal = records.journal();
    format!(
        "ALTER TABLE {journal} ADD COLUMN version text COLLATE \"C\"; \
         COMMENT ON COLUMN {journal}.version IS 'Of the function that is the label.'; \
         CREATE {}",
        view_of_calls(records, "get_byte(note, 0) = 31")
    )
}

/// Returns the step after which calls are shown whatever their notes are: PostgreSQL has no text with a
/// NUL, and a note of an earlier version may have one.
fn calls_with_nul(records: &Table) -> String {
    let readable = "get_byte(note, 0) = 31 AND position('\\x00'::bytea IN note) = 0";
    format!("CREATE OR REPLACE {}", view_of_calls(records, readable))
}

fn view_of_calls(records: &Table, readable: &str) -> String {
    let calls = records.calls();
    let part = |n| {
        format!(
            "CASE WHEN {readable} \
             THEN nullif(split_part(convert_from(note, 'UTF8'), chr(31), {n}), '') END"
        )
    };
    let (function, version) = (part(2), part(3));
    format!(
        "VIEW {calls} AS SELECT encode(key, 'hex') AS key_hash, \
           {function} AS function, {version} AS version, \
           encode(fingerprint, 'hex') AS arguments_hash, \
           CASE state WHEN 0 THEN 'processing' WHEN 3 THEN 'unknown' ELSE 'completed' END AS status, \
           to_timestamp(expires / 1000000.0) AS expires_at \
         FROM {records} WHERE state <> 4;"
    )
}

/// Returns the step after which renewals and completions stay on their page (HOT): it leaves room
/// there for the next version of a row, and indexes no column that they change. A full disk takes
/// them, too. Dead versions are removed before they are a fifth of a large table.
fn hot_updates(records: &Table) -> String {
    let (expires, sweep) = (records.with_suffix("expires"), records.index("sweep"));
    let (hour, journal) = (3_600_000_000_i64, records.journal());
    format!(
        "ALTER TABLE {records} ADD COLUMN sweep_after bigint; \
         UPDATE {records} SET sweep_after = (expires / {hour} + 1) * {hour}; \
         ALTER TABLE {records} ALTER COLUMN sweep_after SET NOT NULL; \
         DROP INDEX {expires}; \
         CREATE INDEX {sweep} ON {records} (sweep_after); \
         COMMENT ON COLUMN {records}.sweep_after IS 'The hour after which the row may be removed.'; \
         ALTER TABLE {records} SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02); \
         ALTER TABLE {journal} SET (autovacuum_vacuum_scale_factor = 0.02);"
    )
}

/// Returns the step that marks what people may have to look at: records of unknown outcome, and those
/// in flight that would have one. Of records in flight that an earlier version wrote nobody knows which
/// they are: all are marked. The mark stays when such a record is completed, since the server would
/// have to write to all indexes otherwise; a sweep takes it away.
fn watched(records: &Table) -> String {
    let watched = records.index("watched");
    format!(
        "ALTER TABLE {records} ADD COLUMN watched bigint; \
         UPDATE {records} SET watched = token WHERE state IN (0, 3); \
         CREATE INDEX {watched} ON {records} (watched, key) WHERE watched IS NOT NULL; \
         COMMENT ON COLUMN {records}.watched IS 'When it was claimed, if its outcome is unknown or \
         could become so.';"
    )
}

/// Returns the step that gives replies a table of their own. Rows of records are then of one small size,
/// and a page keeps room for the next version of all its rows (HOT): with replies of 1 KiB between
/// them, 36 of 100 completions stayed on their page. Replies are only inserted and deleted, in the order
/// of their tokens, which are times: the index of a large table is written at its end.
fn replies(records: &Table) -> String {
    let replies = records.replies();
    format!(
        "CREATE TABLE {replies} ( \
           token bigint NOT NULL, \
           key bytea NOT NULL, \
           reply bytea NOT NULL, \
           PRIMARY KEY (token, key)) WITH (autovacuum_vacuum_scale_factor = 0.02, \
             toast.autovacuum_vacuum_scale_factor = 0.02); \
         COMMENT ON TABLE {replies} IS 'The replies of records in state 1, by their key and token.'; \
         COMMENT ON COLUMN {records}.reply IS 'Of a record that was completed before version 7.'; \
         ALTER TABLE {records} SET (fillfactor = 45);"
    )
}

/// The error of an insert past the bounds of a queue, in a class of our own.
pub(super) const QUEUE_FULL: &str = "RP001";

/// Returns the step that tells why an entry was queued, finds the lanes with something due, and bounds
/// queues. Triggers count the entries with bounds that are queued or processed,
/// and refuse one too many: they see what was committed until the moment in which they run, and a statement
/// does not. They touch no other entry, and no lease.
///
/// A change locks the row of the whole queue first and keeps it until it is committed, so that counts are
/// exact and nobody waits in a circle.
fn bounds(records: &Table) -> String {
    let (journal, open) = (records.journal(), records.open());
    let trigger = |name| journal.index(name);
    let [opened, moved, removed, ready] = ["opened", "moved", "gone", "ready"].map(trigger);
    let count = |whole: bool, owner: &str, into: &str| {
        format!(
            "INSERT INTO {open} AS o (queue, whole, owner, entries) \
             VALUES (entry.queue, {whole}, {owner}, change) \
             ON CONFLICT (queue, whole, owner) DO UPDATE SET entries = o.entries + change \
             RETURNING entries INTO {into};"
        )
    };
    let (of_queue, of_owner) = (
        count(true, "''", "of_queue"),
        count(false, "entry.owner", "of_owner"),
    );
    format!(
        "ALTER TABLE {journal} ADD COLUMN reason text COLLATE \"C\", \
           ADD COLUMN in_all integer, ADD COLUMN per_owner integer; \
         COMMENT ON COLUMN {journal}.reason IS 'Why the entry was queued.'; \
         COMMENT ON COLUMN {journal}.in_all IS 'The most entries with bounds of the queue.'; \
         COMMENT ON COLUMN {journal}.per_owner IS 'The same, of the owner.'; \
         CREATE INDEX {ready} ON {journal} (queue, due, lane) WHERE status = 0; \
         CREATE TABLE {open} ( \
           queue text COLLATE \"C\" NOT NULL, \
           whole boolean NOT NULL, \
           owner text COLLATE \"C\" NOT NULL, \
           entries bigint NOT NULL, \
           PRIMARY KEY (queue, whole, owner)) WITH (fillfactor = 50); \
         COMMENT ON TABLE {open} IS 'How many entries with bounds are queued or processed, by queue and \
         by owner.'; \
         CREATE FUNCTION {open}() RETURNS trigger LANGUAGE plpgsql AS $$ \
         DECLARE \
           entry {journal}%ROWTYPE; change integer := 1; of_queue bigint; of_owner bigint; \
         BEGIN \
           IF TG_OP = 'DELETE' THEN entry := OLD; ELSE entry := NEW; END IF; \
           IF TG_OP = 'DELETE' OR entry.status > 1 THEN change := -1; END IF; \
           {of_queue} {of_owner} \
           IF TG_OP = 'INSERT' AND (of_queue > entry.in_all OR of_owner > entry.per_owner) THEN \
             RAISE EXCEPTION 'queue % is full', entry.queue USING ERRCODE = '{QUEUE_FULL}'; \
           END IF; \
           IF of_owner < 1 THEN \
             DELETE FROM {open} WHERE queue = entry.queue AND NOT whole AND owner = entry.owner; \
           END IF; \
           RETURN NULL; \
         END $$; \
         CREATE TRIGGER {opened} AFTER INSERT ON {journal} FOR EACH ROW \
           WHEN (NEW.in_all IS NOT NULL) EXECUTE FUNCTION {open}(); \
         CREATE TRIGGER {moved} AFTER UPDATE OF status ON {journal} FOR EACH ROW \
           WHEN (NEW.in_all IS NOT NULL AND (OLD.status > 1) <> (NEW.status > 1)) \
           EXECUTE FUNCTION {open}(); \
         CREATE TRIGGER {removed} AFTER DELETE ON {journal} FOR EACH ROW \
           WHEN (OLD.in_all IS NOT NULL AND OLD.status < 2) EXECUTE FUNCTION {open}();"
    )
}

/// Returns the step that counts the entries that are over: they outnumber all others. Each change adds a
/// row, so that no settlement waits for another one; a sweep replaces many rows by their sum. The triggers
/// come first: from then on no other process changes the journal until this is committed.
fn finished(records: &Table) -> String {
    let (journal, finished) = (records.journal(), records.finished());
    let [ended, again, swept] = ["ended", "again", "swept"].map(|name| journal.index(name));
    let queue = finished.index("queue");
    format!(
        "CREATE TABLE {finished} ( \
           queue text COLLATE \"C\" NOT NULL, \
           status smallint NOT NULL, \
           entries bigint NOT NULL) \
           WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000); \
         CREATE INDEX {queue} ON {finished} (queue); \
         COMMENT ON TABLE {finished} IS 'How many entries are over, by queue and status: the sum of all \
         rows.'; \
         CREATE FUNCTION {finished}() RETURNS trigger LANGUAGE plpgsql AS $$ \
         BEGIN \
           IF TG_OP <> 'INSERT' AND OLD.status > 1 THEN \
             INSERT INTO {finished} (queue, status, entries) VALUES (OLD.queue, OLD.status, -1); \
           END IF; \
           IF TG_OP <> 'DELETE' AND NEW.status > 1 THEN \
             INSERT INTO {finished} (queue, status, entries) VALUES (NEW.queue, NEW.status, 1); \
           END IF; \
           RETURN NULL; \
         END $$; \
         CREATE TRIGGER {ended} AFTER INSERT ON {journal} FOR EACH ROW \
           WHEN (NEW.status > 1) EXECUTE FUNCTION {finished}(); \
         CREATE TRIGGER {again} AFTER UPDATE OF status ON {journal} FOR EACH ROW \
           WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION {finished}(); \
         CREATE TRIGGER {swept} AFTER DELETE ON {journal} FOR EACH ROW \
           WHEN (OLD.status > 1) EXECUTE FUNCTION {finished}(); \
         INSERT INTO {finished} (queue, status, entries) \
           SELECT queue, status, count(*) FROM {journal} WHERE status > 1 GROUP BY 1, 2;"
    )
}

/// Returns the step after which a statement adds one row for all the entries that it ends or removes. A
/// trigger that saw all rows of an update would see those of leases, too, so the statement that settles a
/// batch counts what it completes itself. It leaves `leased` as it was, by which the trigger knows those
/// entries; all others are counted by it.
fn counted_together(records: &Table) -> String {
    let (journal, finished) = (records.journal(), records.finished());
    let [again, swept] = ["again", "swept"].map(|name| journal.index(name));
    let removed = records.with_suffix("removed");
    format!(
        "CREATE FUNCTION {removed}() RETURNS trigger LANGUAGE plpgsql AS $$ \
         BEGIN \
           INSERT INTO {finished} (queue, status, entries) \
             SELECT queue, status, -count(*) FROM removed WHERE status > 1 GROUP BY 1, 2; \
           RETURN NULL; \
         END $$; \
         DROP TRIGGER {swept} ON {journal}; \
         CREATE TRIGGER {swept} AFTER DELETE ON {journal} REFERENCING OLD TABLE AS removed \
           FOR EACH STATEMENT EXECUTE FUNCTION {removed}(); \
         DROP TRIGGER {again} ON {journal}; \
         CREATE TRIGGER {again} AFTER UPDATE OF status ON {journal} FOR EACH ROW \
           WHEN (OLD.status <> NEW.status AND NOT (NEW.status = 2 AND NEW.leased > 0)) \
           EXECUTE FUNCTION {finished}(); \
         COMMENT ON COLUMN {journal}.leased IS 'When the lease runs out; 0 if there is none. Not 0 in an \
         entry that is completed: the statement that completed it counted it itself.';"
    )
}

/// Returns the step that counts all entries when they come and go, in a row for each statement and queue.
/// The number that is not over is then the difference, and no settlement counts it. A lease changes no
/// index, so no index finds leased entries: the statements that lease and settle count them.
///
/// Two indexes have what waits: by when it is past its time, and in the order of its arrival.
fn entries(records: &Table) -> String {
    let (journal, entries) = (records.journal(), records.entries());
    let (finished, removed) = (records.finished(), records.with_suffix("removed"));
    let index = |name| journal.index(name);
    let [waiting, expiring, added] = ["waiting", "expiring", "added"].map(index);
    let queue = entries.index("queue");
    format!(
        "CREATE TABLE {entries} ( \
           queue text COLLATE \"C\" NOT NULL, \
           leased boolean NOT NULL, \
           entries bigint NOT NULL) \
           WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000); \
         CREATE INDEX {queue} ON {entries} (queue); \
         COMMENT ON TABLE {entries} IS 'How many entries there are, by queue, and how many of them are \
         leased: the sums of all rows.'; \
         CREATE FUNCTION {entries}() RETURNS trigger LANGUAGE plpgsql AS $$ \
         BEGIN \
           INSERT INTO {entries} (queue, leased, entries) \
             SELECT queue, false, count(*) FROM added GROUP BY 1; \
           RETURN NULL; \
         END $$; \
         CREATE OR REPLACE FUNCTION {removed}() RETURNS trigger LANGUAGE plpgsql AS $$ \
         BEGIN \
           INSERT INTO {entries} (queue, leased, entries) \
             SELECT queue, false, -count(*) FROM removed GROUP BY 1; \
           INSERT INTO {finished} (queue, status, entries) \
             SELECT queue, status, -count(*) FROM removed WHERE status > 1 GROUP BY 1, 2; \
           RETURN NULL; \
         END $$; \
         CREATE TRIGGER {added} AFTER INSERT ON {journal} REFERENCING NEW TABLE AS added \
           FOR EACH STATEMENT EXECUTE FUNCTION {entries}(); \
         INSERT INTO {entries} (queue, leased, entries) \
           SELECT queue, false, count(*) FROM {journal} GROUP BY 1 \
           UNION ALL \
           SELECT queue, true, count(*) FROM {journal} WHERE status = 0 AND leased > 0 GROUP BY 1; \
         CREATE INDEX {expiring} ON {journal} (queue, expires) WHERE status = 0; \
         CREATE INDEX {waiting} ON {journal} (queue, sequence) WHERE status = 0;"
    )
}

/// Returns the step after which autovacuum works at five times the pace of a server's defaults: at that one,
/// dead rows became more for as long as ten thousand records a second came and went (`tests/run churn`).
fn vacuumed(records: &Table) -> String {
    let tables = [records.clone(), records.replies(), records.journal()];
    let faster = tables.map(|table| {
        format!(
            "ALTER TABLE {table} SET (autovacuum_vacuum_cost_limit = 1000, \
               toast.autovacuum_vacuum_cost_limit = 1000);"
        )
    });
    faster.join(" ")
}

/// Returns the scripts that are missing, and locks out other processes that open the same table. A
/// user without the right to create can open a table that is up to date.
pub(super) async fn missing(
    transaction: &Transaction<'_>,
    table: &Table,
) -> Result<Vec<String>, StoreError> {
    let failed = error::of_statement;
    let lock = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))";
    let name = format!("tower-reprise {table}");
    let locked = transaction.query_typed(lock, &[(&name, Type::TEXT)]).await;
    locked.map_err(failed)?;
    let versions = table.versions();
    let exists = "SELECT to_regclass($1) IS NOT NULL";
    let name = versions.to_string();
    let exists = transaction
        .query_typed_one(exists, &[(&name, Type::TEXT)])
        .await;
    let version: i32 = if exists.map_err(failed)?.get(0) {
        let select = format!("SELECT coalesce(max(version), 0) FROM {versions}");
        let row = transaction.query_typed_one(&select, &[]).await;
        row.map_err(failed)?.get(0)
    } else {
        0
    };

    let mut migrations = migrations(table);
    let known = migrations.len();
    let applied = usize::try_from(version).unwrap_or(usize::MAX);
    // One version more leaves the statements of this one working.
    if applied > known + 1 {
        let message = format!(
            "table {table} is of version {version}, and this version of the crate knows {known}: \
             update the crate, or use another table"
        );
        return Err(StoreError::new(StoreErrorKind::NewerSchema, message));
    }
    Ok(migrations.split_off(applied.min(known)))
}

/// Applies scripts. Changing a large table takes longer than a verb may.
pub(super) async fn apply(
    transaction: &Transaction<'_>,
    scripts: &[String],
) -> Result<(), StoreError> {
    let failed = error::of_statement;
    let unlimited = "SET LOCAL statement_timeout = 0";
    transaction.batch_execute(unlimited).await.map_err(failed)?;
    for script in scripts {
        transaction.batch_execute(script).await.map_err(failed)?;
    }
    Ok(())
}

/// Checks that the tables are as these statements need them. Before the first release a step could
/// still change, and a table of that time would fail at each verb.
pub(super) async fn check_layout(
    transaction: &Transaction<'_>,
    table: &Table,
    statements: [&str; 3],
) -> Result<(), StoreError> {
    // Each in one message, so that no session keeps a statement of a check that was cancelled.
    let check = |sql| format!("PREPARE reprise_layout AS {sql}; DEALLOCATE reprise_layout");
    for statement in statements {
        match transaction.batch_execute(&check(statement)).await {
            Ok(()) => {}
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_COLUMN) => {
                let message = format!(
                    "table {table} was made before its version was released, and lacks a column: \
                     use another table"
                );
                return Err(StoreError::new(StoreErrorKind::Other, message).because(error));
            }
            Err(error) => return Err(error::of_statement(error)),
        }
    }
    Ok(())
}
