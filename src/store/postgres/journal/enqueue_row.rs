//! Entries to queue as rows of a batch.

use std::collections::{BTreeMap, HashMap};

use tokio::time::Instant;

use super::{
    super::{
        PostgresStore,
        batcher::{BatchRow, Batcher},
        parameter::Parameter,
    },
    micros,
    row::summary,
    transactions::columns,
};
use crate::store::{
    StoreError,
    journal::{Entry, EntryId, NewEntry},
};

/// An entry as the statement takes it. One that is there already, and one without room, is left to a
/// statement of its own.
pub(in super::super) struct EnqueueRow(pub(super) NewEntry);

impl EnqueueRow {
    fn key(&self) -> Option<&[u8]> {
        self.0.dedup.as_ref().map(|dedup| &dedup.key.as_bytes()[..])
    }

    fn fingerprint(&self) -> Option<&[u8]> {
        let dedup = self.0.dedup.as_ref();
        dedup.map(|dedup| &dedup.fingerprint.as_bytes()[..])
    }
}

impl BatchRow for EnqueueRow {
    type Store = PostgresStore;
    type Answer = Entry;

    fn batcher(store: &PostgresStore) -> &Batcher<Self> {
        &store.inner.enqueue_batcher
    }

    fn bytes(&self) -> usize {
        self.0.payload.len()
    }

    async fn send(
        store: &PostgresStore,
        deadline: Instant,
        rows: &[Self],
    ) -> Result<Vec<Option<Entry>>, StoreError> {
        // Two batches that have keys or queues in common wait for each other's in one order, not in a
        // circle.
        let mut ordered: Vec<_> = (1_i64..).zip(rows).collect();
        ordered.sort_by_key(|(_, row)| (&*row.0.queue, row.key()));
        let last = i64::try_from(rows.len()).unwrap_or(i64::MAX);
        let (mut ago, mut bounds) = (Vec::new(), Vec::new());
        let mut new = Vec::with_capacity(rows.len());
        for (place, row) in ordered {
            ago.push(last - place);
            bounds.push(columns(row.0.bounds));
            new.push(row);
        }
        fn column<'a, T>(rows: &[&'a EnqueueRow], get: impl Fn(&'a EnqueueRow) -> T) -> Vec<T> {
            rows.iter().map(|row| get(row)).collect()
        }
        let text = |get: fn(&NewEntry) -> &str| column(&new, |row| get(&row.0));
        let parts = column(&new, |row| row.0.parts());
        let own = parts.iter().map(|(own, shared)| shared.map(|_| *own));
        let shared = parts
            .iter()
            .map(|(_, shared)| shared.map(|shared| &shared.id()[..]));
        let ends = parts.iter().filter_map(|(_, shared)| *shared);
        let ends: BTreeMap<_, _> = ends.map(|end| (&end.id()[..], &**end.bytes())).collect();
        let parameters: [&dyn Parameter; 20] = [
            &column(&new, |row| row.0.id.as_bytes().as_slice()),
            &text(|new| &new.queue),
            &text(|new| &new.lane),
            &text(|new| &new.owner),
            &text(|new| &new.label),
            &column(&new, EnqueueRow::key),
            &column(&new, EnqueueRow::fingerprint),
            &column(&new, |row| row.0.priority as i16),
            &column(&new, |row| micros(row.0.delay)),
            &column(&new, |row| micros(row.0.ttl)),
            &parts
                .iter()
                .map(|(own, shared)| shared.is_none().then_some(*own))
                .collect::<Vec<_>>(),
            &column(&new, |row| row.0.version.as_deref()),
            &column(&new, |row| row.0.reason.as_deref()),
            &bounds.iter().map(|[in_all, _]| *in_all).collect::<Vec<_>>(),
            &bounds
                .iter()
                .map(|[_, per_owner]| *per_owner)
                .collect::<Vec<_>>(),
            &ago,
            &own.collect::<Vec<_>>(),
            &shared.collect::<Vec<_>>(),
            &ends.keys().copied().collect::<Vec<_>>(),
            &ends.values().copied().collect::<Vec<_>>(),
        ];
        let statements = &store.inner.journal;
        let (sql, parameters) = match ends.is_empty() {
            true => (&statements.enqueue_batch, &parameters[..16]),
            false => (&statements.enqueue_batch_sharing, &parameters[..]),
        };
        let queued = store.attempt(deadline, sql, parameters).await?;
        let queued = queued
            .iter()
            .map(|row| summary(row).map(|entry| (entry.id, entry)));
        let mut queued = queued.collect::<Result<HashMap<EntryId, Entry>, _>>()?;
        Ok(rows.iter().map(|row| queued.remove(&row.0.id)).collect())
    }
}
