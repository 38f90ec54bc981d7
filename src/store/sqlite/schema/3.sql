-- Counters and the cause of an entry in columns. The table is made anew so that they come before
-- what is large: a page of a list then reads no payload. Redrives of before are counted once, from
-- the history.
DROP INDEX journal_dedup;
DROP INDEX journal_due;
DROP INDEX journal_past;
DROP INDEX journal_leased;
DROP INDEX journal_until;
DROP INDEX journal_queue;
DROP INDEX journal_owner;
DROP INDEX journal_over;
ALTER TABLE journal RENAME TO journal_2;

CREATE TABLE journal (
    -- grows with each entry, and is not used twice
    sequence    INTEGER PRIMARY KEY AUTOINCREMENT,
    id          BLOB NOT NULL UNIQUE,
    queue       TEXT NOT NULL,
    lane        TEXT NOT NULL,
    owner       TEXT NOT NULL,
    label       TEXT NOT NULL,
    -- NULL also once the key was freed for another entry
    dedup       BLOB,
    fingerprint BLOB,
    -- 0 urgent, 1 high, 2 normal, 3 low
    priority    INTEGER NOT NULL,
    -- 0 queued, 1 processing, 2 completed, 3 failed, 4 expired, 5 cancelled
    status      INTEGER NOT NULL,
    -- the lease token: leases so far
    turn        INTEGER NOT NULL,
    -- since the entry was queued or redriven
    attempts    INTEGER NOT NULL,
    redrives    INTEGER NOT NULL DEFAULT 0,
    -- of the last failed attempt, if it is known, and how many in a row had it
    cause       TEXT,
    repeats     INTEGER NOT NULL DEFAULT 0,
    -- times are microseconds since 1970
    queued      INTEGER NOT NULL,
    due         INTEGER NOT NULL,
    expires     INTEGER NOT NULL,
    changed     INTEGER NOT NULL,
    -- processing: when the lease runs out; over: when the row may be removed
    until       INTEGER NOT NULL,
    -- lines, each behind its time in sixteen digits, its kind (0 settlement, 1 command) in one and
    -- its length in three
    history     TEXT NOT NULL,
    payload     BLOB NOT NULL,
    result      BLOB
) STRICT;

INSERT INTO journal (sequence, id, queue, lane, owner, label, dedup, fingerprint, priority, status,
    turn, attempts, redrives, queued, due, expires, changed, until, history, payload, result)
SELECT sequence, id, queue, lane, owner, label, dedup, fingerprint, priority, status,
    turn, attempts, (length(history) - length(replace(history, '0008redriven', ''))) / 12,
    queued, due, expires, changed, until, history, payload, result
FROM journal_2;

DELETE FROM sqlite_sequence WHERE name = 'journal';
INSERT INTO sqlite_sequence (name, seq)
SELECT 'journal', seq FROM sqlite_sequence WHERE name = 'journal_2';
DROP TABLE journal_2;

CREATE UNIQUE INDEX journal_dedup ON journal (queue, dedup) WHERE dedup IS NOT NULL;
-- What is next in a lane, what is past its time there, and which leases ran out.
CREATE INDEX journal_due ON journal (queue, lane, priority, due) WHERE status = 0;
CREATE INDEX journal_past ON journal (queue, lane, expires, queued, status) WHERE status = 0;
CREATE INDEX journal_leased ON journal (queue, lane, until) WHERE status = 1;
-- What may be removed.
CREATE INDEX journal_until ON journal (until) WHERE status > 1;
-- For lists, by sequence: all, those of an owner, and those that are over. The latter and
-- journal_past have what it takes to be counted.
CREATE INDEX journal_queue ON journal (queue);
CREATE INDEX journal_owner ON journal (queue, owner);
CREATE INDEX journal_over ON journal (queue, status, sequence, until) WHERE status > 1;
