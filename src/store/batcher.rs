//! Sends concurrent transitions of one kind together, in one statement.
//!
//! Most of the cost of a transition is its round trip and its commit. One that comes alone is sent at
//! once, by its caller. All others are sent by a task: those that come in while its statement is under
//! way join the next batch. Many of them start a second batch on another connection: the server commits
//! both at once, or at least works on one while it writes the other to disk. A transition that its batch
//! did not make is made by itself, so a batch decides nothing: its statement is a shortcut for the usual
//! case.
//!
//! Nobody waits for a caller that sends its own: it may be a future that is not polled for a while.

use std::{
    marker::PhantomData,
    slice,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::{StoreError, StoreErrorKind, journal::coalesce::coalesce, remote::no_response};
use crate::telemetry;

/// Size of a full batch, in transitions and in bytes of what they carry.
const FULL: usize = 512;
const FULL_BYTES: usize = 4 << 20;
/// The most statements under way, and how many transitions have to wait for the second one.
const SENDERS: usize = 2;
const MANY: usize = 64;

/// One transition of a batch.
pub(super) trait BatchRow: Sized + Send + Sync + 'static {
    /// The store that makes it. Clones share their batchers.
    type Store: Clone + Send + Sync + 'static;
    type Answer: Send + 'static;

    /// Returns the batcher of its kind.
    fn batcher(store: &Self::Store) -> &Batcher<Self>;

    /// Returns the bytes that it carries.
    fn bytes(&self) -> usize;

    /// Sends transitions in one statement. Each answer is that of the row in its place; `None` if the
    /// statement did not make the transition.
    fn send(
        store: &Self::Store,
        deadline: Instant,
        rows: &[Self],
    ) -> impl Future<Output = Result<Vec<Option<Self::Answer>>, StoreError>> + Send;

    /// Sends the transition of a caller that is alone.
    fn send_one(
        store: &Self::Store,
        deadline: Instant,
        row: &Self,
    ) -> impl Future<Output = Result<Option<Self::Answer>, StoreError>> + Send {
        async move {
            let mut sent = Self::send(store, deadline, slice::from_ref(row)).await?;
            Ok(sent.pop().flatten())
        }
    }
}

/// Transitions that wait for a batch.
pub(super) struct Batcher<R: BatchRow> {
    timeout: Duration,
    pending: Mutex<Pending<R>>,
}

struct Pending<R: BatchRow> {
    waiting: Vec<(R, oneshot::Sender<Sent<R>>)>,
    /// Tasks that send. Invariant: while a transition waits there is one, since a task that ends looks
    /// for waiting ones under the same lock.
    senders: usize,
    /// Whether a caller sends its own.
    lone: bool,
    /// Whether the last statement made several: more are likely to come at once.
    crowded: bool,
}

/// The result of a row's batch.
type Sent<R> = Result<Option<<R as BatchRow>::Answer>, Failed>;

/// The end of a transition's part in a batch.
#[derive(Debug)]
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

impl Failed {
    /// Returns `None` for an error that another statement need not meet.
    fn of_batch(error: &StoreError) -> Option<Self> {
        error.is_transient().then(|| Self {
            kind: error.kind(),
            in_doubt: error.may_have_happened(),
        })
    }
}

impl From<Failed> for StoreError {
    fn from(failed: Failed) -> Self {
        Self::new(failed.kind, "a batch failed").in_doubt_if(failed.in_doubt)
    }
}

impl<R: BatchRow> Pending<R> {
    /// Returns whether the waiting transitions are worth a statement beside so many others.
    fn needs_sender(&self, others: usize) -> bool {
        match others {
            0 => !self.waiting.is_empty(),
            1..SENDERS => self.waiting.len() >= MANY,
            _ => false,
        }
    }

    /// Returns whether the caller has to start a task that sends.
    fn starts_sender(&mut self) -> bool {
        let starts = self.needs_sender(self.senders);
        self.senders += usize::from(starts);
        starts
    }
}

impl<R: BatchRow> Batcher<R> {
    /// Returns a batcher whose transitions take no longer than this.
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            pending: Mutex::new(Pending {
                waiting: Vec::new(),
                senders: 0,
                lone: false,
                crowded: false,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pending<R>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Returns the right of a caller to send its own transition, as nothing is under way.
    fn enter(&self) -> Option<Lone<'_, R>> {
        let mut pending = self.lock();
        let alone = pending.senders == 0 && !pending.lone;
        pending.lone |= alone;
        alone.then(|| Lone(self))
    }

    /// Lets others join the caller that entered, and returns whether none did.
    async fn stays_alone(&self) -> bool {
        // A transition that stays alone does not pay for a yield.
        if !self.lock().crowded {
            return true;
        }
        coalesce(1, || self.count()).await;
        let mut pending = self.lock();
        pending.crowded = !pending.waiting.is_empty();
        !pending.crowded
    }

    /// Adds a transition, and returns whether the caller has to start a task that sends it.
    fn add(&self, row: R, answer: oneshot::Sender<Sent<R>>) -> bool {
        let mut pending = self.lock();
        pending.waiting.push((row, answer));
        pending.starts_sender()
    }

    /// Returns the next batch; an empty one ends the task that asks, which is not needed any more.
    ///
    /// Transitions whose callers left are not made: a claim would block its key for a lease, and during
    /// an outage they would be more with each timeout.
    fn next(&self) -> Vec<(R, oneshot::Sender<Sent<R>>)> {
        let mut pending = self.lock();
        pending.waiting.retain(|(_, answer)| !answer.is_closed());
        if !pending.needs_sender(pending.senders - 1) {
            pending.senders -= 1;
            return Vec::new();
        }
        let mut bytes = 0;
        let fits = pending.waiting.iter().take(FULL).take_while(|(row, _)| {
            let fits = bytes < FULL_BYTES;
            bytes += row.bytes();
            fits
        });
        let count = fits.count();
        pending.crowded = count > 1;
        pending.waiting.drain(..count).collect()
    }

    /// Ends a task that did not finish. After the last one, waiting transitions are made one by one.
    fn abandon(&self) {
        let mut pending = self.lock();
        pending.senders -= 1;
        if pending.senders == 0 {
            pending.waiting.clear();
        }
    }
}

/// Makes a transition, along with others if there are any.
///
/// # Errors
///
/// The server did not respond in time.
pub(super) async fn batched<R: BatchRow>(
    store: &R::Store,
    row: R,
) -> Result<Batched<R::Answer>, StoreError> {
    let batcher = R::batcher(store);
    let deadline = Instant::now() + batcher.timeout;
    let lone = batcher.enter();
    let stays_alone = lone.is_some() && batcher.stays_alone().await;
    let sent = match lone {
        Some(lone) if stays_alone => {
            telemetry::store_batch(1);
            let sent = R::send_one(store, deadline, &row).await;
            drop(lone);
            match sent {
                Ok(sent) => Ok(sent),
                Err(error) => match Failed::of_batch(&error) {
                    Some(failed) if failed.kind != StoreErrorKind::Unavailable => {
                        return Err(error);
                    }
                    failed => failed.map_or(Ok(None), Err),
                },
            }
        }
        lone => {
            let (answer, sent) = oneshot::channel();
            if batcher.add(row, answer) {
                Flusher::<R>::start(store);
            }
            drop(lone);
            match tokio::time::timeout_at(deadline, sent).await {
                // The task was dropped, with its runtime say.
                Ok(Err(_)) => Err(Failed {
                    kind: StoreErrorKind::Unavailable,
                    in_doubt: true,
                }),
                Ok(Ok(sent)) => sent,
                Err(_) => return Err(no_response()),
            }
        }
    };
    let in_doubt = match sent {
        Ok(Some(made)) => return Ok(Batched::Made(made)),
        Ok(None) => false,
        Err(failed) if failed.kind != StoreErrorKind::Unavailable => return Err(failed.into()),
        Err(failed) => failed.in_doubt,
    };
    Ok(Batched::Alone {
        left: deadline.saturating_duration_since(Instant::now()),
        in_doubt,
    })
}

/// The right of a caller to send its own transition, until it was made or the caller is cancelled.
struct Lone<'a, R: BatchRow>(&'a Batcher<R>);

impl<R: BatchRow> Drop for Lone<'_, R> {
    fn drop(&mut self) {
        self.0.lock().lone = false;
    }
}

/// A task that sends batches until there are none. If it is dropped before, no transition waits for
/// it.
struct Flusher<R: BatchRow> {
    store: Option<R::Store>,
    rows: PhantomData<R>,
}

impl<R: BatchRow> Flusher<R> {
    fn start(store: &R::Store) {
        let flusher = Self {
            store: Some(store.clone()),
            rows: PhantomData,
        };
        tokio::spawn(flusher.run());
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
            let deadline = Instant::now() + batcher.timeout;
            telemetry::store_batch(rows.len());
            match R::send(store, deadline, &rows).await {
                Ok(sent) => {
                    for (answer, sent) in answers.into_iter().zip(sent) {
                        // The caller may have been cancelled.
                        let _ = answer.send(Ok(sent));
                    }
                }
                Err(error) => {
                    let failed = Failed::of_batch(&error);
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
mod tests;
