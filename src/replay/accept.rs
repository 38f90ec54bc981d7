use std::{any::Any, future::Future, pin::pin};

use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION},
};
use http_body::Body;
use tower::{Service, ServiceExt, load_shed::error::Overloaded};

use super::{
    Replay, ReplayId, ReplayLater,
    options::Options,
    request::{Callback, Stored},
};
use crate::{
    classify::{IDEMPOTENCY_KEY, http::is_replayed},
    delivery::text,
    error::{BoxError, Refused, find},
    idempotency::digest::{Digest, fingerprint},
    problem::ProblemBody,
    store::journal::{Dedup, Enqueued, Entry, Journal, NewEntry, Status},
    telemetry,
    wire::{problem::Problem, read::Read},
};

pub(super) const MAINTENANCE: &str = "SERVER_MAINTENANCE";
const UNAVAILABLE: &str = "SERVICE_UNAVAILABLE";
const OVERLOADED: &str = "OVERLOADED";
const DEPENDENCY: &str = "DEPENDENCY_UNAVAILABLE";

/// A request that is to be journaled if it can't be served.
pub(super) struct Asked<S, J> {
    pub(super) service: S,
    pub(super) replay: Replay<J>,
    pub(super) head: Request<()>,
    pub(super) options: Options,
}

impl<S, J: Journal + Clone> Asked<S, J> {
    /// Serves the request, or journals it.
    #[allow(
        clippy::manual_async_fn,
        reason = "an async fn would keep its arguments twice"
    )]
    pub(super) fn answer<B, R>(
        self,
        body: B,
    ) -> impl Future<Output = Result<Response<ProblemBody<R>>, S::Error>> + Send
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send + 'static,
        B: Body + From<Bytes> + Send + 'static,
        B::Data: Send,
        B::Error: Send,
        R: Body<Data = Bytes> + Send + 'static,
    {
        async move {
            let limit = self.replay.shared.settings.request_limit;
            let mut read = Read::default();
            let body = match read.up_to(limit, pin!(body)).await {
                Ok(true) => read.joined(),
                Ok(false) => {
                    let detail = format!("At most {limit} bytes can be journaled.");
                    return Ok(refuse(&Problem::REPLAY_TOO_LARGE.detail(detail)));
                }
                Err(_) => return Ok(refuse(&Problem::UNREADABLE)),
            };
            if self.replay.maintenance.is_on() {
                return Ok(self
                    .replay
                    .accept(&self.head, body, self.options, MAINTENANCE)
                    .await);
            }
            // Kept aside, in case that it can't be served.
            let head = self.head.clone();
            let request = self.head.map(|()| B::from(body.clone()));
            let why = match self.service.oneshot(request).await {
                Ok(response) => match cannot_serve(&response) {
                    None => return Ok(response.map(ProblemBody::reply)),
                    Some(why) => why,
                },
                Err(error) => match cannot_call(&error) {
                    None => return Err(error),
                    Some(why) => why,
                },
            };
            Ok(self.replay.accept(&head, body, self.options, why).await)
        }
    }
}

/// Why a response is none, if it says that the request was not served and may be later.
pub(super) fn cannot_serve<R>(response: &Response<R>) -> Option<&'static str> {
    if let Some(ReplayLater(reason)) = response.extensions().get() {
        return Some(reason);
    }
    let unavailable = response.status() == StatusCode::SERVICE_UNAVAILABLE;
    // What comes from an idempotency store is final.
    (unavailable && !is_replayed(response.headers())).then_some(UNAVAILABLE)
}

/// Why there was no response, if the request did not get as far as being served.
pub(super) fn cannot_call<E: 'static>(error: &E) -> Option<&'static str> {
    let error: &BoxError = (error as &dyn Any).downcast_ref()?;
    if Refused::find(&**error).is_some() {
        return Some(DEPENDENCY);
    }
    find::<Overloaded>(&**error).map(|_| OVERLOADED)
}

fn refuse<R>(problem: &Problem) -> Response<ProblemBody<R>> {
    problem.response(false).map(Into::into)
}

impl<J: Journal + Clone> Replay<J> {
    /// Journals a request, and says so; or says that it could not.
    async fn accept<R>(
        &self,
        head: &Request<()>,
        body: Bytes,
        options: Options,
        reason: &str,
    ) -> Response<ProblemBody<R>> {
        let entry = match self.entry(head, body, options, reason) {
            Ok(entry) => entry,
            Err(problem) => return refuse(&problem),
        };
        let payload = entry.payload.clone();
        match self.journal.enqueue(entry).await {
            Ok(Enqueued::New(entry)) => {
                self.shared.wake.wake();
                self.accepted(Entry { payload, ..entry }).await
            }
            Ok(Enqueued::Existing(entry)) => {
                // As it came, rather than as it comes now.
                let whole = self.journal.find(entry.id).await.ok().flatten();
                self.accepted(whole.unwrap_or(entry)).await
            }
            Ok(Enqueued::Mismatch) => refuse(&Problem::REUSED),
            Err(error) => {
                telemetry::journal_trouble("enqueue", error.kind());
                refuse(&Problem::REPLAY_UNAVAILABLE)
            }
        }
    }

    fn entry(
        &self,
        head: &Request<()>,
        body: Bytes,
        options: Options,
        reason: &str,
    ) -> Result<NewEntry, Problem> {
        let super::Shared {
            settings,
            principal,
            ..
        } = &*self.shared;
        let owner = principal(head).ok_or(Problem::REPLAY_ANONYMOUS)?;
        if !text::fits(&owner) {
            let detail = "The caller's name is too long to be written down.";
            return Err(Problem::REPLAY_INVALID.detail(detail));
        }
        let key = head.headers().get(IDEMPOTENCY_KEY);
        let dedup = key.map(|key| {
            let mut digest = Digest::new("replay");
            digest.part(&owner);
            digest.part(head.method().as_str());
            digest.part(head.uri().path());
            digest.part(key.as_bytes());
            Dedup {
                key: digest.key(),
                fingerprint: fingerprint(head, &body),
            }
        });
        let callback = options
            .callback
            .map(|(url, headers)| Callback::new(url, &headers));
        let ttl = options.ttl.unwrap_or(settings.ttl);
        let stored = Stored::new(head, body, reason, callback);
        Ok(NewEntry {
            label: text::cut(&(settings.function)(head)),
            owner,
            dedup,
            priority: options.priority,
            ttl: ttl.min(settings.longest_ttl),
            ..NewEntry::new(settings.queue.clone(), stored.encode())
        })
    }

    /// The reply to a request that is in the journal, now or since before.
    async fn accepted<R>(&self, entry: Entry) -> Response<ProblemBody<R>> {
        // It is in the journal, whether or not it can be said how far.
        let status = match self.describe(&entry).await {
            Ok(status) => status,
            Err(_) => {
                super::ReplayStatus::new(&entry, Stored::decode(entry.payload.clone()).as_ref())
            }
        };
        let document = serde_json::to_vec(&status).unwrap_or_default();
        let mut response = Response::new(ProblemBody::from(Bytes::from(document)));
        *response.status_mut() = match entry.status {
            Status::Queued | Status::Processing => StatusCode::ACCEPTED,
            _ => StatusCode::OK,
        };
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let id = ReplayId(entry.id);
        let location = self.shared.settings.location.as_deref();
        let location = location.map(|path| format!("{path}/{id}"));
        if let Some(location) = location.and_then(|path| HeaderValue::try_from(path).ok()) {
            headers.insert(LOCATION, location);
        }
        response
    }
}
