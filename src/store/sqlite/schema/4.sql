-- The function and the version of a call, for people who query the file. Those of a record are read
-- from its note, which begins with 0x1f, and ends each of them with it, where the dialect knows them.
ALTER TABLE idempotency ADD COLUMN function TEXT GENERATED ALWAYS AS (
    CASE substr(note, 1, 1) WHEN x'1f' THEN
        CAST(substr(note, 2, instr(substr(note, 2), x'1f') - 1) AS TEXT)
    END) VIRTUAL;
ALTER TABLE idempotency ADD COLUMN version TEXT GENERATED ALWAYS AS (
    CASE substr(note, 1, 1) WHEN x'1f' THEN
        nullif(CAST(substr(
            substr(note, instr(substr(note, 2), x'1f') + 2), 1,
            instr(substr(note, instr(substr(note, 2), x'1f') + 2), x'1f') - 1) AS TEXT), '')
    END) VIRTUAL;
-- That of an entry, whose function is its label. No list reads it, since it is behind the payload.
ALTER TABLE journal ADD COLUMN version TEXT;
