//! Settles many leases with one statement.
//!
//! Most of the cost of a settlement is the commit, so settlements that come in while one is under way
//! join the next batch. Many of them start a second batch on another connection: the server commits
//! both at once, or at least works on one while it writes the other to disk. A settlement that its
//! batch did not make is made by itself: its lease was lost, it is a repeat, or the server failed.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use tokio::{sync::oneshot, time::Instant};
use tokio_postgres::{Row, types::ToSql};

use super::super::PostgresStore;
use crate::store::journal::coalesce::coalesce;

/// Size of a full batch, in settlements and in bytes of their results.
const FULL: usize = 512;
const FULL_BYTES: usize = 4 << 20;
/// The most batches under way, and how many settlements have to wait for the second one.
const FLUSHERS: usize = 2;
const MANY: usize = 64;

/// Settlements that wait for a batch.
#[derive(Default)]
pub(in super::super) struct SettleBatcher {
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    settlements: Vec<(SettleRow, oneshot::Sender<bool>)>,
    /// Tasks that send batches.
    flushers: usize,
}

impl Pending {
    /// Returns whether these settlements are worth a task beside so many others.
    fn needs_flusher(&self, others: usize) -> bool {
        match others {
            0 => !self.settlements.is_empty(),
            1..FLUSHERS => self.settlements.len() >= MANY,
            _ => false,
        }
    }
}

/// A settlement as the statement takes it.
pub(super) struct SettleRow {
    pub(super) id: [u8; 16],
    pub(super) lease_token: i64,
    pub(super) status: i16,
    pub(super) time: i64,
    pub(super) releases: bool,
    pub(super) result: Option<Bytes>,
    pub(super) note: Option<String>,
    pub(super) cause: Option<String>,
    pub(super) keeps: bool,
}

impl SettleBatcher {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) -> usize {
        self.lock().settlements.len()
    }

    /// Adds a settlement, and returns whether the caller has to start a task that sends it.
    fn add(&self, row: SettleRow, answer: oneshot::Sender<bool>) -> bool {
        let mut pending = self.lock();
        pending.settlements.push((row, answer));
        let starts = pending.needs_flusher(pending.flushers);
        pending.flushers += usize::from(starts);
        starts
    }

    /// Returns the next batch; an empty one ends the task that asks, which is not needed any more.
    fn next(&self) -> Vec<(SettleRow, oneshot::Sender<bool>)> {
        let mut pending = self.lock();
        if !pending.needs_flusher(pending.flushers - 1) {
            pending.flushers -= 1;
            return Vec::new();
        }
        let mut bytes = 0;
        let fits = pending
            .settlements
            .iter()
            .take(FULL)
            .take_while(|(row, _)| {
                let fits = bytes < FULL_BYTES;
                bytes += row.result.as_ref().map_or(0, Bytes::len);
                fits
            });
        let count = fits.count();
        pending.settlements.drain(..count).collect()
    }

    /// Ends a task that did not finish. After the last one, waiting settlements are made one by one.
    fn abandon(&self) {
        let mut pending = self.lock();
        pending.flushers -= 1;
        if pending.flushers == 0 {
            pending.settlements.clear();
        }
    }
}

impl PostgresStore {
    /// Settles a lease along with others, and returns whether that succeeded.
    pub(super) async fn settle_batched(&self, row: SettleRow) -> bool {
        let (answer, settled) = oneshot::channel();
        if self.inner.settle_batcher.add(row, answer) {
            // On a task of its own, since the caller may be cancelled.
            tokio::spawn(Flusher(Some(self.clone())).run());
        }
        settled.await.unwrap_or(false)
    }

    /// Sends a batch, and returns the leases that were settled.
    async fn flush(&self, rows: &[SettleRow]) -> Option<HashSet<([u8; 16], i64)>> {
        fn column<'a, T>(rows: &'a [SettleRow], get: impl Fn(&'a SettleRow) -> T) -> Vec<T> {
            rows.iter().map(get).collect()
        }
        let notes = column(rows, |row| row.note.as_deref().map(str::as_bytes));
        let parameters: [&(dyn ToSql + Sync); 9] = [
            &column(rows, |row| row.id.as_slice()),
            &column(rows, |row| row.lease_token),
            &column(rows, |row| row.status),
            &column(rows, |row| row.time),
            &column(rows, |row| row.releases),
            &column(rows, |row| row.result.as_deref()),
            &notes,
            &column(rows, |row| row.cause.as_deref()),
            &column(rows, |row| row.keeps),
        ];
        let deadline = Instant::now() + self.inner.timeout;
        let sql = &self.inner.journal.settle_batch;
        let rows = self.attempt(deadline, sql, &parameters).await.ok()?;
        let settled = |row: &Row| {
            let id = row.try_get::<_, &[u8]>(0).ok()?;
            Some((id.try_into().ok()?, row.try_get(1).ok()?))
        };
        Some(rows.iter().filter_map(settled).collect())
    }
}

/// A task that sends batches until there are none. If it is dropped before, with its runtime say,
/// no settlement waits for it.
struct Flusher(Option<PostgresStore>);

impl Flusher {
    async fn run(mut self) {
        while let Some(store) = &self.0 {
            let batcher = &store.inner.settle_batcher;
            // Lets concurrent settlements join this batch.
            coalesce(FULL, || batcher.count()).await;
            let batch = batcher.next();
            if batch.is_empty() {
                self.0 = None;
                return;
            }
            let (rows, answers): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            let settled = store.flush(&rows).await.unwrap_or_default();
            for (row, answer) in rows.iter().zip(answers) {
                // The caller may have been cancelled.
                let _ = answer.send(settled.contains(&(row.id, row.lease_token)));
            }
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        if let Some(store) = &self.0 {
            store.inner.settle_batcher.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(batcher: &SettleBatcher) -> bool {
        let row = SettleRow {
            id: [0; 16],
            lease_token: 1,
            status: 2,
            time: 0,
            releases: false,
            result: None,
            note: None,
            cause: None,
            keeps: false,
        };
        batcher.add(row, oneshot::channel().0)
    }

    #[test]
    fn few_are_settled_one_batch_after_the_other() {
        let batcher = SettleBatcher::default();
        assert!(add(&batcher), "the first starts a task");
        assert_eq!(batcher.next().len(), 1);
        assert!((1..MANY).all(|_| !add(&batcher)));
        assert_eq!(batcher.next().len(), MANY - 1);
        assert!(batcher.next().is_empty());
        assert!(add(&batcher), "the task has ended");
    }

    #[test]
    fn nothing_waits_for_a_task_that_was_dropped() {
        let batcher = SettleBatcher::default();
        assert!(add(&batcher), "the first starts a task");
        assert!(!add(&batcher));
        batcher.abandon();
        assert_eq!(batcher.count(), 0, "they are settled one by one");
        assert!(add(&batcher), "the task has ended");
    }

    #[test]
    fn many_are_settled_in_two_batches_at_a_time() {
        let batcher = SettleBatcher::default();
        assert!(add(&batcher));
        assert_eq!(batcher.next().len(), 1);
        let started = (0..2 * FULL).filter(|_| add(&batcher)).count();
        assert_eq!(started, FLUSHERS - 1);
        assert_eq!(batcher.next().len(), FULL);
        assert_eq!(batcher.next().len(), FULL);
        add(&batcher);
        assert!(batcher.next().is_empty(), "one task is enough for that");
        assert_eq!(batcher.next().len(), 1);
        assert!(batcher.next().is_empty());
        assert_eq!(batcher.lock().flushers, 0);
    }
}
