use http::Response;

use super::{Replay, ReplayId, document::rfc3339, request::Stored};
use crate::{
    delivery::{
        dead_letter::{reason, record_dead_letter},
        redact::is_credential,
        webhooks::{SendError, UserHeaders, Webhook},
    },
    http::digest::Digest,
    store::{
        StoreError,
        journal::{Dedup, Entry, Journal, NewEntry, Status, Timestamp},
    },
    telemetry,
};

/// Larger replies are not sent along: callers can ask for them.
const MAX_RESULT: usize = 64 * 1024;

/// The end of a replay.
pub(crate) struct Ended<'a> {
    pub(crate) status: Status,
    pub(crate) reply: Option<&'a Response<bytes::Bytes>>,
    pub(crate) error: Option<&'a str>,
}

/// The event that a callback is told.
pub(crate) struct Event<'a> {
    pub(crate) name: &'static str,
    pub(crate) timestamp: &'a str,
    pub(crate) id: ReplayId,
    pub(crate) request_id: Option<&'a str>,
    pub(crate) function: &'a str,
    pub(crate) attempts: u32,
    pub(crate) queued_at: Timestamp,
    pub(crate) ended: &'a Ended<'a>,
}

impl Event<'_> {
    /// Returns the reply's body, if it can be sent along.
    pub(crate) fn body(&self) -> Option<&[u8]> {
        let body = self.ended.reply?.body();
        (!body.is_empty() && body.len() <= MAX_RESULT).then_some(&**body)
    }
}

impl<J: Journal + Clone> Replay<J> {
    /// Checks whether a callback would be taken.
    pub(super) fn check_callback(&self, url: &str, headers: &UserHeaders) -> Result<(), String> {
        let Some(webhooks) = &self.state.webhooks else {
            return Err("Callbacks are not offered here.".to_owned());
        };
        let webhook = Webhook::new(url, "").headers(headers.clone());
        // Its headers are written down with the request.
        webhooks
            .entry_for(&self.journal, webhook)
            .map(drop)
            .map_err(|error| match error {
                // Without its own words before it.
                SendError::Target(error) => format!("The callback: {error}"),
                SendError::Invalid(error) => error.to_string(),
                SendError::Journal(error) => error.to_string(),
            })
    }

    /// Returns the entry of the callback of a request, if it has one.
    pub(super) fn callback(
        &self,
        entry: &Entry,
        stored: &Stored,
        ended: &Ended<'_>,
    ) -> Result<Option<NewEntry>, Unsendable> {
        let Some(callback) = &stored.meta.callback else {
            return Ok(None);
        };
        let event = match ended.status {
            Status::Completed => "replay.completed",
            Status::Expired => "replay.expired",
            _ => "replay.failed",
        };
        let timestamp = rfc3339(std::time::SystemTime::now().into());
        let document = self.state.settings.dialect.event(&Event {
            name: event,
            timestamp: &timestamp,
            id: ReplayId(entry.id),
            request_id: stored.meta.request_id.as_deref(),
            function: &entry.label,
            attempts: entry.attempts,
            queued_at: entry.queued_at,
            ended,
        });
        let webhook = Webhook::new(callback.url.clone(), document.unwrap_or_default())
            .owner(entry.owner.clone())
            .label(event);
        let sealed = self.journal.is_sealed();
        // The process that accepted the callback may have had other settings.
        let unsendable = |why| {
            let kept = callback.headers.iter();
            let kept = kept.filter(|(name, _)| sealed || !is_credential(name));
            let kept = UserHeaders::new(kept.map(|(n, v)| (n, v))).unwrap_or_default();
            let webhook = webhook.clone().headers(kept);
            let letter = Box::new(webhook.into_entry(callback.queue.clone()));
            Err(Unsendable { letter, why })
        };
        let Some(webhooks) = &self.state.webhooks else {
            return unsendable(reason::NO_CALLBACKS);
        };
        let Ok(headers) = UserHeaders::new(callback.headers.iter().map(|(n, v)| (n, v))) else {
            return unsendable(reason::BAD_HEADERS);
        };
        match webhooks.entry_for(&self.journal, webhook.clone().headers(headers)) {
            Ok(entry) => Ok(Some(entry)),
            Err(SendError::Target(_)) => unsendable(reason::BAD_TARGET),
            Err(_) => unsendable(reason::BAD_HEADERS),
        }
    }

    /// Dead-letters a callback: once for each end of a replay, however often this is called.
    pub(super) async fn bury_callback(
        &self,
        entry: &Entry,
        unsendable: Unsendable,
    ) -> Result<(), StoreError> {
        let Unsendable { mut letter, why } = unsendable;
        let mut digest = Digest::new("callback");
        digest.part(entry.id.as_bytes());
        digest.part(u64::from(entry.redrives).to_le_bytes());
        letter.dedup = Some(Dedup {
            key: digest.into(),
            fingerprint: Digest::new("callback").into(),
        });
        let queue = letter.queue.clone();
        let keep = self.state.settings.keep_failed;
        match record_dead_letter(&self.journal, *letter, 0, reason::failed(why, keep)).await {
            Ok(_) => telemetry::callback_buried(&queue, entry.id, why),
            Err(error) => {
                telemetry::journal_trouble("dead_letter", error.kind().as_str());
                return Err(error);
            }
        }
        Ok(())
    }
}

/// A callback that was promised and can't be sent.
pub(super) struct Unsendable {
    letter: Box<NewEntry>,
    why: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        delivery::replay::{dialect::Description, request::Callback},
        http::headers::IDEMPOTENCY_KEY,
        server::dialect::Scope,
        store::{
            MemoryStore,
            journal::{LeaseRequest, Query},
        },
    };

    /// A worker may die before the journal knows how the replay ended, and the next one repeats it.
    #[tokio::test(start_paused = true)]
    async fn w_8_q_1_one_end_is_one_letter() {
        let store = MemoryStore::new();
        let replay = Replay::builder(store.clone(), Scope::new(|_| None::<&str>))
            .build()
            .unwrap();
        let headers = UserHeaders::new([("x-access-key", "s3cret"), ("x-tenant", "acme")]);
        let callback = Callback::new("https://a.example".into(), &headers.unwrap(), "hooks");
        let request = http::Request::post("/").body(()).unwrap();
        let words = Description::default();
        let stored = Stored::new(
            &request,
            "".into(),
            "WHY",
            words,
            &IDEMPOTENCY_KEY,
            Some(callback),
        );
        let new = NewEntry::new("replay", stored.encode());
        store.enqueue(new).await.unwrap();
        let want = LeaseRequest::new("replay", "", 1, std::time::Duration::from_secs(1));
        let mut entry = store.lease(want).await.unwrap().remove(0);
        let ended = Ended {
            status: Status::Failed,
            reply: None,
            error: Some("timeout"),
        };
        for expected in [1, 1, 2, 2] {
            entry.redrives = expected - 1;
            let unsendable = replay.callback(&entry, &stored, &ended).err().unwrap();
            let buried = replay.bury_callback(&entry, unsendable).await;
            assert!(buried.is_ok());
            let letters = store.list(Query::new("hooks", 9)).await.unwrap();
            assert_eq!(letters.len(), expected as usize);
            assert_eq!(letters[0].status, Status::Failed);
            // J-13: this journal is not sealed.
            let letter = store.find(letters[0].id).await.unwrap().unwrap();
            let payload = String::from_utf8_lossy(&letter.payload).into_owned();
            assert!(payload.contains("acme") && !payload.contains("s3cret"));
        }
    }
}
