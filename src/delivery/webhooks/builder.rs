use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use super::{
    Schedule, Sender, Webhooks,
    queue::{Settings, Signers},
};
use crate::{
    backoff::Jitter,
    delivery::{dead_letter::KEEP, guard::Guard, worker::WorkerNotifier},
    dependency::Dependencies,
    error::ConfigError,
    policy::Policy,
};

/// The default retention of an event that was delivered.
const KEEP_DELIVERED: Duration = Duration::from_secs(60 * 60);

/// Builds [`Webhooks`].
#[must_use]
pub struct WebhooksBuilder<J> {
    journal: J,
    queue: Cow<'static, str>,
    guard: Guard,
    sender: Option<Sender>,
    signers: Signers,
    schedule: Option<Schedule>,
    keep: Duration,
    keep_delivered: Duration,
    dependencies: Option<Dependencies>,
    seed: Option<u64>,
}

impl<J> WebhooksBuilder<J> {
    pub(super) fn new(journal: J, signers: Signers) -> Self {
        Self {
            journal,
            queue: "webhooks".into(),
            guard: Guard::new(),
            sender: None,
            signers,
            schedule: None,
            keep: KEEP,
            keep_delivered: KEEP_DELIVERED,
            dependencies: None,
            seed: None,
        }
    }

    /// Sets the queue, `webhooks` by default.
    pub fn queue(mut self, queue: impl Into<Cow<'static, str>>) -> Self {
        self.queue = queue.into();
        self
    }

    /// Sets the allowed targets: public addresses by `https` by default.
    pub fn guard(mut self, guard: Guard) -> Self {
        self.guard = guard;
        self
    }

    /// Sets the sender, which has a guard of its own.
    pub fn sender(mut self, sender: Sender) -> Self {
        self.sender = Some(sender);
        self
    }

    /// Sets the schedule: that of the registry's [policy](Policy::webhook) by default, which has five
    /// deliveries within a day.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = Some(schedule);
        self
    }

    /// Sets how long a dead letter is kept: 30 days by default.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    /// Sets how long an event that was delivered is kept, with its payload: an hour by default.
    pub fn keep_delivered(mut self, keep: Duration) -> Self {
        self.keep_delivered = keep;
        self
    }

    /// Sets the registry that has a retry budget for each receiver, named by scheme and authority;
    /// one of its own by default. If its default policy is of the webhook profile, that also has the
    /// deliveries and their total time.
    pub fn dependencies(mut self, dependencies: Dependencies) -> Self {
        self.dependencies = Some(dependencies);
        self
    }

    /// Draws the jitter of the schedule from a seeded generator, for repeatable tests.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Builds the webhooks.
    ///
    /// # Errors
    ///
    /// A setting is not allowed.
    pub fn build(self) -> Result<Webhooks<J>, ConfigError> {
        let sender = match self.sender {
            Some(sender) => sender,
            None => Sender::builder(self.guard.clone()).build()?,
        };
        let dependencies = match self.dependencies {
            Some(dependencies) => dependencies,
            None => Dependencies::new(Policy::webhook().build()?),
        };
        let by_policy = || Schedule::by_policy(&dependencies.default_policy());
        let schedule = self.schedule.unwrap_or_else(by_policy);
        Ok(Webhooks {
            journal: self.journal,
            notifier: WorkerNotifier::new(),
            settings: Arc::new(Settings {
                queue: self.queue,
                guard: self.guard,
                sender,
                signers: self.signers,
                schedule,
                keep: self.keep,
                keep_delivered: self.keep_delivered,
                dependencies,
                jitter: Jitter::new(self.seed),
            }),
        })
    }
}

impl<J> fmt::Debug for WebhooksBuilder<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhooksBuilder")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}
