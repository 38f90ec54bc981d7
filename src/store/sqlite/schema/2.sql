-- What must be done, though not now. Times are microseconds since 1970. What is large is at the end
-- of a row, where it is not read along.
CREATE TABLE journal (
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
    turn        INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    queued      INTEGER NOT NULL,
    due         INTEGER NOT NULL,
    expires     INTEGER NOT NULL,
    changed     INTEGER NOT NULL,
    -- processing: when the lease runs out; over: when it may go
    until       INTEGER NOT NULL,
    -- notes, each behind its time in sixteen digits and its length in four
    history     TEXT NOT NULL,
    payload     BLOB NOT NULL,
    result      BLOB
) STRICT;

CREATE UNIQUE INDEX journal_dedup ON journal (queue, dedup) WHERE dedup IS NOT NULL;
-- What is next in a lane, what is past its time there, and whose lease ran out.
CREATE INDEX journal_due ON journal (queue, lane, priority, due) WHERE status = 0;
CREATE INDEX journal_past ON journal (queue, lane, expires, queued, status) WHERE status = 0;
CREATE INDEX journal_leased ON journal (queue, lane, until) WHERE status = 1;
-- What may go.
CREATE INDEX journal_until ON journal (until) WHERE status > 1;
-- For lists, in their sequence: all, what is whose, and what is over. The latter and what is past
-- its time have what it takes to be counted.
CREATE INDEX journal_queue ON journal (queue);
CREATE INDEX journal_owner ON journal (queue, owner);
CREATE INDEX journal_over ON journal (queue, status, sequence, until) WHERE status > 1;

CREATE TABLE journal_secret (secret BLOB NOT NULL) STRICT;
