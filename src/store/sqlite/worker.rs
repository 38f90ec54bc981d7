//! A thread that owns a connection and works off a queue in batches (group commit).
//!
//! The cost of a commit is the wait for the disk, so everything that queued up during the last one
//! runs in one transaction.
//!
//! # Invariants
//!
//! - `finish(Ok)` is called after `COMMIT` returned, never before: a caller that got a result finds
//!   it on disk after a power cut (T-4).
//! - Every job whose caller still waits is finished once, by the thread or by `submit`. If the thread
//!   dies, the channel closes and the caller gets an error that is in doubt.
//! - A job that fails does not fail the others: the batch is rolled back, and each job runs again in
//!   a transaction of its own. So do all jobs of a batch that the disk has no room for, since some
//!   may fit; those that begin nothing get the room that is kept for them. Jobs therefore run more than once, and write only inside the transaction. Any other
//!   failure of the file fails the batch at once, since every job would meet it.
//! - One thread writes through one connection, so no two transactions of a process compete for
//!   SQLite's lock, and jobs commit in the order of the queue.

use std::{
    cell::RefCell,
    io, ptr,
    sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError},
    thread,
    time::Duration,
};

use rusqlite::{CachedStatement, Connection, Params, Statement};
use tokio::{sync::oneshot, time::Instant};

use super::{error::Failure, file::Database};
use crate::store::{StoreError, StoreErrorKind};

/// A batch is closed once it holds this much.
const MAX_BATCH_BYTES: usize = 4 << 20;

/// The wait for more jobs, as a share of the duration of the last batch, and its limits.
const LINGER: u32 = 8;
const MAX_LINGER: Duration = Duration::from_millis(1);
/// Threads can't sleep for much less.
const MIN_LINGER: Duration = Duration::from_micros(50);

/// The time between two runs of the chore after it found nothing more to do.
const CHORE_EVERY: Duration = Duration::from_secs(10);

/// A job's view of the file, inside the transaction of its batch.
pub(super) struct Batch<'a> {
    pub(super) connection: &'a Connection,
    /// The time of the transaction, in microseconds since 1970.
    pub(super) now: i64,
    /// Whether there is no room for replies.
    pub(super) is_tight: bool,
    /// Statements that jobs of this batch have used. The connection's cache finds them by their text, and
    /// took the writer a twelfth of its time when each job asked it.
    statements: RefCell<Vec<(&'static str, CachedStatement<'a>)>>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(connection: &'a Connection, now: i64) -> Self {
        Self {
            connection,
            now,
            is_tight: false,
            statements: RefCell::default(),
        }
    }

    /// Uses a statement that the jobs of a batch share.
    pub(super) fn with<T>(
        &self,
        sql: &'static str,
        run: impl FnOnce(&mut Statement<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let used = {
            let mut used = self.statements.borrow_mut();
            let at = used.iter().position(|(text, _)| ptr::eq(*text, sql));
            at.map(|at| used.swap_remove(at).1)
        };
        let mut statement = match used {
            Some(statement) => statement,
            None => self.connection.prepare_cached(sql)?,
        };
        let result = run(&mut statement);
        self.statements.borrow_mut().push((sql, statement));
        result
    }

    /// Runs such a statement. Returns the number of rows that it changed.
    pub(super) fn execute(
        &self,
        sql: &'static str,
        parameters: impl Params,
    ) -> rusqlite::Result<usize> {
        self.with(sql, |statement| statement.execute(parameters))
    }
}

/// A job of a batch.
pub(super) trait Work: Send {
    /// Runs it. It may run several times; only the last run is committed.
    fn run(&mut self, batch: &Batch<'_>) -> rusqlite::Result<()>;

    /// Passes the result to the caller. `Ok` means that the last run is on disk.
    fn finish(self: Box<Self>, outcome: Result<(), StoreError>);

    /// Returns about how much it adds to the transaction.
    fn bytes(&self) -> usize {
        0
    }

    /// Whether the caller left, so that it need not run.
    fn is_abandoned(&self) -> bool;

    /// Whether it begins something, which needs room for the outcome, too.
    fn is_new(&self) -> bool {
        false
    }
}

/// Recurring work that joins a batch. Returns whether there is more of it.
pub(super) type Chore = fn(&Batch<'_>) -> rusqlite::Result<bool>;

/// A handle on the thread, which ends when the last handle is dropped and the queue is empty.
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

    /// Queues a job. If the queue is full, the job fails at once.
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
        work.finish(Err(error));
    }

    /// Queues a job and waits for its result.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        bytes: usize,
        run: impl FnMut(&Batch<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (job, result) = Job::new(bytes, run);
        self.submit(Box::new(job));
        wait(result).await
    }

    /// The same for a job that begins something.
    pub(super) async fn call_new<T: Send + 'static>(
        &self,
        bytes: usize,
        run: impl FnMut(&Batch<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (mut job, result) = Job::new(bytes, run);
        job.is_new = true;
        self.submit(Box::new(job));
        wait(result).await
    }
}

/// Waits for the result of a job. If the thread ends without one, the job is in doubt.
pub(super) async fn wait<T>(
    result: oneshot::Receiver<Result<T, StoreError>>,
) -> Result<T, StoreError> {
    result.await.unwrap_or_else(|_| Err(ended().in_doubt()))
}

fn ended() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the store's thread has ended")
}

/// A job that returns a value.
pub(super) struct Job<T, F> {
    pub(super) run: F,
    pub(super) result: Option<T>,
    pub(super) bytes: usize,
    pub(super) is_new: bool,
    pub(super) reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Job<T, F> {
    fn new(bytes: usize, run: F) -> (Self, oneshot::Receiver<Result<T, StoreError>>) {
        let (reply, receiver) = oneshot::channel();
        let job = Self {
            run,
            result: None,
            bytes,
            is_new: false,
            reply,
        };
        (job, receiver)
    }
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

    fn finish(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self { result, reply, .. } = *self;
        // The caller may have left.
        let _ = reply.send(outcome.and_then(|()| result.ok_or_else(ended)));
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    fn is_new(&self) -> bool {
        self.is_new
    }
}

struct Thread {
    database: Database,
    queue: Receiver<Box<dyn Work>>,
    max_batch: usize,
    /// The number of jobs of the last batch, and its duration.
    last: (usize, Duration),
    chore: Option<Chore>,
    chore_due: Instant,
}

/// The part of a batch that a failure concerns.
enum FailureScope {
    /// One job, or the room that all of them need together: each may succeed alone.
    Job(Failure),
    /// The file: every job fails.
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
                    let batch = self.collect(first);
                    self.run_batch(batch);
                }
                Err(RecvTimeoutError::Timeout) => self.run_batch(Vec::new()),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Takes a job and all that wait behind it, up to the limits of a batch.
    fn collect(&self, first: Box<dyn Work>) -> Vec<Box<dyn Work>> {
        let mut batch = Vec::new();
        self.fill(&mut batch, Some(first));
        // Callers whose job just finished often submit the next one at once. Without this wait the
        // first of them would be a batch alone, and the others would wait for a whole commit. It is the
        // store's own thread that sleeps: waking it for each job would cost more than the wait.
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

    /// Runs all jobs of the batch, and finishes each.
    fn run_batch(&mut self, mut batch: Vec<Box<dyn Work>>) {
        self.refuse_new(&mut batch);
        let chore = self.chore.filter(|_| self.is_due());
        match self.attempt(&mut batch, chore, false) {
            Ok(()) => finish(batch, None),
            Err(FailureScope::File(failure)) => self.fail(batch, &failure),
            Err(FailureScope::Job(full)) if batch.is_empty() && is_full(&full) => {
                // A sweep, which makes room.
                let _ = self.find_room(&mut batch, chore);
            }
            Err(FailureScope::Job(failure)) if batch.len() <= 1 && !is_full(&failure) => {
                finish(batch, Some(&failure));
            }
            Err(FailureScope::Job(_)) => self.run_one_by_one(batch),
        }
    }

    /// Refuses what is new while the outcomes of what runs have no room.
    fn refuse_new(&self, batch: &mut Vec<Box<dyn Work>>) {
        if batch.iter().any(|work| work.is_new())
            && let Some(full) = self.database.full()
        {
            finish(batch.extract_if(.., |work| work.is_new()), Some(&full));
        }
    }

    fn run_one_by_one(&mut self, batch: Vec<Box<dyn Work>>) {
        let mut batch = batch.into_iter();
        while let Some(work) = batch.next() {
            let is_new = work.is_new();
            let mut work = vec![work];
            let made = match is_new {
                true => self.attempt(&mut work, None, false),
                false => self.find_room(&mut work, None),
            };
            match made {
                Ok(()) => finish(work, None),
                Err(FailureScope::Job(failure)) => finish(work, Some(&failure)),
                Err(FailureScope::File(failure)) => {
                    work.extend(batch.by_ref());
                    self.fail(work, &failure);
                }
            }
        }
    }

    /// Runs what ends something, for which room was kept: in the file, on the disk, and if that is
    /// not enough for a reply, without the reply.
    fn find_room(
        &mut self,
        work: &mut [Box<dyn Work>],
        chore: Option<Chore>,
    ) -> Result<(), FailureScope> {
        let full = |made: &Result<(), FailureScope>| matches!(made, Err(FailureScope::Job(failure)) if is_full(failure));
        self.use_whole_file(true)?;
        let mut made = self.attempt(work, chore, false);
        if full(&made) {
            self.database.release_reserve();
            made = self.attempt(work, chore, false);
        }
        if full(&made) {
            made = self.attempt(work, chore, true);
        }
        self.use_whole_file(false)?;
        made
    }

    fn use_whole_file(&self, whole: bool) -> Result<(), FailureScope> {
        let set = self.database.use_whole_file(whole);
        set.map_err(FailureScope::File)
    }

    /// Fails the batch, and after a timeout for the lock also everything queued behind it, which has
    /// waited as long.
    fn fail(&self, batch: Vec<Box<dyn Work>>, failure: &Failure) {
        finish(batch, Some(failure));
        if failure.kind() == StoreErrorKind::Timeout {
            finish(self.queue.try_iter(), Some(failure));
        }
    }

    fn attempt(
        &mut self,
        work: &mut [Box<dyn Work>],
        chore: Option<Chore>,
        is_tight: bool,
    ) -> Result<(), FailureScope> {
        if chore.is_some() {
            self.chore_due = Instant::now() + CHORE_EVERY;
        }
        let started = Instant::now();
        let made = self.transaction(work, chore, is_tight);
        self.last = (work.len(), started.elapsed());
        match &made {
            Ok(true) => self.chore_due = Instant::now(),
            Ok(false) => {}
            Err(FailureScope::Job(failure) | FailureScope::File(failure)) => {
                self.database.note_damage(failure);
                // If this fails, the next `begin` rolls back first.
                drop(self.database.roll_back());
            }
        }
        made.map(drop)
    }

    /// Runs the jobs and the chore in one transaction. Returns whether more of the chore is left.
    fn transaction(
        &self,
        work: &mut [Box<dyn Work>],
        chore: Option<Chore>,
        is_tight: bool,
    ) -> Result<bool, FailureScope> {
        let now = self.database.begin().map_err(FailureScope::File)?;
        let batch = Batch {
            is_tight,
            ..Batch::new(&self.database.connection, now)
        };
        work.iter_mut()
            .try_for_each(|work| work.run(&batch))
            .and_then(|()| chore.map_or(Ok(false), |chore| chore(&batch)))
            .map_err(|error| FailureScope::Job(error.into()))
            .and_then(|more| match self.database.commit() {
                Ok(()) => Ok(more),
                Err(full) if is_full(&full) => Err(FailureScope::Job(full)),
                Err(failure) => Err(FailureScope::File(failure)),
            })
    }

    fn is_due(&self) -> bool {
        self.chore_due <= Instant::now()
    }
}

fn is_full(failure: &Failure) -> bool {
    failure.kind() == StoreErrorKind::Full
}

fn finish(batch: impl IntoIterator<Item = Box<dyn Work>>, failure: Option<&Failure>) {
    for work in batch {
        work.finish(failure.map_or(Ok(()), |failure| Err(failure.to_error())));
    }
}
