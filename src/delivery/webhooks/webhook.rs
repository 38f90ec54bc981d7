use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use http::HeaderMap;
use serde::{Deserialize, Serialize};

use super::UserHeaders;
use crate::{
    delivery::{redact, stored_message::StoredMessage},
    store::journal::{Entry, NewEntry, Priority},
};

/// The time within which an event is delivered.
pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// An event and its target.
#[derive(Clone)]
#[must_use]
pub struct Webhook {
    pub(super) url: String,
    pub(super) body: Bytes,
    label: String,
    pub(super) owner: String,
    pub(super) content_type: Option<String>,
    pub(super) headers: UserHeaders,
    priority: Priority,
    pub(super) order: Option<String>,
}

impl Webhook {
    /// Creates an event in JSON for this URL.
    pub fn new(url: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self {
            url: url.into(),
            body: body.into(),
            label: String::new(),
            owner: String::new(),
            content_type: None,
            headers: UserHeaders::default(),
            priority: Priority::Normal,
            order: None,
        }
    }

    /// Sets the label for lists and logs: the event's type.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Sets the owner of the webhook, by which [`Webhooks::builder_with`](super::Webhooks::builder_with)
    /// chooses a signer.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into();
        self
    }

    /// Sets the type of the body, `application/json` by default.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// Adds headers. Credentials among them are refused unless the journal is
    /// [sealed](crate::store::journal::Journal::is_sealed).
    pub fn headers(mut self, headers: UserHeaders) -> Self {
        self.headers = headers;
        self
    }

    /// Sets the priority among the events for one target.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Delivers the events for one target that have the same key one after the other, as they were sent:
    /// one that waits for its next delivery holds up those after it, until it is delivered or a dead
    /// letter. A more urgent one comes first; give all of a key the same priority. An event that is
    /// redriven comes when it is redriven.
    ///
    /// Keys share four lanes for each target, so that one key may hold up a part of the others of its
    /// target. Events without a key wait for none.
    pub fn order(mut self, key: impl Into<String>) -> Self {
        self.order = Some(key.into());
        self
    }

    /// Returns the entry of this event, unchecked and without a lane.
    pub(crate) fn into_entry(self, queue: impl Into<Cow<'static, str>>) -> NewEntry {
        let mut headers = HeaderMap::new();
        self.headers.apply(&mut headers);
        let message = StoredMessage {
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
            ..NewEntry::new(queue, message.encode())
        }
    }
}

opaque_debug! {
    /// Shows neither body, path nor headers.
    Webhook, self, label = self.label, bytes = self.body.len()
}

/// Returns the URL of an entry, if it is a webhook.
pub(super) fn url_of(entry: Entry) -> Option<String> {
    let message = StoredMessage::<Meta>::decode(entry.payload)?;
    Some(message.meta.url)
}

/// The stored part of a webhook beside headers and body. The message's id is the entry's.
#[derive(Serialize, Deserialize)]
pub(super) struct Meta {
    pub(super) url: String,
    pub(super) content_type: Option<String>,
}
