//! The journaling of a request, and its answer.

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header::LOCATION};

use super::{
    Replay, ReplayId, ReplayState, ReplayStatus,
    accept::MAINTENANCE,
    control::reply_of,
    dialect::{Accepted, QueueReason, ReplayOptions},
    request::{Callback, Stored},
};
use crate::{
    call::Suspended,
    delivery::{redact, webhooks::Webhooks},
    http::problem::Problem,
    server::dialect::OperationId,
    store::journal::{Dedup, Enqueued, Entry, Journal, NewEntry},
    telemetry,
};

impl<J: Journal + Clone> Replay<J> {
    /// Journals a request, and returns the answer. If its execution was suspended, the record waits for
    /// as long as the entry may, since no worker may come for longer than a lease.
    pub(super) async fn accept(
        &self,
        head: &Request<()>,
        body: Bytes,
        options: Box<ReplayOptions>,
        reason: QueueReason,
        suspended: Option<&Suspended>,
    ) -> Response<Bytes> {
        let hold_for = async |entry: &Entry| {
            if let (Some(suspended), false) = (suspended, entry.status.is_over()) {
                let time = entry.expires_at.since(entry.changed_at);
                suspended.hold_for(time).await;
            }
        };
        let entry = match self.entry(head, body.clone(), *options, &reason.code) {
            Ok(entry) => entry,
            Err(problem) => return self.reject(&body, &problem),
        };
        let payload = entry.payload.clone();
        match self.journal.enqueue(entry).await {
            Ok(Enqueued::New(entry)) => {
                hold_for(&entry).await;
                self.state.wake.wake();
                self.accepted(&body, Entry { payload, ..entry }, reason)
                    .await
            }
            Ok(Enqueued::Existing(entry)) => {
                hold_for(&entry).await;
                // The request as it was journaled, rather than this repeat of it.
                let whole = self.journal.find(entry.id).await.ok().flatten();
                self.accepted(&body, whole.unwrap_or(entry), reason).await
            }
            Ok(Enqueued::Mismatch) => self.conflict(head, &body).await,
            Ok(Enqueued::Full) => self.reject(&body, &Problem::REPLAY_FULL),
            Err(error) => {
                telemetry::journal_trouble("enqueue", error.kind().as_str());
                self.reject(&body, &Problem::REPLAY_UNAVAILABLE)
            }
        }
    }

    fn entry(
        &self,
        head: &Request<()>,
        body: Bytes,
        options: ReplayOptions,
        reason: &str,
    ) -> Result<NewEntry, Problem> {
        let ReplayState {
            settings,
            scope,
            webhooks,
            ..
        } = &*self.state;
        let owner = scope.owner(head).ok_or(Problem::REPLAY_ANONYMOUS)?;
        if !redact::fits(&owner) {
            let detail = "The caller's name is too long to be written down.";
            return Err(Problem::REPLAY_INVALID.detail(detail));
        }
        let dialect = self.dialect();
        let id = self.operation(&owner, head, &body)?;
        let dedup = id.map(|OperationId { key, fingerprint }| Dedup { key, fingerprint });
        let queue = webhooks.as_ref().map_or("", Webhooks::queue);
        let callback = options
            .callback
            .map(|(url, headers)| Callback::new(url, &headers, queue));
        let ttl = options.ttl.unwrap_or(settings.ttl);
        let mut description = dialect.describe(head, &body);
        let function = description.function.take();
        let function = function.unwrap_or_else(|| (settings.function)(head));
        let key_header = &dialect.key_header();
        let stored = Stored::new(head, body, reason, description, key_header, callback);
        Ok(NewEntry {
            lane: settings.lane(&owner, head),
            label: redact::cut(&function),
            version: stored.meta.version.clone(),
            reason: Some(redact::cut(reason)),
            owner,
            dedup,
            priority: options.priority,
            ttl: ttl.min(settings.longest_ttl),
            bounds: Some(settings.bounds),
            ..NewEntry::new(settings.queue.clone(), stored.encode())
        })
    }

    /// Answers a request that is in the journal, now or since before.
    pub(super) async fn accepted(
        &self,
        body: &[u8],
        entry: Entry,
        reason: QueueReason,
    ) -> Response<Bytes> {
        // It is in the journal, whether or not its position can be told.
        let status = match self.describe(&entry).await {
            Ok(status) => status,
            Err(_) => ReplayStatus::new(&entry, Stored::decode(entry.payload.clone()).as_ref()),
        };
        let by_switch = status.reason == MAINTENANCE;
        let accepted = Accepted {
            status,
            reply: reply_of(&entry),
            maintenance: self.maintenance.state().filter(|_| by_switch),
            details: reason.details,
        };
        let mut response = self.dialect().accepted(body, &accepted);
        let id = ReplayId(entry.id);
        let location = self.state.settings.location.as_deref();
        let location = location.map(|path| format!("{path}/{id}"));
        if let Some(location) = location.and_then(|path| HeaderValue::try_from(path).ok()) {
            response.headers_mut().insert(LOCATION, location);
        }
        response
    }
}
