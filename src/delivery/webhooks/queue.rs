use std::{borrow::Cow, sync::Arc, time::Duration};

use super::{
    Schedule, SendError, Sender, Signer, UserHeaders, Webhook, WebhookHandler, WebhooksBuilder,
    endpoint::{self, Health, Rates},
    send,
};
use crate::{
    backoff::Jitter,
    delivery::{
        guard::{Guard, Target},
        redact,
        worker::{WorkerBuilder, WorkerNotifier},
    },
    dependency::Dependencies,
    error::ConfigError,
    store::{
        StoreError, StoreErrorKind,
        journal::{Enqueued, EntryId, Journal, NewEntry},
    },
};

/// The largest body of an event.
const MAX_BODY: usize = 1 << 20;

/// Returns the signer of an owner.
pub(super) type Signers = Arc<dyn Fn(&str) -> Option<Signer> + Send + Sync>;

/// A queue of webhooks. See the [module docs](super).
///
/// # Clone
///
/// Clones share the journal and the connections.
#[derive(Clone)]
pub struct Webhooks<J> {
    pub(super) journal: J,
    pub(super) settings: Arc<Settings>,
    pub(super) notifier: WorkerNotifier,
}

pub(super) struct Settings {
    pub(super) queue: Cow<'static, str>,
    pub(super) guard: Guard,
    pub(super) sender: Sender,
    pub(super) signers: Signers,
    pub(super) schedule: Schedule,
    pub(super) keep: Duration,
    pub(super) keep_delivered: Duration,
    pub(super) dependencies: Dependencies,
    pub(super) health: Health,
    pub(super) rates: Rates,
    pub(super) jitter: Jitter,
}

impl<J: Journal + Clone> Webhooks<J> {
    /// Returns a builder for webhooks that this signer signs.
    pub fn builder(journal: J, signer: Signer) -> WebhooksBuilder<J> {
        Self::builder_with(journal, move |_| Some(signer.clone()))
    }

    /// Returns a builder for webhooks that the signer of their owner signs. An event whose owner has
    /// none becomes a dead letter.
    pub fn builder_with(
        journal: J,
        signers: impl Fn(&str) -> Option<Signer> + Send + Sync + 'static,
    ) -> WebhooksBuilder<J> {
        WebhooksBuilder::new(journal, Arc::new(signers))
    }

    /// Queues an event for delivery. The id is the `webhook-id` that the receiver sees.
    ///
    /// # Errors
    ///
    /// The event is not allowed, or the journal failed.
    pub async fn send(&self, webhook: Webhook) -> Result<EntryId, SendError> {
        let entry = self.entry(webhook)?;
        let enqueued = self.journal.enqueue(entry).await;
        let enqueued = enqueued.map_err(SendError::Journal)?;
        self.notifier.wake();
        match enqueued {
            Enqueued::New(entry) | Enqueued::Existing(entry) => Ok(entry.id),
            // A journal of the user's that compares what no one asked it to compare.
            Enqueued::Mismatch => {
                let message = "an entry without a deduplication key can't mismatch";
                let error = StoreError::new(StoreErrorKind::Corrupt, message);
                Err(SendError::Journal(error))
            }
            Enqueued::Full => {
                let error = StoreError::new(StoreErrorKind::Full, "the queue is full");
                Err(SendError::Journal(error))
            }
        }
    }

    /// Returns the event as an entry, for the outbox of another settlement or for a transaction of
    /// your own.
    ///
    /// # Errors
    ///
    /// The event is not allowed.
    pub fn entry(&self, webhook: Webhook) -> Result<NewEntry, SendError> {
        self.entry_for(&self.journal, webhook)
    }

    /// Returns the event as an entry that another journal stores first.
    pub(crate) fn entry_for(&self, journal: &J, webhook: Webhook) -> Result<NewEntry, SendError> {
        let target =
            Target::parse(&webhook.url, &self.settings.guard).map_err(SendError::Target)?;
        check(&webhook, journal.is_sealed()).map_err(SendError::Invalid)?;
        Ok(NewEntry {
            lane: endpoint::lane(&target, webhook.order.as_deref()),
            ..webhook.into_entry(self.settings.queue.clone())
        })
    }

    pub(crate) fn queue(&self) -> &str {
        &self.settings.queue
    }

    /// Returns a worker that delivers the events. Any number may run, in any process.
    ///
    /// It queues an alert with each dead letter: run a worker of
    /// [alerts](crate::delivery::dead_letter::DeadLetters::alerts), too.
    pub fn worker(&self) -> WorkerBuilder<J, WebhookHandler<J>> {
        let queue = self.settings.queue.clone();
        WorkerBuilder::new(self.journal.clone(), queue, self.handler())
            .notifier(self.notifier.clone())
            .dependencies(&self.settings.dependencies)
    }

    pub(super) fn handler(&self) -> WebhookHandler<J> {
        WebhookHandler::new(Arc::clone(&self.settings), self.journal.clone())
    }
}

/// Refuses an event that can't be sent, or that must not be stored.
fn check(webhook: &Webhook, sealed: bool) -> Result<(), ConfigError> {
    let (length, allowed) = (webhook.body.len(), "at most 1048576 bytes");
    ConfigError::within("webhook.body", length, 0..=MAX_BODY, allowed)?;
    if !redact::fits(&webhook.owner) {
        let value = format_args!("{} characters", webhook.owner.chars().count());
        let allowed = "at most 255, without NUL";
        return Err(ConfigError::new(None, "webhook.owner", value, allowed));
    }
    if !sealed {
        refuse_credentials(&webhook.headers)?;
    }
    if let Some(content_type) = &webhook.content_type {
        send::content_type(content_type)?;
    }
    Ok(())
}

fn refuse_credentials(headers: &UserHeaders) -> Result<(), ConfigError> {
    match headers.iter().find(|(name, _)| redact::is_credential(name)) {
        None => Ok(()),
        Some((name, _)) => Err(ConfigError::new(
            None,
            "webhook.headers",
            format_args!("{name:?}"),
            "credentials only in a sealed journal (`Sealed`)",
        )),
    }
}

opaque_debug! { Webhooks<J>, self, queue = self.settings.queue, schedule = self.settings.schedule }
