-- Times are microseconds since 1970. The row's number is the fencing token: AUTOINCREMENT never
-- gives a number twice, nor a smaller one, so a new owner is a new row.
CREATE TABLE idempotency (
    token       INTEGER PRIMARY KEY AUTOINCREMENT,
    key         BLOB NOT NULL UNIQUE,
    fingerprint BLOB NOT NULL,
    claim       BLOB NOT NULL,
    lease_until INTEGER NOT NULL,
    expires     INTEGER NOT NULL,
    -- -1 in flight after one that may have taken effect, 0 in flight, 1 done with a reply, 2 done and not retained, 3 done and unknown
    state       INTEGER NOT NULL,
    -- what the owner left for those who find the key taken
    note        BLOB,
    reply       BLOB
) STRICT;

CREATE INDEX idempotency_expires ON idempotency (expires);
