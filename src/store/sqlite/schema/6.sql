-- What people may have to look at: records of unknown outcome, and those in flight that would have
-- one. The index has no others, so neither a claim nor a list pays for what is settled. Of records in
-- flight that an earlier version wrote nobody knows which they are: all are taken in. No part of the
-- checksum.
ALTER TABLE idempotency ADD COLUMN watched INTEGER;
UPDATE idempotency SET watched = 1 WHERE state <= 0 OR state = 3;
CREATE INDEX idempotency_watched ON idempotency (token) WHERE watched = 1;
