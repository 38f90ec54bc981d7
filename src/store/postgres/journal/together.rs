//! Outcomes that are told together.
//!
//! Most of what an outcome costs is the commit, so whatever comes in while one is under way is told
//! with the next one. If that is much, it is told at the same time on another connection: the
//! server commits both at once, or at least works on this while that is written to disk. What was
//! not settled that way is settled by itself: it was not its owner's, was told before, or the server
//! failed, and which of these it was is found out then.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use tokio::{sync::oneshot, time::Instant};
use tokio_postgres::{Row, types::ToSql};

use super::super::PostgresStore;
use crate::store::journal::gather::gathered;

/// A batch has enough once it holds this many, or this much.
const MOST: usize = 512;
const MOST_BYTES: usize = 4 << 20;
/// How many batches may be told at the same time, and how many outcomes it takes for another one.
const TELLERS: usize = 2;
const MANY: usize = 64;

/// Outcomes that wait for the one that is being told.
#[derive(Default)]
pub(in super::super) struct Together {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    outcomes: Vec<(Told, oneshot::Sender<bool>)>,
    /// How many tasks are telling some.
    tellers: usize,
}

impl Waiting {
    /// Whether so many are worth another task, beside so many.
    fn is_worth(&self, tellers: usize) -> bool {
        match tellers {
            0 => !self.outcomes.is_empty(),
            1..TELLERS => self.outcomes.len() >= MANY,
            _ => false,
        }
    }
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
    pub(super) cause: Option<String>,
}

impl Together {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) -> usize {
        self.lock().outcomes.len()
    }

    /// Whether somebody has to begin telling.
    fn add(&self, told: Told, answer: oneshot::Sender<bool>) -> bool {
        let mut waiting = self.lock();
        waiting.outcomes.push((told, answer));
        let begins = waiting.is_worth(waiting.tellers);
        waiting.tellers += usize::from(begins);
        begins
    }

    /// What is to be told next; nothing if whoever asks is not needed any more.
    fn next(&self) -> Vec<(Told, oneshot::Sender<bool>)> {
        let mut waiting = self.lock();
        if !waiting.is_worth(waiting.tellers - 1) {
            waiting.tellers -= 1;
            return Vec::new();
        }
        let mut bytes = 0;
        let fits = waiting.outcomes.iter().take(MOST).take_while(|(told, _)| {
            let fits = bytes < MOST_BYTES;
            bytes += told.result.as_ref().map_or(0, Bytes::len);
            fits
        });
        let count = fits.count();
        waiting.outcomes.drain(..count).collect()
    }

    /// Somebody who told outcomes is gone. If that was the last one, who waits goes on by itself.
    fn abandon(&self) {
        let mut waiting = self.lock();
        waiting.tellers -= 1;
        if waiting.tellers == 0 {
            waiting.outcomes.clear();
        }
    }
}

impl PostgresStore {
    /// Whether the outcome was settled along with others.
    pub(super) async fn settled_together(&self, told: Told) -> bool {
        let (answer, settled) = oneshot::channel();
        if self.inner.together.add(told, answer) {
            let teller = Teller(Some(self.clone()));
            // On a task of its own, since whoever began it may leave.
            tokio::spawn(teller.tell_all());
        }
        settled.await.unwrap_or(false)
    }

    /// Which of them were settled.
    async fn tell(&self, told: &[Told]) -> Option<HashSet<([u8; 16], i64)>> {
        fn column<'a, T>(told: &'a [Told], get: impl Fn(&'a Told) -> T) -> Vec<T> {
            told.iter().map(get).collect()
        }
        let notes = column(told, |one| one.note.as_deref().map(str::as_bytes));
        let parameters: [&(dyn ToSql + Sync); 8] = [
            &column(told, |one| one.id.as_slice()),
            &column(told, |one| one.turn),
            &column(told, |one| one.status),
            &column(told, |one| one.time),
            &column(told, |one| one.releases),
            &column(told, |one| one.result.as_deref()),
            &notes,
            &column(told, |one| one.cause.as_deref()),
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

/// Who tells outcomes, until there are none. One that ends before that, with its runtime say, leaves
/// nobody waiting for it.
struct Teller(Option<PostgresStore>);

impl Teller {
    async fn tell_all(mut self) {
        while let Some(store) = &self.0 {
            // Whoever is about to tell something, too, tells it along.
            let together = &store.inner.together;
            gathered(MOST, || together.count()).await;
            let batch = together.next();
            if batch.is_empty() {
                self.0 = None;
                return;
            }
            let (told, answers): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            let settled = store.tell(&told).await.unwrap_or_default();
            for (told, answer) in told.iter().zip(answers) {
                // Whoever asked may have left.
                let _ = answer.send(settled.contains(&(told.id, told.turn)));
            }
        }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        if let Some(store) = &self.0 {
            store.inner.together.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(together: &Together) -> bool {
        let told = Told {
            id: [0; 16],
            turn: 1,
            status: 2,
            time: 0,
            releases: false,
            result: None,
            note: None,
            cause: None,
        };
        together.add(told, oneshot::channel().0)
    }

    #[test]
    fn few_are_told_one_batch_after_the_other() {
        let together = Together::default();
        assert!(add(&together), "nobody tells anything yet");
        assert_eq!(together.next().len(), 1);
        assert!((1..MANY).all(|_| !add(&together)));
        assert_eq!(together.next().len(), MANY - 1);
        assert!(together.next().is_empty());
        assert!(add(&together), "nobody tells anything any more");
    }

    #[test]
    fn nobody_waits_for_who_is_gone() {
        let together = Together::default();
        assert!(add(&together), "nobody tells anything yet");
        assert!(!add(&together));
        together.abandon();
        assert_eq!(together.count(), 0, "they go on by themselves");
        assert!(add(&together), "nobody tells anything any more");
    }

    #[test]
    fn many_are_told_at_the_same_time() {
        let together = Together::default();
        assert!(add(&together));
        assert_eq!(together.next().len(), 1);
        let begun = (0..2 * MOST).filter(|_| add(&together)).count();
        assert_eq!(begun, TELLERS - 1);
        assert_eq!(together.next().len(), MOST);
        assert_eq!(together.next().len(), MOST);
        add(&together);
        assert!(together.next().is_empty(), "one of them is enough for that");
        assert_eq!(together.next().len(), 1);
        assert!(together.next().is_empty());
        assert_eq!(together.lock().tellers, 0);
    }
}
