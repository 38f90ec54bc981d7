-- Why an entry was queued, and whether it counts against the bounds of its queue. The table is made anew
-- so that they come before what is large: a page of a list then reads no payload.
DROP INDEX journal_dedup;
DROP INDEX journal_due;
DROP INDEX journal_past;
DROP INDEX journal_leased;
DROP INDEX journal_until;
DROP INDEX journal_queue;
DROP INDEX journal_owner;
DROP INDEX journal_over;
ALTER TABLE journal RENAME TO journal_6;

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
    -- why it was queued, if that was told
    reason      TEXT,
    -- 1 if it was enqueued with bounds
    bounded     INTEGER NOT NULL DEFAULT 0,
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
    result      BLOB,
    -- of the function that is the label
    version     TEXT,
    -- over the columns that stay as they are
    checksum    INTEGER NOT NULL DEFAULT 0
) STRICT;

INSERT INTO journal (sequence, id, queue, lane, owner, label, dedup, fingerprint, priority, status,
    turn, attempts, redrives, cause, repeats, queued, due, expires, changed, until, history, payload,
    result, version, checksum)
SELECT sequence, id, queue, lane, owner, label, dedup, fingerprint, priority, status,
    turn, attempts, redrives, cause, repeats, queued, due, expires, changed, until, history, payload,
    result, version, checksum
FROM journal_6;

DELETE FROM sqlite_sequence WHERE name = 'journal';
INSERT INTO sqlite_sequence (name, seq)
SELECT 'journal', seq FROM sqlite_sequence WHERE name = 'journal_6';
DROP TABLE journal_6;

CREATE UNIQUE INDEX journal_dedup ON journal (queue, dedup) WHERE dedup IS NOT NULL;
-- What is next in a lane, which lanes have something due, what is past its time in a lane, and which
-- leases ran out.
CREATE INDEX journal_due ON journal (queue, lane, priority, due) WHERE status = 0;
CREATE INDEX journal_ready ON journal (queue, due, lane) WHERE status = 0;
CREATE INDEX journal_past ON journal (queue, lane, expires, queued, status) WHERE status = 0;
CREATE INDEX journal_leased ON journal (queue, lane, until) WHERE status = 1;
-- What may be removed.
CREATE INDEX journal_until ON journal (until) WHERE status > 1;
-- For lists, by sequence: all, those of an owner, and those that are over. The latter and
-- journal_past have what it takes to be counted.
CREATE INDEX journal_queue ON journal (queue);
CREATE INDEX journal_owner ON journal (queue, owner);
CREATE INDEX journal_over ON journal (queue, status, sequence, until) WHERE status > 1;

-- Bounds of a queue: how many of its entries with bounds are queued or processed, in all (whole 1) and
-- of each owner (whole 0). The triggers keep the numbers in agreement whatever statement changes the
-- journal.
CREATE TABLE journal_open (
    queue   TEXT NOT NULL,
    whole   INTEGER NOT NULL,
    owner   TEXT NOT NULL,
    entries INTEGER NOT NULL,
    PRIMARY KEY (queue, whole, owner)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER journal_opened AFTER INSERT ON journal
WHEN NEW.bounded = 1 AND NEW.status < 2 BEGIN
    INSERT INTO journal_open (queue, whole, owner, entries)
    VALUES (NEW.queue, 1, '', 1), (NEW.queue, 0, NEW.owner, 1)
    ON CONFLICT DO UPDATE SET entries = entries + 1;
END;

CREATE TRIGGER journal_reopened AFTER UPDATE OF status ON journal
WHEN NEW.bounded = 1 AND OLD.status > 1 AND NEW.status < 2 BEGIN
    INSERT INTO journal_open (queue, whole, owner, entries)
    VALUES (NEW.queue, 1, '', 1), (NEW.queue, 0, NEW.owner, 1)
    ON CONFLICT DO UPDATE SET entries = entries + 1;
END;

CREATE TRIGGER journal_closed AFTER UPDATE OF status ON journal
WHEN NEW.bounded = 1 AND OLD.status < 2 AND NEW.status > 1 BEGIN
    UPDATE journal_open SET entries = entries - 1 WHERE queue = NEW.queue AND whole = 1 AND owner = '';
    UPDATE journal_open SET entries = entries - 1
    WHERE queue = NEW.queue AND whole = 0 AND owner = NEW.owner;
    DELETE FROM journal_open
    WHERE queue = NEW.queue AND whole = 0 AND owner = NEW.owner AND entries < 1;
END;

CREATE TRIGGER journal_removed AFTER DELETE ON journal
WHEN OLD.bounded = 1 AND OLD.status < 2 BEGIN
    UPDATE journal_open SET entries = entries - 1 WHERE queue = OLD.queue AND whole = 1 AND owner = '';
    UPDATE journal_open SET entries = entries - 1
    WHERE queue = OLD.queue AND whole = 0 AND owner = OLD.owner;
    DELETE FROM journal_open
    WHERE queue = OLD.queue AND whole = 0 AND owner = OLD.owner AND entries < 1;
END;

-- How many entries are over, by queue and status: counted here, since they outnumber all others.
CREATE TABLE journal_finished (
    queue   TEXT NOT NULL,
    status  INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    PRIMARY KEY (queue, status)
) STRICT, WITHOUT ROWID;

INSERT INTO journal_finished (queue, status, entries)
SELECT queue, status, count(*) FROM journal WHERE status > 1 GROUP BY queue, status;

CREATE TRIGGER journal_finish AFTER UPDATE OF status ON journal
WHEN NEW.status > 1 AND OLD.status < 2 BEGIN
    INSERT INTO journal_finished (queue, status, entries) VALUES (NEW.queue, NEW.status, 1)
    ON CONFLICT DO UPDATE SET entries = entries + 1;
END;

CREATE TRIGGER journal_redrive AFTER UPDATE OF status ON journal
WHEN OLD.status > 1 AND NEW.status < 2 BEGIN
    UPDATE journal_finished SET entries = entries - 1 WHERE queue = OLD.queue AND status = OLD.status;
END;

CREATE TRIGGER journal_sweep AFTER DELETE ON journal WHEN OLD.status > 1 BEGIN
    UPDATE journal_finished SET entries = entries - 1 WHERE queue = OLD.queue AND status = OLD.status;
END;
