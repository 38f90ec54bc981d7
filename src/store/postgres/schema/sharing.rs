//! The ends that payloads have in common.

use super::Table;

/// Returns the step that stores the end that the payloads of several entries have in common once. Its row
/// counts the entries that need it. The statement that queues them adds to the number; an entry that needs it
/// no more adds a row to another table, so that no settlement waits for another one, and a sweep takes
/// those rows off the number. An end that is queued again at the moment in which it goes waits for that
/// on its row, and is stored anew.
///
/// Such an entry has no payload, so that a process of the version before, which knows of no end, fails to
/// read it rather than taking a part for the whole. It leases it all the same, together with others, and
/// each lease uses up an attempt: no entry may share an end before all workers are updated.
pub(super) fn shared(records: &Table) -> String {
    let (journal, shared, released) = (records.journal(), records.shared(), records.released());
    let [removed, let_go] = ["unused", "let_go"].map(|name| journal.index(name));
    let emptied = shared.index("none");
    format!(
        "CREATE TABLE {shared} ( \
           id bytea PRIMARY KEY, \
           entries bigint NOT NULL, \
           payload bytea NOT NULL); \
         COMMENT ON TABLE {shared} IS 'The ends that payloads of several entries have in common, and \
         the number of entries that need each.'; \
         CREATE TABLE {released} (shared bytea NOT NULL) \
           WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000); \
         COMMENT ON TABLE {released} IS 'Entries that need a shared end no more and are still counted: \
         a row for each.'; \
         ALTER TABLE {journal} ALTER COLUMN payload DROP NOT NULL, \
           ADD COLUMN own bytea, ADD COLUMN shared bytea; \
         COMMENT ON COLUMN {journal}.payload IS 'NULL if its end is shared.'; \
         COMMENT ON COLUMN {journal}.own IS 'The payload up to the end that is shared.'; \
         COMMENT ON COLUMN {journal}.shared IS 'The id of that end.'; \
         CREATE FUNCTION {released}() RETURNS trigger LANGUAGE plpgsql AS $$ \
         BEGIN \
           INSERT INTO {released} (shared) VALUES (OLD.shared); \
           RETURN NULL; \
         END $$; \
         CREATE TRIGGER {removed} AFTER DELETE ON {journal} FOR EACH ROW \
           WHEN (OLD.shared IS NOT NULL) EXECUTE FUNCTION {released}(); \
         CREATE TRIGGER {let_go} AFTER UPDATE OF shared ON {journal} FOR EACH ROW \
           WHEN (OLD.shared IS NOT NULL AND NEW.shared IS NULL) EXECUTE FUNCTION {released}(); \
         CREATE FUNCTION {shared}() RETURNS trigger LANGUAGE plpgsql AS $$ \
         BEGIN \
           DELETE FROM {shared} WHERE id = NEW.id; \
           RETURN NULL; \
         END $$; \
         CREATE TRIGGER {emptied} AFTER UPDATE OF entries ON {shared} FOR EACH ROW \
           WHEN (NEW.entries < 1) EXECUTE FUNCTION {shared}();"
    )
}
