//! A thread with a connection, and a queue of things to do with it.
//!
//! Nearly all that a commit costs is waiting for the disk, so whatever queued up meanwhile is done
//! in one transaction and answered together. A thing that fails must not fail its neighbours: then
//! the whole batch is rolled back, and each is done again in a transaction of its own.

use std::{
    io,
    sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError},
    thread,
    time::Duration,
};

use rusqlite::Connection;
use tokio::{sync::oneshot, time::Instant};

use super::{error::Failure, file::Database};
use crate::store::{StoreError, StoreErrorKind};

/// A batch has enough once it holds this much.
const MAX_BATCH_BYTES: usize = 4 << 20;

/// How long the next batch waits for others, as a share of what the last one took, and at most.
const LINGER: u32 = 8;
const MAX_LINGER: Duration = Duration::from_millis(1);
/// No thread can sleep for much less.
const MIN_LINGER: Duration = Duration::from_micros(50);

/// How often the chore is looked after when nothing is left of it.
const CHORE_EVERY: Duration = Duration::from_secs(10);

/// What a piece of work sees: the file, inside the batch's transaction, and the store's time.
pub(super) struct Batch<'a> {
    pub(super) connection: &'a Connection,
    /// Microseconds since 1970.
    pub(super) now: i64,
}

/// Something to do in a batch.
pub(super) trait Work: Send {
    /// Does it. It may be done several times, and only the last one counts.
    fn run(&mut self, batch: &Batch<'_>) -> rusqlite::Result<()>;

    /// Tells whoever waits. `Ok` means that what `run` did is on disk.
    fn answer(self: Box<Self>, outcome: Result<(), StoreError>);

    /// About how much it adds to the transaction.
    fn bytes(&self) -> usize {
        0
    }

    /// Whether nobody waits any more, so that it need not be done.
    fn is_abandoned(&self) -> bool;
}

/// Something small to do now and then along with a batch; `true` if there is more of it.
pub(super) type Chore = fn(&Batch<'_>) -> rusqlite::Result<bool>;

/// A handle on the thread, which ends when the last one is dropped and all is answered.
#[derive(Clone)]
pub(super) struct Worker {
    queue: SyncSender<Box<dyn Work>>,
    bound: usize,
}

impl Worker {
    pub(super) fn start(
        name: &str,
        database: Database,
        queue: usize,
        batch: usize,
        chore: Option<Chore>,
    ) -> io::Result<Self> {
        let (sender, receiver) = mpsc::sync_channel(queue);
        let thread = Thread {
            database,
            queue: receiver,
            max_batch: batch,
            last: (0, Duration::ZERO),
            chore,
            chore_due: Instant::now(),
        };
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || thread.run())?;
        Ok(Self {
            queue: sender,
            bound: queue,
        })
    }

    /// Queues the work. If there is no room, it is answered at once.
    pub(super) fn submit(&self, work: Box<dyn Work>) {
        let (work, error) = match self.queue.try_send(work) {
            Ok(()) => return,
            Err(TrySendError::Full(work)) => {
                let message = format!("{} transitions are waiting already", self.bound);
                (
                    work,
                    StoreError::new(StoreErrorKind::PoolExhausted, message),
                )
            }
            Err(TrySendError::Disconnected(work)) => (work, ended()),
        };
        work.answer(Err(error));
    }

    /// Queues what has a result, and waits for it.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        bytes: usize,
        run: impl FnMut(&Batch<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.submit(Box::new(Job {
            run,
            result: None,
            bytes,
            reply,
        }));
        wait(answer).await
    }
}

/// What the thread will say. If it ends without a word, the last thing that it did is in doubt.
pub(super) async fn wait<T>(
    answer: oneshot::Receiver<Result<T, StoreError>>,
) -> Result<T, StoreError> {
    answer.await.unwrap_or_else(|_| Err(ended().in_doubt()))
}

fn ended() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the store's thread has ended")
}

/// Work that has a result.
pub(super) struct Job<T, F> {
    pub(super) run: F,
    pub(super) result: Option<T>,
    pub(super) bytes: usize,
    pub(super) reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Work for Job<T, F>
where
    T: Send,
    F: FnMut(&Batch<'_>) -> rusqlite::Result<T> + Send,
{
    fn run(&mut self, batch: &Batch<'_>) -> rusqlite::Result<()> {
        self.result = Some((self.run)(batch)?);
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self { result, reply, .. } = *self;
        // Whoever asked may have left.
        let _ = reply.send(outcome.and_then(|()| result.ok_or_else(ended)));
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }
}

type Queue = Receiver<Box<dyn Work>>;

struct Thread {
    database: Database,
    queue: Queue,
    max_batch: usize,
    /// How much the last batch held, and how long it took.
    last: (usize, Duration),
    chore: Option<Chore>,
    chore_due: Instant,
}

/// Who is to blame.
enum Blame {
    /// One piece of work, or the room that all of them together need.
    Work(Failure),
    /// The file: nothing would do better.
    File(Failure),
}

impl Thread {
    fn run(mut self) {
        loop {
            let idle = match self.chore {
                Some(_) => self.chore_due.saturating_duration_since(Instant::now()),
                None => Duration::MAX,
            };
            match self.queue.recv_timeout(idle) {
                Ok(first) => {
                    let batch = self.gather(first);
                    self.make(batch);
                }
                Err(RecvTimeoutError::Timeout) => self.make(Vec::new()),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn gather(&self, first: Box<dyn Work>) -> Vec<Box<dyn Work>> {
        let mut batch = Vec::new();
        self.fill(&mut batch, Some(first));
        // Those who were just answered often come back at once. Without them, a batch of one would
        // keep them all waiting for a whole commit.
        let (last, took) = self.last;
        let linger = (took / LINGER).min(MAX_LINGER);
        if batch.len() < last / 2 && linger >= MIN_LINGER {
            thread::sleep(linger);
            self.fill(&mut batch, None);
        }
        batch
    }

    fn fill(&self, batch: &mut Vec<Box<dyn Work>>, mut next: Option<Box<dyn Work>>) {
        let mut bytes: usize = batch.iter().map(|work| work.bytes()).sum();
        while batch.len() < self.max_batch && bytes < MAX_BATCH_BYTES {
            let Some(work) = next.take().or_else(|| self.queue.try_recv().ok()) else {
                return;
            };
            if !work.is_abandoned() {
                bytes += work.bytes();
                batch.push(work);
            }
        }
    }

    /// Makes all transitions of the batch, and answers each.
    fn make(&mut self, mut batch: Vec<Box<dyn Work>>) {
        match self.attempt(&mut batch, self.chore.filter(|_| self.is_due())) {
            Ok(()) => answer(batch, None),
            Err(Blame::File(failure)) => self.fail(batch, &failure),
            Err(Blame::Work(failure)) if batch.len() <= 1 => answer(batch, Some(&failure)),
            Err(Blame::Work(_)) => self.one_by_one(batch),
        }
    }

    fn one_by_one(&mut self, batch: Vec<Box<dyn Work>>) {
        let mut batch = batch.into_iter();
        while let Some(work) = batch.next() {
            let mut work = vec![work];
            match self.attempt(&mut work, None) {
                Ok(()) => answer(work, None),
                Err(Blame::Work(failure)) => answer(work, Some(&failure)),
                Err(Blame::File(failure)) => {
                    work.extend(batch.by_ref());
                    self.fail(work, &failure);
                }
            }
        }
    }

    /// Answers the batch, and after a long wait for the lock also what queued up behind it: that
    /// has waited long enough too.
    fn fail(&self, batch: Vec<Box<dyn Work>>, failure: &Failure) {
        answer(batch, Some(failure));
        if failure.kind() == StoreErrorKind::Timeout {
            answer(self.queue.try_iter(), Some(failure));
        }
    }

    fn attempt(&mut self, work: &mut [Box<dyn Work>], chore: Option<Chore>) -> Result<(), Blame> {
        if chore.is_some() {
            self.chore_due = Instant::now() + CHORE_EVERY;
        }
        let started = Instant::now();
        let made = self.transaction(work, chore);
        self.last = (work.len(), started.elapsed());
        match made {
            Ok(true) => self.chore_due = Instant::now(),
            Ok(false) => {}
            // What can't be undone now is undone before the next transaction starts.
            Err(_) => drop(self.database.roll_back()),
        }
        made.map(drop)
    }

    /// Whether more of the chore is left.
    fn transaction(&self, work: &mut [Box<dyn Work>], chore: Option<Chore>) -> Result<bool, Blame> {
        let batch = Batch {
            now: self.database.begin().map_err(Blame::File)?,
            connection: &self.database.connection,
        };
        work.iter_mut()
            .try_for_each(|work| work.run(&batch))
            .and_then(|()| chore.map_or(Ok(false), |chore| chore(&batch)))
            .map_err(|error| Blame::Work(error.into()))
            .and_then(|more| match self.database.commit() {
                Ok(()) => Ok(more),
                Err(full) if full.kind() == StoreErrorKind::Full => Err(Blame::Work(full)),
                Err(failure) => Err(Blame::File(failure)),
            })
    }

    fn is_due(&self) -> bool {
        self.chore_due <= Instant::now()
    }
}

fn answer(batch: impl IntoIterator<Item = Box<dyn Work>>, failure: Option<&Failure>) {
    for work in batch {
        work.answer(failure.map_or(Ok(()), |failure| Err(failure.to_error())));
    }
}
