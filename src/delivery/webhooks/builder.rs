use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use super::{
    Schedule, Sender, Webhooks,
    queue::{Settings, Signers},
};
use crate::{
    delivery::{dead_letter::KEEP, guard::Guard, worker::WorkerNotifier},
    error::ConfigError,
};

/// Builds [`Webhooks`].
#[must_use]
pub struct WebhooksBuilder<J> {
    journal: J,
    queue: Cow<'static, str>,
    guard: Guard,
    sender: Option<Sender>,
    signers: Signers,
    schedule: Schedule,
    keep: Duration,
}

impl<J> WebhooksBuilder<J> {
    pub(super) fn new(journal: J, signers: Signers) -> Self {
        Self {
            journal,
            queue: "webhooks".into(),
            guard: Guard::new(),
            sender: None,
            signers,
            schedule: Schedule::default(),
            keep: KEEP,
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

    /// Sets the schedule: five deliveries by default.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Sets how long a dead letter is kept: 30 days by default.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
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
        Ok(Webhooks {
            journal: self.journal,
            notifier: WorkerNotifier::new(),
            settings: Arc::new(Settings {
                queue: self.queue,
                guard: self.guard,
                sender,
                signers: self.signers,
                schedule: self.schedule,
                keep: self.keep,
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
