-- Checksums: of a record over all its columns, of an entry over those that stay as they are.
ALTER TABLE idempotency ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
UPDATE idempotency SET checksum =
    reprise_checksum(key, fingerprint, claim, lease_until, expires, state, note, reply);

ALTER TABLE journal ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
UPDATE journal SET checksum =
    reprise_checksum(id, queue, lane, owner, label, fingerprint, payload);
