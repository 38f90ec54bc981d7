//! Events for others' servers, delivered until they arrive.
//!
//! [`Webhooks::send`] writes an event down and returns; a [worker](Webhooks::worker) delivers it,
//! signed, within what the [guard](super::guard) allows, on the [schedule](Schedule) of up
//! to a day, across restarts. Each target has a lane of its own, so that one that hangs does not
//! hold up the others. What can't be delivered becomes a [dead letter](super::dead_letter).
//!
//! ```
//! use std::time::Duration;
//! use tower_reprise::{
//!     delivery::{guard::Guard, webhooks::{Signer, Webhook, Webhooks}},
//!     store::{MemoryStore, journal::{Journal, Status}},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let app = axum::Router::new().route("/orders", axum::routing::post(|| async {}));
//! # let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let url = format!("http://{}/orders", listener.local_addr()?);
//! # tokio::spawn(async move { axum::serve(listener, app).await });
//! let journal = MemoryStore::new();
//! let signer = Signer::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?;
//! let webhooks = Webhooks::builder(journal.clone(), signer)
//!     .guard(Guard::new().allow_http().allow("127.0.0.1")?) // a receiver on this machine
//!     .build()?;
//! let worker = webhooks.worker().start()?;
//!
//! let event = Webhook::new(url, r#"{"event":"order.paid"}"#).label("order.paid");
//! let id = webhooks.send(event).await?;
//! # while journal.find(id).await?.is_some_and(|entry| !entry.status.is_over()) {
//! #     tokio::time::sleep(Duration::from_millis(1)).await;
//! # }
//! assert_eq!(journal.find(id).await?.map(|entry| entry.status), Some(Status::Completed));
//! worker.shutdown(Duration::from_secs(10)).await;
//! # Ok(())
//! # }
//! ```

mod alert;
mod builder;
mod handler;
mod headers;
mod key;
mod outcome;
mod schedule;
mod send;
mod sign;
pub mod verify;

use std::{borrow::Cow, error::Error, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::HeaderMap;
use serde::{Deserialize, Serialize};

pub use self::{
    alert::WebhookAlert,
    builder::WebhooksBuilder,
    handler::Deliveries,
    headers::UserHeaders,
    outcome::{Failure, Outcome},
    schedule::Schedule,
    send::{Delivery, Sender, SenderBuilder},
    sign::{MessageId, SignedHeaders, Signer},
};
use super::{
    guard::{Forbidden, Guard, Target},
    redact,
    stored_message::Parcel,
    worker::{Worker, WorkerNotifier},
};
use crate::{
    error::ConfigError,
    store::{
        StoreError,
        journal::{Enqueued, EntryId, Journal, NewEntry, Priority},
    },
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The largest body of an event.
const MAX_BODY: usize = 1 << 20;

/// An event, and where it goes.
#[derive(Clone)]
#[must_use]
pub struct Webhook {
    url: String,
    body: Bytes,
    label: String,
    owner: String,
    content_type: Option<String>,
    headers: UserHeaders,
    priority: Priority,
}

impl Webhook {
    /// An event in JSON for this URL.
    pub fn new(url: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self {
            url: url.into(),
            body: body.into(),
            label: String::new(),
            owner: String::new(),
            content_type: None,
            headers: UserHeaders::default(),
            priority: Priority::Normal,
        }
    }

    /// What it is, for lists and logs: the event's type.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Whose webhook it is. Signers can be told apart by it.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into();
        self
    }

    /// What the body is, if not `application/json`.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// With these headers. Credentials among them are refused unless the journal is
    /// [sealed](crate::store::journal::Journal::is_sealed).
    pub fn headers(mut self, headers: UserHeaders) -> Self {
        self.headers = headers;
        self
    }

    /// What goes first among the events for one target.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// As it is written down, whether or not it can be sent.
    pub(crate) fn into_entry(self, queue: impl Into<Cow<'static, str>>) -> NewEntry {
        let mut headers = HeaderMap::new();
        self.headers.apply(&mut headers);
        let parcel = Parcel {
            meta: Meta {
                url: self.url,
                content_type: self.content_type,
            },
            headers,
            body: self.body,
        };
        NewEntry {
            owner: self.owner,
            label: redact::cut(&self.label),
            priority: self.priority,
            ttl: DAY,
            ..NewEntry::new(queue, parcel.encode())
        }
    }
}

/// Shows neither body, path nor headers.
impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook")
            .field("label", &self.label)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// Why an event was not taken.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotSent {
    /// Its target is not allowed.
    Target(Forbidden),
    /// Something else about it is not.
    Invalid(ConfigError),
    /// It could not be written down.
    Journal(StoreError),
}

impl fmt::Display for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("webhook not sent: ")?;
        match self {
            Self::Target(error) => error.fmt(f),
            Self::Invalid(error) => error.fmt(f),
            Self::Journal(error) => error.fmt(f),
        }
    }
}

impl Error for NotSent {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Target(error) => Some(error),
            Self::Invalid(error) => Some(error),
            Self::Journal(error) => Some(error),
        }
    }
}

/// What is kept of a webhook next to headers and body. The message's id is the entry's.
#[derive(Serialize, Deserialize)]
struct Meta {
    url: String,
    content_type: Option<String>,
}

type Signers = Arc<dyn Fn(&str) -> Option<Signer> + Send + Sync>;

/// Sends events to others' servers. See the [module docs](self).
///
/// # Clone
///
/// Clones share the journal and the connections.
#[derive(Clone)]
pub struct Webhooks<J> {
    journal: J,
    shared: Arc<Shared>,
    wake: WorkerNotifier,
}

struct Shared {
    queue: Cow<'static, str>,
    guard: Guard,
    sender: Sender,
    signers: Signers,
    schedule: Schedule,
    keep: Duration,
}

impl<J: Journal + Clone> Webhooks<J> {
    /// Signs each event by this signer.
    pub fn builder(journal: J, signer: Signer) -> WebhooksBuilder<J> {
        Self::builder_with(journal, move |_| Some(signer.clone()))
    }

    /// Signs each event by the signer of its owner. One without a signer is not delivered.
    pub fn builder_with(
        journal: J,
        signers: impl Fn(&str) -> Option<Signer> + Send + Sync + 'static,
    ) -> WebhooksBuilder<J> {
        WebhooksBuilder::new(journal, Arc::new(signers))
    }

    /// Writes an event down, to be delivered. Its id is the message's id with the receiver.
    ///
    /// # Errors
    ///
    /// The event is not allowed, or the journal failed.
    pub async fn send(&self, webhook: Webhook) -> Result<EntryId, NotSent> {
        let entry = self.entry(webhook)?;
        let enqueued = self
            .journal
            .enqueue(entry)
            .await
            .map_err(NotSent::Journal)?;
        self.wake.wake();
        match enqueued {
            Enqueued::New(entry) | Enqueued::Existing(entry) => Ok(entry.id),
            Enqueued::Mismatch => Err(NotSent::Invalid(ConfigError::new(
                None,
                "webhook.id",
                "used",
                "an id of its own",
            ))),
        }
    }

    /// The event as an entry of the journal: for the outbox of something else, or for a
    /// transaction of your own.
    ///
    /// # Errors
    ///
    /// The event is not allowed.
    pub fn entry(&self, webhook: Webhook) -> Result<NewEntry, NotSent> {
        self.entry_for(&self.journal, webhook)
    }

    /// The same, for what is written to that journal first.
    pub(crate) fn entry_for(&self, journal: &J, webhook: Webhook) -> Result<NewEntry, NotSent> {
        let target = Target::parse(&webhook.url, &self.shared.guard).map_err(NotSent::Target)?;
        if webhook.body.len() > MAX_BODY {
            let length = webhook.body.len();
            let error = ConfigError::new(None, "webhook.body", length, "at most 1048576 bytes");
            return Err(NotSent::Invalid(error));
        }
        if !redact::fits(&webhook.owner) {
            let length = webhook.owner.chars().count();
            let value = format!("{length} characters");
            let error = ConfigError::new(None, "webhook.owner", value, "at most 255, without NUL");
            return Err(NotSent::Invalid(error));
        }
        if !journal.is_sealed() {
            refuse_credentials(&webhook.headers).map_err(NotSent::Invalid)?;
        }
        // What can't be sent is not written down.
        let _ = Delivery::new(target.clone(), MessageId::random(), Bytes::new())
            .content_type(
                webhook
                    .content_type
                    .as_deref()
                    .unwrap_or("application/json"),
            )
            .map_err(NotSent::Invalid)?;
        Ok(NewEntry {
            lane: target.to_string(),
            ..webhook.into_entry(self.shared.queue.clone())
        })
    }

    pub(crate) fn queue(&self) -> &str {
        &self.shared.queue
    }

    /// A worker that delivers them. Without one, events wait; any number will do, in any process.
    ///
    /// With each event that it gives up an alert is queued: start a worker of
    /// [alerts](crate::delivery::dead_letter::DeadLetters::alerts) too, which is what takes them
    /// from the journal.
    pub fn worker(&self) -> Worker<J, Deliveries> {
        let handler = Deliveries {
            shared: Arc::clone(&self.shared),
        };
        let queue = self.shared.queue.clone();
        Worker::builder(self.journal.clone(), queue, handler).woken_by(self.wake.clone())
    }
}

/// Credentials are not written down in the clear.
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

impl<J> fmt::Debug for Webhooks<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhooks")
            .field("queue", &self.shared.queue)
            .field("schedule", &self.shared.schedule)
            .finish_non_exhaustive()
    }
}
