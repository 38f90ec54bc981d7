//! The removal of all entries of an owner.

use super::{super::worker::Batch, write::remove};
use crate::store::journal::Erased;

/// All but those whose lease did not run out.
const ERASABLE: &str = "SELECT sequence FROM journal
     WHERE queue = ?1 AND owner = ?2 AND owner <> '' AND (+status <> 1 OR until <= ?3)
     ORDER BY sequence LIMIT ?4";

const LEFT: &str = "SELECT count(*) FROM (
       SELECT 1 FROM journal WHERE queue = ?1 AND owner = ?2 AND owner <> '' LIMIT ?3)";

pub(super) fn erase(
    batch: &Batch<'_>,
    queue: &str,
    owner: &str,
    limit: u32,
) -> rusqlite::Result<Erased> {
    let mut erasable = batch.connection.prepare_cached(ERASABLE)?;
    let erasable = erasable.query_map((queue, owner, batch.now, limit), |row| row.get(0))?;
    let mut removed = 0;
    for sequence in erasable.collect::<rusqlite::Result<Vec<i64>>>()? {
        remove(batch, sequence)?;
        removed += 1;
    }
    let mut left = batch.connection.prepare_cached(LEFT)?;
    let left = left.query_row((queue, owner, limit), |row| row.get(0))?;
    Ok(Erased { removed, left })
}
