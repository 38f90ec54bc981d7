-- The journal, as it was before version 3, which makes the table anew.
CREATE TABLE journal (
    sequence    INTEGER PRIMARY KEY AUTOINCREMENT,
    id          BLOB NOT NULL UNIQUE,
    queue       TEXT NOT NULL,
    lane        TEXT NOT NULL,
    owner       TEXT NOT NULL,
    label       TEXT NOT NULL,
    dedup       BLOB,
    fingerprint BLOB,
    priority    INTEGER NOT NULL,
    status      INTEGER NOT NULL,
    turn        INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    queued      INTEGER NOT NULL,
    due         INTEGER NOT NULL,
    expires     INTEGER NOT NULL,
    changed     INTEGER NOT NULL,
    until       INTEGER NOT NULL,
    history     TEXT NOT NULL,
    payload     BLOB NOT NULL,
    result      BLOB
) STRICT;

CREATE UNIQUE INDEX journal_dedup ON journal (queue, dedup) WHERE dedup IS NOT NULL;
CREATE INDEX journal_due ON journal (queue, lane, priority, due) WHERE status = 0;
CREATE INDEX journal_past ON journal (queue, lane, expires, queued, status) WHERE status = 0;
CREATE INDEX journal_leased ON journal (queue, lane, until) WHERE status = 1;
CREATE INDEX journal_until ON journal (until) WHERE status > 1;
CREATE INDEX journal_queue ON journal (queue);
CREATE INDEX journal_owner ON journal (queue, owner);
CREATE INDEX journal_over ON journal (queue, status, sequence, until) WHERE status > 1;

CREATE TABLE journal_secret (secret BLOB NOT NULL) STRICT;
