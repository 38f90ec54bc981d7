//! Who works on a queue of a [`Journal`].
//!
//! A worker leases what is due, a little at a time, and has its [`Handler`] do it. It takes from
//! all lanes in turn and never more than a few of each at once, so that one slow target does not
//! keep the others waiting. While an entry is handled its lease is extended; when the process dies
//! the lease runs out, and another worker takes over. Any number of workers, in any number of
//! processes, can work on the same queue.
//!
//! A handler's place is free as soon as the handler is done: the next entry is leased and handled
//! while the journal still commits how that one ended. A few times as many as are handled at once
//! may wait for that, and no more, so that a journal that does not answer is not run away from.
//!
//! ```
//! use std::time::Duration;
//! use tower_reprise::{
//!     delivery::worker::{Handler, Worker},
//!     store::{MemoryStore, journal::{Entry, Journal, NewEntry, Settlement, Status}},
//! };
//!
//! struct Mails;
//!
//! impl Handler for Mails {
//!     async fn handle(&self, entry: Entry) -> Settlement {
//!         // Send entry.payload.
//!         Settlement::completed("sent", Duration::from_secs(3600))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let journal = MemoryStore::new();
//! let mail = NewEntry::new("mails", "welcome, Ada");
//! let id = mail.id;
//! journal.enqueue(mail).await?;
//!
//! let worker = Worker::builder(journal.clone(), "mails", Mails).concurrency(8).start()?;
//! # while journal.find(id).await?.is_some_and(|mail| !mail.status.is_over()) {
//! #     tokio::task::yield_now().await;
//! # }
//! worker.shutdown(Duration::from_secs(10)).await;
//! assert_eq!(journal.find(id).await?.map(|mail| mail.status), Some(Status::Completed));
//! # Ok(())
//! # }
//! ```

mod alert;
mod job;
mod run;
mod slots;

use std::{borrow::Cow, fmt, future::Future, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, Semaphore, watch},
    task::JoinHandle,
    time::timeout,
};

pub(crate) use self::alert::{ALERTS, alert};
use self::{job::Job, run::Run};
use crate::{
    error::ConfigError,
    store::journal::{Entry, Journal, Settlement},
    telemetry,
};

/// Does what entries of a queue say.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't handle entries of a queue",
    note = "implement `Handler` for a type of yours: `async fn handle(&self, entry: Entry) -> Settle`"
)]
pub trait Handler: Send + Sync + 'static {
    /// Does it, and says how it ended.
    ///
    /// The entry may be [past its time](Entry::is_past), and then must not be started. It may have
    /// been attempted before by a worker that vanished, or twice at the same time if its lease was
    /// lost. If this panics, the entry is leased again after a while: whoever counts attempts gives
    /// up in time.
    fn handle(&self, entry: Entry) -> impl Future<Output = Settlement> + Send;

    /// How much may be worked on now.
    fn admits(&self) -> Admits {
        Admits::All
    }
}

/// How much may be worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admits {
    /// As much as the worker can.
    All,
    /// So many entries at a time.
    UpTo(usize),
    /// Only what is urgent, and what is past its time.
    Urgent,
}

/// Tells a worker of this process that there may be something to do, so that it need not wait for
/// its next look.
#[derive(Debug, Clone, Default)]
pub struct WorkerNotifier(Arc<Notify>);

impl WorkerNotifier {
    /// Nobody's yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// There may be something to do.
    pub fn wake(&self) {
        self.0.notify_one();
    }

    async fn woken(&self) {
        self.0.notified().await;
    }
}

/// How a worker works.
#[derive(Debug, Clone, Copy)]
struct Limits {
    concurrency: usize,
    per_lane: usize,
    ahead: usize,
    lease: Duration,
    poll: Duration,
}

/// Builds a worker, and starts it.
#[must_use]
pub struct Worker<J, H> {
    journal: Arc<J>,
    queue: Cow<'static, str>,
    handler: Arc<H>,
    wake: WorkerNotifier,
    limits: Limits,
}

impl<J: Journal, H: Handler> Worker<J, H> {
    /// Works on this queue, with up to 64 entries at a time and 4 of a lane.
    pub fn builder(journal: J, queue: impl Into<Cow<'static, str>>, handler: H) -> Self {
        Self {
            journal: Arc::new(journal),
            queue: queue.into(),
            handler: Arc::new(handler),
            wake: WorkerNotifier::new(),
            limits: Limits {
                concurrency: 64,
                per_lane: 4,
                ahead: 0,
                lease: Duration::from_secs(30),
                poll: Duration::from_secs(1),
            },
        }
    }

    /// How many entries at a time: 1 to 10,000.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.limits.concurrency = concurrency;
        self
    }

    /// How many more to lease than can be handled at a time, so that something is at hand when a
    /// handler is done: none unless told otherwise, up to 10,000. Worth it where handlers are
    /// quicker than a commit of the journal.
    ///
    /// What waits here can't be taken by another worker, and what becomes due meanwhile comes after
    /// it, however urgent it is. Its lease is extended; a shutdown gives it back, and so does a
    /// handler that does not [admit](Handler::admits) all any more. It counts as one of its lane.
    pub fn ahead(mut self, ahead: usize) -> Self {
        self.limits.ahead = ahead;
        self
    }

    /// How many entries of a lane at a time.
    pub fn per_lane(mut self, per_lane: usize) -> Self {
        self.limits.per_lane = per_lane;
        self
    }

    /// How long a worker may be gone before another takes over: 30 s unless told otherwise, 1 s to
    /// 10 min. Handling an entry may take longer, since its lease is extended.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.limits.lease = lease;
        self
    }

    /// How often to look for what other processes queued, or for what came due: each second unless
    /// told otherwise, 10 ms to a minute.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.limits.poll = poll;
        self
    }

    /// Looks at once when told so.
    pub fn woken_by(mut self, wake: WorkerNotifier) -> Self {
        self.wake = wake;
        self
    }

    /// Starts working, on tasks of this runtime.
    ///
    /// # Errors
    ///
    /// A setting that is not allowed.
    pub fn start(self) -> Result<WorkerHandle, ConfigError> {
        self.check()?;
        let (stop, stopping) = watch::channel(Phase::WorkerHandle);
        let job = Job {
            journal: self.journal,
            handler: self.handler,
            lease: self.limits.lease,
            places: Arc::new(Semaphore::new(self.limits.concurrency)),
            phase: stopping,
        };
        let run = Run::new(job, self.queue.clone(), self.limits, self.wake.clone());
        Ok(WorkerHandle {
            queue: self.queue,
            wake: self.wake,
            stop,
            task: tokio::spawn(run.run()),
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        let Limits {
            concurrency,
            per_lane,
            ahead,
            lease,
            poll,
        } = self.limits;
        for (field, value) in [("concurrency", concurrency), ("per_lane", per_lane)] {
            if !(1..=10_000).contains(&value) {
                let field = format!("worker.{field}");
                return Err(ConfigError::new(None, field, value, "1 to 10000"));
            }
        }
        if ahead > 10_000 {
            return Err(ConfigError::new(None, "worker.ahead", ahead, "0 to 10000"));
        }
        let seconds = Duration::from_secs;
        for (field, value, least, most, allowed) in [
            ("lease", lease, seconds(1), seconds(600), "1s to 10min"),
            (
                "poll",
                poll,
                Duration::from_millis(10),
                seconds(60),
                "10ms to 1min",
            ),
        ] {
            if !(least..=most).contains(&value) {
                let field = format!("worker.{field}");
                return Err(ConfigError::new(
                    None,
                    field,
                    format_args!("{value:?}"),
                    allowed,
                ));
            }
        }
        Ok(())
    }
}

impl<J, H> fmt::Debug for Worker<J, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("queue", &self.queue)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Phase {
    WorkerHandle,
    /// Nothing new is begun.
    Finishing,
    /// What is not finished is given back.
    GivingBack,
}

/// A worker at work. When it is dropped, all that it does is broken off, and others take over when
/// its leases run out; [`shutdown`](Self::shutdown) is kinder.
#[derive(Debug)]
#[must_use = "a worker that is dropped stops"]
pub struct WorkerHandle {
    queue: Cow<'static, str>,
    wake: WorkerNotifier,
    stop: watch::Sender<Phase>,
    task: JoinHandle<()>,
}

impl WorkerHandle {
    /// How much longer than its grace a [`shutdown`](Self::shutdown) takes at most: 2 s, in which
    /// the journal is told what is given back.
    pub const GIVING_BACK: Duration = Duration::from_secs(2);

    /// Tells it that there may be something to do.
    pub fn wake(&self) {
        self.wake.wake();
    }

    /// Begins nothing new, and waits for what is being handled, at most for so long. What is not
    /// finished by then is broken off and given back at once, for others to attempt again.
    ///
    /// A journal that can't be told so is not waited for longer than
    /// [`GIVING_BACK`](Self::GIVING_BACK): others take over when the leases run out.
    pub async fn shutdown(mut self, grace: Duration) {
        self.stop.send_replace(Phase::Finishing);
        if timeout(grace, &mut self.task).await.is_ok() {
            return;
        }
        self.stop.send_replace(Phase::GivingBack);
        if timeout(Self::GIVING_BACK, &mut self.task).await.is_err() {
            telemetry::not_given_back(&self.queue);
        }
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}
