use std::{borrow::Cow, sync::Arc, time::Duration};

use tokio::sync::{Semaphore, watch};

use super::{
    ALERTS, Handler, WorkerHandle, WorkerNotifier,
    handle::Phase,
    job::Job,
    retries::Retries,
    run::{Limits, Run},
};
use crate::{
    dependency::Dependencies,
    error::{ConfigError, Rule},
    store::journal::Journal,
};

/// Configures and starts a worker. See the [module docs](super).
#[must_use]
pub struct WorkerBuilder<J, H> {
    journal: Arc<J>,
    queue: Cow<'static, str>,
    handler: Arc<H>,
    notifier: WorkerNotifier,
    limits: Limits,
    retries: Option<Retries>,
    alerted: bool,
}

impl<J: Journal, H: Handler> WorkerBuilder<J, H> {
    /// Creates a worker for a queue, with the default settings.
    pub fn new(journal: J, queue: impl Into<Cow<'static, str>>, handler: H) -> Self {
        Self {
            journal: Arc::new(journal),
            queue: queue.into(),
            handler: Arc::new(handler),
            notifier: WorkerNotifier::new(),
            limits: Limits {
                concurrency: 64,
                per_lane: 4,
                prefetch: 0,
                lease: Duration::from_secs(30),
                poll: Duration::from_secs(1),
                in_order: false,
            },
            retries: None,
            alerted: false,
        }
    }

    /// Sets how many entries are handled at a time: 64 by default, 1 to 10,000.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.limits.concurrency = concurrency;
        self
    }

    /// Sets how many entries are leased in addition to those being handled: 0 by default, up to
    /// 10,000. Worth it where handlers are faster than a commit of the journal.
    ///
    /// Other workers can't take a prefetched entry, and more urgent entries that become due
    /// meanwhile come after it. It counts as one of its lane, and its lease is extended. It is
    /// released by a shutdown, and by a handler whose [admission](Handler::admission) is not
    /// [`All`](super::Admission::All) any more.
    pub fn prefetch(mut self, prefetch: usize) -> Self {
        self.limits.prefetch = prefetch;
        self
    }

    /// Sets how many entries of a lane are handled at a time: 4 by default, 1 to 10,000.
    pub fn per_lane(mut self, per_lane: usize) -> Self {
        self.limits.per_lane = per_lane;
        self
    }

    /// Handles the entries of a lane one after the other, in order: an entry that waits for its next
    /// attempt holds up those behind it, whichever worker runs them. All workers of a queue have to
    /// agree on it. [`per_lane`](Self::per_lane) and [`prefetch`](Self::prefetch) have no meaning
    /// then.
    ///
    /// The order is that of [leases](Journal#contract): by priority, so that an urgent entry
    /// comes before one that waits. An entry that is delayed when it is enqueued holds up nobody.
    pub fn in_order(mut self) -> Self {
        self.limits.in_order = true;
        self
    }

    /// Sets how long a worker may be silent before another takes over its entries: 30 s by default,
    /// 1 s to 10 min. Handlers may take longer, since leases are extended.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.limits.lease = lease;
        self
    }

    /// Sets how often the worker looks for entries that came due or that other processes queued:
    /// each second by default, 10 ms to 1 min. On PostgreSQL it is told of most entries before.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.limits.poll = poll;
        self
    }

    /// Sets the registry that has the retry budgets of [targets](Handler::target), and their labels in
    /// metrics; one of its own by default.
    pub fn dependencies<C, L>(mut self, dependencies: &Dependencies<C, L>) -> Self {
        self.retries = Some(Retries::new(dependencies));
        self
    }

    /// Says that this worker of [alerts](crate::delivery::dead_letter::DeadLetters::alerts) announces
    /// dead letters.
    pub fn alerted_by(mut self, alerts: &WorkerHandle) -> Self {
        self.alerted |= alerts.is_of(ALERTS);
        self
    }

    /// Says that another process announces dead letters.
    pub fn alerted_elsewhere(mut self) -> Self {
        self.alerted = true;
        self
    }

    /// Sets the notifier that makes the worker look at once.
    pub fn notifier(mut self, notifier: WorkerNotifier) -> Self {
        self.notifier = notifier;
        self
    }

    /// Starts the worker on tasks of the current runtime.
    ///
    /// # Errors
    ///
    /// Returns the first setting that is not allowed; also a policy of the
    /// [registry](Self::dependencies) that names a dead-letter queue, if nobody
    /// [announces](Self::alerted_by) its letters.
    pub fn start(mut self) -> Result<WorkerHandle, ConfigError> {
        self.limits.check()?;
        let retries = self.retries.map_or_else(Retries::alone, Ok)?;
        // Alerts are not announced themselves.
        let announced = self.alerted || self.queue == ALERTS;
        if let Some(name) = retries.dead_letters.as_ref().filter(|_| !announced) {
            let allowed = "with an alert: `alerted_by` or `alerted_elsewhere`";
            let rule = Some(Rule::R8);
            return Err(ConfigError::new(rule, "worker.dead_letters", name, allowed));
        }
        retries.serve(&self.queue, self.alerted);
        if self.limits.in_order {
            (self.limits.per_lane, self.limits.prefetch) = (1, 0);
        }
        let (sender, phase) = watch::channel(Phase::Running);
        let job = Job {
            journal: self.journal,
            handler: self.handler,
            retries,
            lease: self.limits.lease,
            in_order: self.limits.in_order,
            permits: Arc::new(Semaphore::new(self.limits.concurrency)),
            phase,
        };
        let run = Run::new(job, self.queue.clone(), self.limits, self.notifier.clone());
        let task = tokio::spawn(run.run());
        Ok(WorkerHandle::new(self.queue, self.notifier, sender, task))
    }
}

impl Limits {
    fn check(&self) -> Result<(), ConfigError> {
        let (ms, seconds) = (Duration::from_millis, Duration::from_secs);
        let counts = [
            ("worker.concurrency", self.concurrency, 1, "1 to 10000"),
            ("worker.per_lane", self.per_lane, 1, "1 to 10000"),
            ("worker.prefetch", self.prefetch, 0, "0 to 10000"),
        ];
        for (field, value, least, allowed) in counts {
            ConfigError::within(field, value, least..=10_000, allowed)?;
        }
        let (leases, polls) = (seconds(1)..=seconds(600), ms(10)..=seconds(60));
        ConfigError::within("worker.lease", self.lease, leases, "1s to 10min")?;
        ConfigError::within("worker.poll", self.poll, polls, "10ms to 1min")
    }
}

opaque_debug! { WorkerBuilder<J, H>, self, queue = self.queue, limits = self.limits }
