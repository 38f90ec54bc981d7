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
    delivery::{redact, webhooks::Webhooks},
    http::problem::Problem,
    server::dialect::OperationId,
    store::{
        StoreError,
        journal::{Dedup, Enqueued, Entry, Journal, NewEntry, Query, Status},
    },
    telemetry,
};

impl<J: Journal + Clone> Replay<J> {
    /// Journals a request, and returns the answer.
    pub(super) async fn accept(
        &self,
        head: &Request<()>,
        body: Bytes,
        options: Box<ReplayOptions>,
        reason: QueueReason,
    ) -> Response<Bytes> {
        let entry = match self.entry(head, body.clone(), *options, &reason.code) {
            Ok(entry) => entry,
            Err(problem) => return self.reject(&body, &problem),
        };
        let payload = entry.payload.clone();
        let enqueued = match self.has_room(&entry).await {
            Ok(true) => self.journal.enqueue(entry).await,
            Ok(false) => return self.reject(&body, &Problem::REPLAY_FULL),
            Err(error) => Err(error),
        };
        match enqueued {
            Ok(Enqueued::New(entry)) => {
                self.state.wake.wake();
                self.accepted(&body, Entry { payload, ..entry }, reason)
                    .await
            }
            Ok(Enqueued::Existing(entry)) => {
                // The request as it was journaled, rather than this repeat of it.
                let whole = self.journal.find(entry.id).await.ok().flatten();
                self.accepted(&body, whole.unwrap_or(entry), reason).await
            }
            Ok(Enqueued::Mismatch) => self.conflict(head, &body).await,
            Err(error) => {
                telemetry::journal_trouble("enqueue", error.kind().as_str());
                self.reject(&body, &Problem::REPLAY_UNAVAILABLE)
            }
        }
    }

    /// Returns whether the queue has room for an entry, or has it already. Those that are accepted at
    /// the same moment may exceed the bounds by their number.
    async fn has_room(&self, entry: &NewEntry) -> Result<bool, StoreError> {
        let (in_all, per_scope) = self.state.settings.max_queued;
        let queue = &*self.state.settings.queue;
        let queued = self.journal.counts(queue).await?.of(Status::Queued);
        let is_full = queued >= u64::from(in_all)
            || (queued >= u64::from(per_scope) && {
                let query = Query {
                    owner: Some(entry.owner.clone()),
                    status: Some(Status::Queued),
                    ..Query::new(queue.to_owned(), per_scope)
                };
                self.journal.count(query).await? >= per_scope
            });
        Ok(match &entry.dedup {
            Some(dedup) if is_full => {
                let found = self.journal.find_duplicate(queue, dedup.key).await?;
                found.is_some()
            }
            _ => !is_full,
        })
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
            lane: settings.order.lane(&owner, head),
            label: redact::cut(&function),
            version: stored.meta.version.clone(),
            owner,
            dedup,
            priority: options.priority,
            ttl: ttl.min(settings.longest_ttl),
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
