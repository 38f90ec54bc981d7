//! Settlements as rows of a batch.

use std::collections::HashSet;

use bytes::Bytes;
use tokio::time::Instant;
use tokio_postgres::Row;

use super::super::{
    PostgresStore,
    batcher::{BatchRow, Batcher},
    parameter::Parameter,
};
use crate::store::StoreError;

/// A settlement as the statement takes it.
pub(in super::super) struct SettleRow {
    pub(super) id: [u8; 16],
    pub(super) lease_token: i64,
    pub(super) status: i16,
    pub(super) time: i64,
    pub(super) releases: bool,
    pub(super) result: Option<Bytes>,
    pub(super) note: Option<String>,
    pub(super) cause: Option<String>,
    pub(super) keeps: bool,
    pub(super) remainder: Option<Bytes>,
}

impl BatchRow for SettleRow {
    type Store = PostgresStore;
    type Answer = ();

    fn batcher(store: &PostgresStore) -> &Batcher<Self> {
        &store.inner.settle_batcher
    }

    fn bytes(&self) -> usize {
        [&self.result, &self.remainder]
            .into_iter()
            .flatten()
            .map(Bytes::len)
            .sum()
    }

    async fn send(
        store: &PostgresStore,
        deadline: Instant,
        rows: &[Self],
    ) -> Result<Vec<Option<()>>, StoreError> {
        fn column<'a, T>(rows: &'a [SettleRow], get: impl Fn(&'a SettleRow) -> T) -> Vec<T> {
            rows.iter().map(get).collect()
        }
        let notes = column(rows, |row| row.note.as_deref().map(str::as_bytes));
        let parameters: [&dyn Parameter; 10] = [
            &column(rows, |row| row.id.as_slice()),
            &column(rows, |row| row.lease_token),
            &column(rows, |row| row.status),
            &column(rows, |row| row.time),
            &column(rows, |row| row.releases),
            &column(rows, |row| row.result.as_deref()),
            &notes,
            &column(rows, |row| row.cause.as_deref()),
            &column(rows, |row| row.keeps),
            &column(rows, |row| row.remainder.as_deref()),
        ];
        let sql = &store.inner.journal.settle_batch;
        let settled = store.attempt(deadline, sql, &parameters).await?;
        let lease = |row: &Row| {
            let id = row.try_get::<_, &[u8]>(0).ok()?;
            Some((id.try_into().ok()?, row.try_get(1).ok()?))
        };
        let settled: HashSet<([u8; 16], i64)> = settled.iter().filter_map(lease).collect();
        let answer = |row: &Self| settled.contains(&(row.id, row.lease_token)).then_some(());
        Ok(rows.iter().map(answer).collect())
    }
}
