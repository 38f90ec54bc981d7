use std::{borrow::Cow, collections::HashMap, ops::RangeInclusive, sync::Arc, time::Duration};

use super::{
    Schedule, Sender, Webhooks,
    endpoint::{Health, Rates},
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

/// The times after which an endpoint may be disabled.
const DISABLE_AFTER: RangeInclusive<Duration> =
    Duration::from_secs(60 * 60)..=Duration::from_secs(30 * 24 * 60 * 60);

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
    disable_after: Option<Duration>,
    rate: Option<u32>,
    rates: HashMap<String, u32>,
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
            disable_after: None,
            rate: None,
            rates: HashMap::new(),
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

    /// Disables an [`Endpoint`](super::Endpoint) to which no event was delivered for this long, an hour to 30 days, with a
    /// notice: off by default; five days are usual. Events for it become dead letters at once, of the
    /// cause `its endpoint is disabled`, until it is [enabled](Webhooks::enable) or
    /// [recovered](Webhooks::recover).
    ///
    /// The notice is an alert for a dead letter in the queue of this name and `.disabled`, whose label
    /// is scheme and authority and whose payload is the URL. It says so after restarts, too. To redrive or
    /// purge that letter is to enable the endpoint, but one whose letter was redriven is not disabled
    /// again before that is gone: purge it, or [enable](Webhooks::enable) the endpoint instead.
    pub fn disable_after(mut self, failing: Duration) -> Self {
        self.disable_after = Some(failing);
        self
    }

    /// Sets how many deliveries a second each worker makes to a target at most, 1 to 10,000: none is set
    /// by default. Up to a second's are made at once, as often as the worker
    /// [polls](crate::delivery::worker::WorkerBuilder::poll).
    pub fn rate(mut self, per_second: u32) -> Self {
        self.rate = Some(per_second);
        self
    }

    /// Sets the rate of one target, such as `https://shop.example`.
    pub fn rate_of(mut self, target: impl Into<String>, per_second: u32) -> Self {
        self.rates.insert(target.into(), per_second);
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
        if let Some(after) = self.disable_after {
            let allowed = "1 hour to 30 days";
            ConfigError::within("webhook.disable_after", after, DISABLE_AFTER, allowed)?;
        }
        let rates = Rates::new(self.rate, self.rates)?;
        Ok(Webhooks {
            journal: self.journal,
            notifier: WorkerNotifier::new(),
            settings: Arc::new(Settings {
                health: Health::new(&self.queue, self.disable_after),
                rates,
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

opaque_debug! { WebhooksBuilder<J>, self, queue = self.queue }
