use std::{any::Any, error::Error, future::Future, pin::pin, sync::Arc};

use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{CONTENT_LENGTH, LOCATION},
};
use http_body::Body;
use tower::{Service, ServiceExt, load_shed::error::Overloaded};

use super::{
    Replay, ReplayId, ReplayLater,
    builder::Settings,
    control::reply_of,
    dialect::{
        Accepted, Original, QueueReason, Rejected, ReplayFormat, ReplayOptions, ReplayRequest,
    },
    request::{Callback, Stored},
};
use crate::{
    call::{
        Effect, ReplayAttempt, ReplayKey, RetryError, RetryOutcome, Retryable,
        key::LONGEST_CONFIGURABLE,
    },
    classify::{Rules, http::is_replayed, network},
    delivery::{redact, webhooks::Webhooks},
    error::{BoxError, Refused, find},
    http::{
        BufferedBody, RequestBody,
        digest::Digest,
        problem::Problem,
        read::{Buffered, ReadError, buffer, read_whole},
    },
    server::{dialect::OperationId, idempotency::HandlerOutcome},
    store::journal::{Dedup, Enqueued, Entry, Journal, NewEntry},
    telemetry,
};

pub(super) const MAINTENANCE: &str = "SERVER_MAINTENANCE";
const UNAVAILABLE: &str = "SERVICE_UNAVAILABLE";
const OVERLOADED: &str = "OVERLOADED";
const DEPENDENCY: &str = "DEPENDENCY_UNAVAILABLE";

/// A request that is journaled if it can't be served, or that is about replays.
pub(super) struct ReplayableRequest<S, J> {
    pub(super) service: S,
    pub(super) replay: Replay<J>,
    pub(super) head: Request<()>,
    pub(super) asks: ReplayRequest,
}

impl<S, J: Journal + Clone> ReplayableRequest<S, J> {
    /// Serves the request, or journals it.
    #[allow(
        clippy::manual_async_fn,
        reason = "an async fn would keep its arguments twice"
    )]
    pub(super) fn answer<B, R>(
        self,
        body: B,
    ) -> impl Future<Output = Result<Response<BufferedBody<R>>, S::Error>> + Send
    where
        S: Service<Request<B::Rebuilt>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send + 'static,
        B: RequestBody + Send + 'static,
        B::Data: Send,
        B::Error: Send,
        B::Rebuilt: Send,
        R: Body + Send + 'static,
        R::Error: Send,
    {
        async move {
            let replay = self.replay;
            let limit = replay.state.settings.request_limit;
            let body = match read_whole(pin!(body), limit).await {
                Ok(body) => body,
                Err(ReadError::TooLarge) => {
                    let detail = format!("At most {limit} bytes can be journaled.");
                    let problem = Problem::REPLAY_TOO_LARGE.detail(detail);
                    return Ok(own(replay.reject(&[], &problem)));
                }
                Err(ReadError::Broken) => {
                    return Ok(own(replay.reject(&[], &Problem::UNREADABLE)));
                }
            };
            let options = match replay.options(&self.head, &body, self.asks).await {
                Ok(options) => options,
                Err(response) => return Ok(own(*response)),
            };
            let request = |head: Request<()>| head.map(|()| B::rebuilt(body.clone()));
            let closed = replay.is_closed_to(&self.head);
            let Some(options) = options else {
                if closed {
                    return Ok(own(replay.reject(&body, &replay.maintenance.problem())));
                }
                let response = self.service.oneshot(request(self.head)).await?;
                return Ok(response.map(BufferedBody::new));
            };
            if closed {
                let response = replay.accept(&self.head, body, options, MAINTENANCE.into());
                return Ok(own(response.await));
            }
            let mut served = self.head.clone();
            let head = self.head;
            let attempt = replay.handed_over(&head, &body);
            served.extensions_mut().insert(attempt);
            let reason = match self.service.oneshot(request(served)).await {
                Ok(response) => match is_journaled(&replay.state.settings, &response) {
                    // Not of an execution of its own: it may have been journaled before.
                    None if is_replayed(response.headers()) => {
                        return Ok(match replay.journaled(&head, &body).await {
                            Some(told) => own(told),
                            None => replay.served(&options, response).await,
                        });
                    }
                    None if response.status() == StatusCode::CONFLICT => {
                        return Ok(replay.conflicting(&head, &body, response).await);
                    }
                    None => return Ok(replay.served(&options, response).await),
                    Some(code) => replay.reason(code, response).await,
                },
                Err(error) => match cannot_call(&error as &dyn Any) {
                    None => return Err(error),
                    Some(code) => code.into(),
                },
            };
            Ok(own(replay.accept(&head, body, options, reason).await))
        }
    }
}

/// Returns an answer of the layer's own.
fn own<R: Body>(response: Response<Bytes>) -> Response<BufferedBody<R>> {
    response.map(BufferedBody::from)
}

/// Returns why a request was not served, if its response says so and it may be served later: the
/// service is unavailable, or the handler asks for a replay.
pub(super) fn cannot_serve<R>(response: &Response<R>) -> Option<&'static str> {
    if let Some(ReplayLater(reason)) = response.extensions().get() {
        return Some(reason);
    }
    let unavailable = response.status() == StatusCode::SERVICE_UNAVAILABLE;
    (unavailable && !is_final(response)).then_some(UNAVAILABLE)
}

/// Returns whether a reply decides its request whatever its status: one of an idempotency store,
/// and one after an attempt that may have been served.
fn is_final<R>(response: &Response<R>) -> bool {
    // Attempts that got a 503 too are as good as this one.
    let before = || RetryOutcome::of(response).map(RetryOutcome::before);
    let served = || before().is_some_and(|effect| effect > Effect::Unproven);
    is_replayed(response.headers()) || served()
}

/// Returns why a request is to be journaled: it was not served, or the limits of the service, or of
/// what that calls, kept it from having any effect.
fn is_journaled<R>(settings: &Settings, response: &Response<R>) -> Option<&'static str> {
    let (status, extensions) = (response.status(), response.extensions());
    if extensions.get::<ReplayLater>().is_none() && !settings.statuses.contains(&status) {
        return None;
    }
    cannot_serve(response).or_else(|| {
        let known = extensions.get::<HandlerOutcome>();
        let known = known.map(|outcome| *outcome == HandlerOutcome::NoEffect);
        let known = known.or_else(|| Some(*extensions.get::<Effect>()? == Effect::None));
        let busy = status == StatusCode::TOO_MANY_REQUESTS;
        let code = if busy { OVERLOADED } else { DEPENDENCY };
        (known.unwrap_or(busy) && !is_final(response)).then_some(code)
    })
}

/// Returns why there is no response, if the error says that the request was not served.
pub(super) fn cannot_call(error: &dyn Any) -> Option<&'static str> {
    let error: &BoxError = error.downcast_ref()?;
    let retried = find::<RetryError>(&**error);
    if retried.is_some_and(|retried| retried.outcome().before() > Effect::Unproven) {
        return None;
    }
    if Refused::find(&**error).is_some() {
        return Some(DEPENDENCY);
    }
    if find::<Overloaded>(&**error).is_some() {
        return Some(OVERLOADED);
    }
    // There was no connection, and one may be possible later.
    let last = retried.and_then(Error::source).unwrap_or(&**error);
    let verdict = network::classify(&Rules::standard(), last);
    let later = verdict.never_sent && verdict.retry != Retryable::Never;
    later.then_some(DEPENDENCY)
}

/// Returns the key by which the attempts of a request know each other: that of its operation, so
/// that a repeat of the request has the same, or the entry's id if it has no key.
pub(super) fn replay_key(
    dialect: &dyn ReplayFormat,
    head: &Request<()>,
    body: &[u8],
    owner: &str,
) -> Option<ReplayKey> {
    let mut digest = Digest::new("replay");
    digest.part(owner);
    // As the journal keeps it, without what other layers put on the request.
    let mut kept = Request::new(());
    *kept.method_mut() = head.method().clone();
    *kept.uri_mut() = head.uri().clone();
    *kept.headers_mut() = head.headers().clone();
    let id = dialect.identify(&kept, body, LONGEST_CONFIGURABLE, digest);
    let key = id.ok()??.key;
    key.as_bytes().first_chunk().copied()
}

impl<J: Journal + Clone> Replay<J> {
    /// Tells the idempotency layer below that a request will be journaled if it can't be served, so
    /// that its record is the journal's from then on.
    fn handed_over(&self, head: &Request<()>, body: &Bytes) -> ReplayAttempt {
        let (state, head, body) = (Arc::clone(&self.state), head.clone(), body.clone());
        ReplayAttempt {
            owner: None,
            resumes: None,
            hold: None,
            not_served: |error| cannot_call(error).is_some(),
            attempted_again: Arc::new(move |reply| {
                is_journaled(&state.settings, reply)?;
                let owner = state.scope.owner(&head)?;
                replay_key(&*state.settings.dialect, &head, &body, &owner)
            }),
        }
    }

    fn dialect(&self) -> &dyn ReplayFormat {
        &*self.state.settings.dialect
    }

    fn reject(&self, body: &[u8], problem: &Problem) -> Response<Bytes> {
        self.dialect().rejected(body, problem)
    }

    /// Returns whether maintenance keeps a request from being served.
    pub(super) fn is_closed_to(&self, head: &Request<()>) -> bool {
        let settings = &self.state.settings;
        let served = || match &settings.served {
            Some(served) => served(head),
            None => head.method().is_safe() && !settings.methods.contains(head.method()),
        };
        self.maintenance.is_on() && !served()
    }

    /// Returns whether a request is to be replayed if it can't be served.
    pub(super) fn wants(&self, options: &ReplayOptions) -> bool {
        options.enabled.unwrap_or(self.state.settings.by_default)
    }

    /// Checks whether the options can be met.
    pub(super) fn check(&self, options: &ReplayOptions, body: &[u8]) -> Result<(), Rejected> {
        let Some((url, headers)) = &options.callback else {
            return Ok(());
        };
        self.check_callback(url, headers)
            .map_err(|why| Box::new(self.reject(body, &Problem::REPLAY_INVALID.detail(why))))
    }

    /// Returns how a request is to be replayed, if it is; or its answer, if that is known already.
    async fn options(
        &self,
        head: &Request<()>,
        body: &[u8],
        asks: ReplayRequest,
    ) -> Result<Option<Box<ReplayOptions>>, Rejected> {
        let asks = match asks {
            ReplayRequest::InBody => self.dialect().asks_by_body(body)?,
            asks => asks,
        };
        match asks {
            ReplayRequest::Foreign | ReplayRequest::InBody => Ok(None),
            ReplayRequest::Serve(options) if !self.wants(&options) => Ok(None),
            ReplayRequest::Serve(options) => {
                self.check(&options, body)?;
                Ok(Some(options))
            }
            ReplayRequest::Command(command) => Err(Box::new(match self.state.scope.owner(head) {
                None => self.reject(body, &Problem::REPLAY_ANONYMOUS),
                Some(owner) => match self.command(&owner, command).await {
                    Ok(report) => self.dialect().reported(body, &report),
                    Err(problem) => self.reject(body, &problem),
                },
            })),
        }
    }

    /// Returns the answer to a request that got 409: what the journal knows, if that says that
    /// another execution is running.
    async fn conflicting<R: Body>(
        &self,
        head: &Request<()>,
        body: &Bytes,
        response: Response<R>,
    ) -> Response<BufferedBody<R>> {
        let (parts, reply) = response.into_parts();
        let limit = self.state.settings.response_limit;
        let reply = match buffer(reply, limit).await {
            Buffered::Whole { data, trailers } => {
                let whole = Response::from_parts(parts.clone(), data.clone());
                if self.dialect().is_processing(&whole)
                    && let Some(told) = self.journaled(head, body).await
                {
                    return own(told);
                }
                BufferedBody::whole(data, trailers)
            }
            Buffered::Partial(reply) => reply,
        };
        Response::from_parts(parts, reply)
    }

    /// Answers a request whose key is in the journal.
    async fn journaled(&self, head: &Request<()>, body: &Bytes) -> Option<Response<Bytes>> {
        let owner = self.state.scope.owner(head)?;
        let id = self.operation(&owner, head, body).ok()??;
        let queue = &self.state.settings.queue;
        let found = self.journal.find_duplicate(queue, id.key).await.ok()??;
        if found.fingerprint != id.fingerprint {
            return None;
        }
        let entry = self.journal.find(found.entry.id).await.ok()??;
        Some(self.accepted(body, entry, UNAVAILABLE.into()).await)
    }

    /// Returns the operation of a request, by which repeats are found; `None` if it has no key.
    fn operation(
        &self,
        owner: &str,
        head: &Request<()>,
        body: &[u8],
    ) -> Result<Option<OperationId>, Problem> {
        let mut digest = Digest::new("replay");
        digest.part(owner);
        self.dialect()
            .identify(head, body, LONGEST_CONFIGURABLE, digest)
    }

    /// Rejects a request whose key was used for another one, with what is known of that.
    async fn conflict(&self, head: &Request<()>, body: &Bytes) -> Response<Bytes> {
        let original = async {
            let owner = self.state.scope.owner(head)?;
            let id = self.operation(&owner, head, body).ok()??;
            let queue = &self.state.settings.queue;
            let found = self.journal.find_duplicate(queue, id.key).await.ok()??;
            let entry = self.journal.find(found.entry.id).await.ok()?;
            let stored = entry.and_then(|entry| Stored::decode(entry.payload));
            Some(Original {
                fingerprint: found.fingerprint,
                request_id: stored.and_then(|stored| stored.meta.request_id),
            })
        };
        let problem = Problem::REUSED;
        match original.await {
            Some(original) => self.dialect().conflict(body, &problem, &original),
            None => self.reject(body, &problem),
        }
    }

    /// Returns the reply of a request that was served at once.
    async fn served<R: Body>(
        &self,
        options: &ReplayOptions,
        response: Response<R>,
    ) -> Response<BufferedBody<R>> {
        let marks = options.enabled == Some(true) && self.dialect().reads(response.headers());
        if !marks || !response.status().is_success() {
            return response.map(BufferedBody::new);
        }
        let (mut head, body) = response.into_parts();
        let body = match buffer(body, self.state.settings.response_limit).await {
            Buffered::Whole { data, trailers } => match self.dialect().processed(&data) {
                None => BufferedBody::whole(data, trailers),
                Some(marked) => {
                    if let Some(length) = head.headers.get_mut(CONTENT_LENGTH) {
                        *length = marked.len().into();
                    }
                    BufferedBody::whole(marked.into(), trailers)
                }
            },
            Buffered::Partial(body) => body,
        };
        Response::from_parts(head, body)
    }

    /// Returns why a request was not served, in the service's own words if there are any.
    async fn reason<R: Body>(&self, code: &'static str, response: Response<R>) -> QueueReason {
        let by_handler = response.extensions().get::<ReplayLater>().is_some();
        if by_handler || !self.dialect().reads(response.headers()) {
            return code.into();
        }
        let limit = self.state.settings.response_limit;
        let reason = match buffer(response.into_body(), limit).await {
            Buffered::Whole { data, .. } => self.dialect().reason(&data),
            Buffered::Partial(_) => None,
        };
        reason.unwrap_or_else(|| code.into())
    }

    /// Journals a request, and returns the answer.
    async fn accept(
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
        match self.journal.enqueue(entry).await {
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

    fn entry(
        &self,
        head: &Request<()>,
        body: Bytes,
        options: ReplayOptions,
        reason: &str,
    ) -> Result<NewEntry, Problem> {
        let super::ReplayState {
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
    async fn accepted(&self, body: &[u8], entry: Entry, reason: QueueReason) -> Response<Bytes> {
        // It is in the journal, whether or not its position can be told.
        let status = match self.describe(&entry).await {
            Ok(status) => status,
            Err(_) => {
                super::ReplayStatus::new(&entry, Stored::decode(entry.payload.clone()).as_ref())
            }
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
