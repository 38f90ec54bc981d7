-- The end that the payloads of several entries have in common, once for all of them. An entry that
-- shares one keeps the rest of its payload itself.
CREATE TABLE journal_shared (
    id       BLOB PRIMARY KEY NOT NULL,
    payload  BLOB NOT NULL,
    checksum INTEGER NOT NULL
) STRICT;

-- The id in journal_shared. The checksum of such an entry is over it as well.
ALTER TABLE journal ADD COLUMN shared BLOB;
CREATE INDEX journal_sharing ON journal (shared) WHERE shared IS NOT NULL;

-- The last entry that needs it takes it along.
CREATE TRIGGER journal_unshared AFTER DELETE ON journal WHEN OLD.shared IS NOT NULL BEGIN
    DELETE FROM journal_shared WHERE id = OLD.shared
        AND NOT EXISTS (SELECT 1 FROM journal WHERE shared = OLD.shared);
END;

CREATE TRIGGER journal_released AFTER UPDATE OF shared ON journal
WHEN OLD.shared IS NOT NULL AND NEW.shared IS NULL BEGIN
    DELETE FROM journal_shared WHERE id = OLD.shared
        AND NOT EXISTS (SELECT 1 FROM journal WHERE shared = OLD.shared);
END;
