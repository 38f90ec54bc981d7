use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

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
        journal::{Enqueued, EntryId, Journal, NewEntry, SharedPayload},
    },
};

/// The largest body of an event.
const MAX_BODY: usize = 1 << 20;

/// The most events, and bytes of their bodies, that are queued at once.
const AT_ONCE: usize = 1000;
const BYTES_AT_ONCE: usize = 32 << 20;

/// The smallest body that is worth a row of its own.
const WORTH_SHARING: usize = 256;

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
        sent(enqueued)
    }

    /// Queues many events in a few commits: one for each endpoint that listens to it, say. A body that
    /// several of them have is stored once. A commit takes up to 1,000 events or 32 MiB of bodies, which is
    /// also what a call copies at a time.
    ///
    /// The answers are those of [`send`](Self::send), in the order of the events: one that is not allowed
    /// holds up no other. When the journal fails, the events that are left are not tried; those whose
    /// error [may have happened](StoreError::may_have_happened) may be queued.
    ///
    /// With a journal in PostgreSQL, update all workers before the first call: those of the version before
    /// can't read an event whose body is [shared](SharedPayload), and use up its attempts.
    pub async fn send_many(&self, webhooks: Vec<Webhook>) -> Vec<Result<EntryId, SendError>> {
        let shared = shared_bodies(&webhooks);
        let mut answers = Vec::with_capacity(webhooks.len());
        let mut webhooks = webhooks.into_iter().zip(shared).peekable();
        while webhooks.peek().is_some() {
            let (mut entries, mut places, mut bytes) = (Vec::new(), Vec::new(), 0);
            while entries.len() < AT_ONCE
                && bytes < BYTES_AT_ONCE
                && let Some((webhook, shared)) = webhooks.next()
            {
                bytes += webhook.body.len();
                let place = answers.len();
                answers.push(self.entry(webhook).map(|entry| {
                    let id = entry.id;
                    places.push(place);
                    entries.push(NewEntry { shared, ..entry });
                    id
                }));
            }
            match self.journal.enqueue_many(entries).await {
                Ok(enqueued) => {
                    let mut enqueued = enqueued.into_iter();
                    for place in places {
                        answers[place] = enqueued.next().map_or_else(unanswered, sent);
                    }
                }
                Err(error) => {
                    let (kind, error) = (error.kind(), Arc::new(error));
                    let failed = |message| {
                        let error = Arc::clone(&error);
                        StoreError::new(kind, message).because(error)
                    };
                    for place in places {
                        let error = failed("events that were queued together failed").in_doubt();
                        answers[place] = Err(SendError::Journal(error));
                    }
                    let left = webhooks
                        .by_ref()
                        .map(|_| failed("events before this one failed"));
                    answers.extend(left.map(|error| Err(SendError::Journal(error))));
                }
            }
            self.notifier.wake();
        }
        answers
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

/// Returns the error of an event that a journal of the user's did not answer.
fn unanswered() -> Result<EntryId, SendError> {
    let message = "the journal answered for fewer entries than it was given";
    let error = StoreError::new(StoreErrorKind::Corrupt, message).in_doubt();
    Err(SendError::Journal(error))
}

/// Reads what became of an event.
fn sent(enqueued: Enqueued) -> Result<EntryId, SendError> {
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

/// Returns for each event the body that it shares with others. A body is the end of the entry's payload.
fn shared_bodies(webhooks: &[Webhook]) -> Vec<Option<SharedPayload>> {
    let mut by_body: HashMap<&[u8], Vec<usize>> = HashMap::new();
    for (place, webhook) in webhooks.iter().enumerate() {
        if webhook.body.len() >= WORTH_SHARING {
            by_body.entry(&webhook.body).or_default().push(place);
        }
    }
    let mut shared = vec![None; webhooks.len()];
    for places in by_body.into_values().filter(|places| places.len() > 1) {
        let body = SharedPayload::new(webhooks[places[0]].body.clone());
        for place in places {
            shared[place] = Some(body.clone());
        }
    }
    shared
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
