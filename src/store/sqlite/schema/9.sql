-- How many entries are in a state, by queue: status 0 has those that are queued or processed. Nothing has to
-- be read to count what waits but those past their time, and the first one.
CREATE TABLE journal_states (
    queue   TEXT NOT NULL,
    status  INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    PRIMARY KEY (queue, status)
) STRICT, WITHOUT ROWID;

INSERT INTO journal_states (queue, status, entries)
SELECT queue, status, entries FROM journal_finished;
INSERT INTO journal_states (queue, status, entries)
SELECT queue, 0, sum(status < 2) FROM journal GROUP BY queue;

DROP TRIGGER journal_finish;
DROP TRIGGER journal_redrive;
DROP TRIGGER journal_sweep;
DROP TABLE journal_finished;

CREATE TRIGGER journal_queued AFTER INSERT ON journal BEGIN
    INSERT INTO journal_states (queue, status, entries) VALUES (NEW.queue, 0, 1)
    ON CONFLICT DO UPDATE SET entries = entries + 1;
END;

CREATE TRIGGER journal_finish AFTER UPDATE OF status ON journal
WHEN NEW.status > 1 AND OLD.status < 2 BEGIN
    UPDATE journal_states SET entries = entries - 1 WHERE queue = NEW.queue AND status = 0;
    INSERT INTO journal_states (queue, status, entries) VALUES (NEW.queue, NEW.status, 1)
    ON CONFLICT DO UPDATE SET entries = entries + 1;
END;

CREATE TRIGGER journal_redrive AFTER UPDATE OF status ON journal
WHEN OLD.status > 1 AND NEW.status < 2 BEGIN
    UPDATE journal_states SET entries = entries - 1 WHERE queue = OLD.queue AND status = OLD.status;
    UPDATE journal_states SET entries = entries + 1 WHERE queue = OLD.queue AND status = 0;
END;

CREATE TRIGGER journal_sweep AFTER DELETE ON journal BEGIN
    UPDATE journal_states SET entries = entries - 1
    WHERE queue = OLD.queue AND status = iif(OLD.status > 1, OLD.status, 0);
END;

-- What waits, by when it is past its time, and in the order of its arrival.
CREATE INDEX journal_expiring ON journal (queue, expires) WHERE status = 0;
CREATE INDEX journal_waiting ON journal (queue) WHERE status = 0;
