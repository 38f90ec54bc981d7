//! Outcomes that are told together.
//!
//! Most of what an outcome costs is the commit, so whatever comes in while one is under way is told
//! with the next one. What was not settled that way is settled by itself: it was not its owner's,
//! was told before, or the server failed, and which of these it was is found out then.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use tokio::{sync::oneshot, time::Instant};
use tokio_postgres::{Row, types::ToSql};

use super::super::PostgresStore;

/// A batch has enough once it holds this many, or this much.
const MOST: usize = 256;
const MOST_BYTES: usize = 4 << 20;

/// Outcomes that wait for the one that is being told.
#[derive(Default)]
pub(in super::super) struct Together {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    outcomes: Vec<(Told, oneshot::Sender<bool>)>,
    is_busy: bool,
}

/// An outcome, as the statement takes it.
pub(super) struct Told {
    pub(super) id: [u8; 16],
    pub(super) turn: i64,
    pub(super) status: i16,
    pub(super) time: i64,
    pub(super) releases: bool,
    pub(super) result: Option<Bytes>,
    pub(super) note: Option<String>,
}

impl Together {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be told next; nothing if nobody waits, and then nobody is busy any more.
    fn next(&self) -> Vec<(Told, oneshot::Sender<bool>)> {
        let mut waiting = self.lock();
        let mut bytes = 0;
        let fits = waiting.outcomes.iter().take(MOST).take_while(|(told, _)| {
            let fits = bytes < MOST_BYTES;
            bytes += told.result.as_ref().map_or(0, Bytes::len);
            fits
        });
        let count = fits.count();
        waiting.is_busy = count > 0;
        waiting.outcomes.drain(..count).collect()
    }
}

impl PostgresStore {
    /// Whether the outcome was settled along with others.
    pub(super) async fn settled_together(&self, told: Told) -> bool {
        let (answer, settled) = oneshot::channel();
        let begins = {
            let mut waiting = self.inner.together.lock();
            waiting.outcomes.push((told, answer));
            !std::mem::replace(&mut waiting.is_busy, true)
        };
        if begins {
            let store = self.clone();
            // On a task of its own, since whoever began it may leave.
            tokio::spawn(async move { store.tell_all().await });
        }
        settled.await.unwrap_or(false)
    }

    async fn tell_all(&self) {
        loop {
            // Whoever is about to tell something, too, tells it along.
            tokio::task::yield_now().await;
            let batch = self.inner.together.next();
            if batch.is_empty() {
                return;
            }
            let (told, answers): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            let settled = self.tell(&told).await.unwrap_or_default();
            for (told, answer) in told.iter().zip(answers) {
                // Whoever asked may have left.
                let _ = answer.send(settled.contains(&(told.id, told.turn)));
            }
        }
    }

    /// Which of them were settled.
    async fn tell(&self, told: &[Told]) -> Option<HashSet<([u8; 16], i64)>> {
        fn column<'a, T>(told: &'a [Told], get: impl Fn(&'a Told) -> T) -> Vec<T> {
            told.iter().map(get).collect()
        }
        let notes = column(told, |one| one.note.as_deref().map(str::as_bytes));
        let parameters: [&(dyn ToSql + Sync); 7] = [
            &column(told, |one| one.id.as_slice()),
            &column(told, |one| one.turn),
            &column(told, |one| one.status),
            &column(told, |one| one.time),
            &column(told, |one| one.releases),
            &column(told, |one| one.result.as_deref()),
            &notes,
        ];
        let deadline = Instant::now() + self.inner.timeout;
        let sql = &self.inner.journal.settle_all;
        let rows = self.attempt(deadline, sql, &parameters).await.ok()?;
        let settled = |row: &Row| {
            let id = row.try_get::<_, &[u8]>(0).ok()?;
            Some((id.try_into().ok()?, row.try_get(1).ok()?))
        };
        Some(rows.iter().filter_map(settled).collect())
    }
}
