//! Sends concurrent transitions of one kind together, in one statement.
//!
//! Most of the cost of a transition is its round trip and its commit, so transitions that come in
//! while a statement is under way join the next batch. Many of them start a second batch on another
//! connection: the server commits both at once, or at least works on one while it writes the other to
//! disk. A transition that its batch did not make is made by itself, so a batch decides nothing: its
//! statement is a shortcut for the usual case.

use std::{
    marker::PhantomData,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::{PostgresStore, error::of_late_statement};
use crate::store::{StoreError, StoreErrorKind, journal::coalesce::coalesce};

/// Size of a full batch, in transitions and in bytes of what they carry.
const FULL: usize = 512;
const FULL_BYTES: usize = 4 << 20;
/// The most batches under way, and how many transitions have to wait for the second one.
const FLUSHERS: usize = 2;
const MANY: usize = 64;

/// One transition of a batch.
pub(super) trait BatchRow: Sized + Send + Sync + 'static {
    type Answer: Send + 'static;

    /// Returns the batcher of its kind.
    fn batcher(store: &PostgresStore) -> &Batcher<Self>;

    /// Returns the bytes that it carries.
    fn bytes(&self) -> usize;

    /// Sends transitions in one statement. Each answer is that of the row in its place; `None` if the
    /// statement did not make the transition.
    fn send(
        store: &PostgresStore,
        deadline: Instant,
        rows: &[Self],
    ) -> impl Future<Output = Result<Vec<Option<Self::Answer>>, StoreError>> + Send;
}

/// Transitions that wait for a batch.
pub(super) struct Batcher<R: BatchRow> {
    pending: Mutex<Pending<R>>,
}

struct Pending<R: BatchRow> {
    waiting: Vec<(R, oneshot::Sender<Sent<R>>)>,
    /// Tasks that send batches.
    flushers: usize,
}

/// The result of a row's batch.
type Sent<R> = Result<Option<<R as BatchRow>::Answer>, Failed>;

/// The end of a transition's part in a batch.
pub(super) enum Batched<A> {
    Made(A),
    /// It has to be made by itself, in the time that is left of its timeout.
    Alone {
        left: Duration,
        /// The batch may have made it all the same.
        in_doubt: bool,
    },
}

/// The failure of a batch that a row would have met by itself, too.
#[derive(Debug, Clone, Copy)]
struct Failed {
    kind: StoreErrorKind,
    in_doubt: bool,
}

impl From<Failed> for StoreError {
    fn from(failed: Failed) -> Self {
        Self::new(failed.kind, "a batch failed").in_doubt_if(failed.in_doubt)
    }
}

impl<R: BatchRow> Default for Batcher<R> {
    fn default() -> Self {
        Self {
            pending: Mutex::new(Pending {
                waiting: Vec::new(),
                flushers: 0,
            }),
        }
    }
}

impl<R: BatchRow> Pending<R> {
    /// Returns whether these transitions are worth a task beside so many others.
    fn needs_flusher(&self, others: usize) -> bool {
        match others {
            0 => !self.waiting.is_empty(),
            1..FLUSHERS => self.waiting.len() >= MANY,
            _ => false,
        }
    }
}

impl<R: BatchRow> Batcher<R> {
    fn lock(&self) -> MutexGuard<'_, Pending<R>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Adds a transition, and returns whether the caller has to start a task that sends it.
    fn add(&self, row: R, answer: oneshot::Sender<Sent<R>>) -> bool {
        let mut pending = self.lock();
        pending.waiting.push((row, answer));
        let starts = pending.needs_flusher(pending.flushers);
        pending.flushers += usize::from(starts);
        starts
    }

    /// Returns the next batch; an empty one ends the task that asks, which is not needed any more.
    fn next(&self) -> Vec<(R, oneshot::Sender<Sent<R>>)> {
        let mut pending = self.lock();
        if !pending.needs_flusher(pending.flushers - 1) {
            pending.flushers -= 1;
            return Vec::new();
        }
        let mut bytes = 0;
        let fits = pending.waiting.iter().take(FULL).take_while(|(row, _)| {
            let fits = bytes < FULL_BYTES;
            bytes += row.bytes();
            fits
        });
        let count = fits.count();
        pending.waiting.drain(..count).collect()
    }

    /// Ends a task that did not finish. After the last one, waiting transitions are made one by one.
    fn abandon(&self) {
        let mut pending = self.lock();
        pending.flushers -= 1;
        if pending.flushers == 0 {
            pending.waiting.clear();
        }
    }
}

impl PostgresStore {
    /// Makes a transition along with others.
    ///
    /// # Errors
    ///
    /// The server did not respond in time.
    pub(super) async fn batched<R: BatchRow>(
        &self,
        row: R,
    ) -> Result<Batched<R::Answer>, StoreError> {
        let deadline = Instant::now() + self.inner.timeout;
        let (answer, sent) = oneshot::channel();
        if R::batcher(self).add(row, answer) {
            // On a task of its own, since the caller may be cancelled.
            tokio::spawn(Flusher::<R>::new(self.clone()).run());
        }
        let sent = match tokio::time::timeout_at(deadline, sent).await {
            Ok(sent) => sent,
            Err(_) => return Err(of_late_statement()),
        };
        let in_doubt = match sent {
            Ok(Ok(Some(made))) => return Ok(Batched::Made(made)),
            Ok(Ok(None)) => false,
            Ok(Err(failed)) if failed.kind != StoreErrorKind::Unavailable => {
                return Err(failed.into());
            }
            Ok(Err(failed)) => failed.in_doubt,
            // The task was dropped, with its runtime say.
            Err(_) => true,
        };
        Ok(Batched::Alone {
            left: deadline.saturating_duration_since(Instant::now()),
            in_doubt,
        })
    }
}

/// A task that sends batches until there are none. If it is dropped before, no transition waits for
/// it.
struct Flusher<R: BatchRow> {
    store: Option<PostgresStore>,
    rows: PhantomData<R>,
}

impl<R: BatchRow> Flusher<R> {
    fn new(store: PostgresStore) -> Self {
        Self {
            store: Some(store),
            rows: PhantomData,
        }
    }

    async fn run(mut self) {
        while let Some(store) = &self.store {
            let batcher = R::batcher(store);
            // Lets concurrent transitions join this batch.
            coalesce(FULL, || batcher.count()).await;
            let batch = batcher.next();
            if batch.is_empty() {
                self.store = None;
                return;
            }
            let (rows, answers): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            let deadline = Instant::now() + store.inner.timeout;
            match R::send(store, deadline, &rows).await {
                Ok(sent) => {
                    for (answer, sent) in answers.into_iter().zip(sent) {
                        // The caller may have been cancelled.
                        let _ = answer.send(Ok(sent));
                    }
                }
                Err(error) => {
                    let failed = error.is_transient().then(|| Failed {
                        kind: error.kind(),
                        in_doubt: error.may_have_happened(),
                    });
                    for answer in answers {
                        let _ = answer.send(failed.map_or(Ok(None), Err));
                    }
                }
            }
        }
    }
}

impl<R: BatchRow> Drop for Flusher<R> {
    fn drop(&mut self) {
        if let Some(store) = &self.store {
            R::batcher(store).abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl BatchRow for Nothing {
        type Answer = ();

        fn batcher(_store: &PostgresStore) -> &Batcher<Self> {
            unreachable!("the tests have no store")
        }

        fn bytes(&self) -> usize {
            0
        }

        async fn send(
            _store: &PostgresStore,
            _deadline: Instant,
            _rows: &[Self],
        ) -> Result<Vec<Option<()>>, StoreError> {
            unreachable!("the tests have no store")
        }
    }

    fn add(batcher: &Batcher<Nothing>) -> bool {
        batcher.add(Nothing, oneshot::channel().0)
    }

    #[test]
    fn few_are_sent_one_batch_after_the_other() {
        let batcher = Batcher::default();
        assert!(add(&batcher), "the first starts a task");
        assert_eq!(batcher.next().len(), 1);
        assert!((1..MANY).all(|_| !add(&batcher)));
        assert_eq!(batcher.next().len(), MANY - 1);
        assert!(batcher.next().is_empty());
        assert!(add(&batcher), "the task has ended");
    }

    #[test]
    fn nothing_waits_for_a_task_that_was_dropped() {
        let batcher = Batcher::default();
        assert!(add(&batcher), "the first starts a task");
        assert!(!add(&batcher));
        batcher.abandon();
        assert_eq!(batcher.count(), 0, "they are sent one by one");
        assert!(add(&batcher), "the task has ended");
    }

    #[test]
    fn many_are_sent_in_two_batches_at_a_time() {
        let batcher = Batcher::default();
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
