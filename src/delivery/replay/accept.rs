use std::{any::Any, future::Future, pin::pin};

use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{CONTENT_LENGTH, LOCATION},
};
use http_body::Body;
use tower::{Service, ServiceExt, load_shed::error::Overloaded};

use super::{
    Replay, ReplayId, ReplayLater,
    control::reply_of,
    dialect::{Accepted, Options, Refusal, Speak, Why, Wish},
    request::{Callback, Stored},
};
use crate::{
    call::{RetryOutcome, Retryable},
    classify::{Rules, http::is_replayed, network},
    delivery::{text, webhooks::Webhooks},
    error::{BoxError, Refused, find},
    http::{
        BufferedBody,
        digest::Digest,
        problem::Problem,
        read::{Buffered, ReadError, buffer, read_whole},
    },
    store::journal::{Dedup, Enqueued, Entry, Journal, NewEntry},
    telemetry,
};

pub(super) const MAINTENANCE: &str = "SERVER_MAINTENANCE";
const UNAVAILABLE: &str = "SERVICE_UNAVAILABLE";
const OVERLOADED: &str = "OVERLOADED";
const DEPENDENCY: &str = "DEPENDENCY_UNAVAILABLE";

/// A request that is to be journaled if it can't be served, or that may be.
pub(super) struct Asked<S, J> {
    pub(super) service: S,
    pub(super) replay: Replay<J>,
    pub(super) head: Request<()>,
    pub(super) wish: Wish,
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
    ) -> impl Future<Output = Result<Response<BufferedBody<R>>, S::Error>> + Send
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send + 'static,
        B: Body + From<Bytes> + Send + 'static,
        B::Data: Send,
        B::Error: Send,
        R: Body + Send + 'static,
        R::Error: Send,
    {
        async move {
            let replay = self.replay;
            let limit = replay.shared.settings.request_limit;
            let body = match read_whole(pin!(body), limit).await {
                Ok(body) => body,
                Err(ReadError::TooLarge) => {
                    let detail = format!("At most {limit} bytes can be journaled.");
                    let problem = Problem::REPLAY_TOO_LARGE.detail(detail);
                    return Ok(own(replay.refuse(&[], &problem)));
                }
                Err(ReadError::Broken) => {
                    return Ok(own(replay.refuse(&[], &Problem::UNREADABLE)));
                }
            };
            let options = match replay.asked(&self.head, &body, self.wish).await {
                Ok(options) => options,
                Err(response) => return Ok(own(*response)),
            };
            let request = |head: Request<()>| head.map(|()| B::from(body.clone()));
            let closed = replay.is_closed_to(&self.head);
            let Some(options) = options else {
                if closed {
                    return Ok(own(replay.refuse(&body, &replay.maintenance.problem())));
                }
                let response = self.service.oneshot(request(self.head)).await?;
                return Ok(response.map(BufferedBody::untouched));
            };
            if closed {
                let response = replay.accept(&self.head, body, options, MAINTENANCE.into());
                return Ok(own(response.await));
            }
            // Kept aside, in case that it can't be served.
            let head = self.head.clone();
            let why = match self.service.oneshot(request(self.head)).await {
                Ok(response) => match cannot_serve(&response) {
                    None => return Ok(replay.served(&options, response).await),
                    Some(why) => replay.why(why, response).await,
                },
                Err(error) => match cannot_call(&error) {
                    None => return Err(error),
                    Some(why) => why.into(),
                },
            };
            Ok(own(replay.accept(&head, body, options, why).await))
        }
    }
}

/// A reply of the layer's own.
fn own<R: Body>(response: Response<Bytes>) -> Response<BufferedBody<R>> {
    response.map(BufferedBody::from)
}

/// Why a response is none, if it says that the request was not served and may be later.
pub(super) fn cannot_serve<R>(response: &Response<R>) -> Option<&'static str> {
    if let Some(ReplayLater(reason)) = response.extensions().get() {
        return Some(reason);
    }
    let unavailable = response.status() == StatusCode::SERVICE_UNAVAILABLE;
    // What comes from an idempotency store is final, and what may have been served was.
    let served = || RetryOutcome::of(response).is_some_and(RetryOutcome::in_doubt);
    (unavailable && !is_replayed(response.headers()) && !served()).then_some(UNAVAILABLE)
}

/// Why there was no response, if the request did not get as far as being served.
pub(super) fn cannot_call<E: 'static>(error: &E) -> Option<&'static str> {
    let error: &BoxError = (error as &dyn Any).downcast_ref()?;
    if RetryOutcome::of_error(&**error).is_some_and(RetryOutcome::in_doubt) {
        return None;
    }
    if Refused::find(&**error).is_some() {
        return Some(DEPENDENCY);
    }
    if find::<Overloaded>(&**error).is_some() {
        return Some(OVERLOADED);
    }
    // There was no connection. One that can't be trusted, or that can never be, is another matter.
    let verdict = network::classify(&Rules::standard(), &**error);
    let later = verdict.never_sent && verdict.retry != Retryable::Never;
    later.then_some(DEPENDENCY)
}

impl<J: Journal + Clone> Replay<J> {
    fn speak(&self) -> &dyn Speak {
        self.shared.settings.dialect.speak()
    }

    fn refuse(&self, body: &[u8], problem: &Problem) -> Response<Bytes> {
        self.speak().refused(body, problem)
    }

    /// Whether a request is not served since this is in maintenance.
    pub(super) fn is_closed_to(&self, head: &Request<()>) -> bool {
        let settings = &self.shared.settings;
        let served = || match &settings.served {
            Some(served) => served(head),
            None => head.method().is_safe() && !settings.methods.contains(head.method()),
        };
        self.maintenance.is_on() && !served()
    }

    /// Whether a request is to be replayed if it can't be served.
    pub(super) fn wants(&self, options: &Options) -> bool {
        options.enabled.unwrap_or(self.shared.settings.unasked)
    }

    /// Whether what is asked for is offered.
    pub(super) fn check(&self, options: &Options, body: &[u8]) -> Result<(), Refusal> {
        let Some((url, headers)) = &options.callback else {
            return Ok(());
        };
        self.check_callback(url, headers)
            .map_err(|why| Box::new(self.refuse(body, &Problem::REPLAY_INVALID.detail(why))))
    }

    /// How a request is to be replayed, if it is; or its answer, if that is known already.
    async fn asked(
        &self,
        head: &Request<()>,
        body: &[u8],
        wish: Wish,
    ) -> Result<Option<Box<Options>>, Refusal> {
        let wish = match wish {
            Wish::InBody => self.speak().of_body(body)?,
            // That was looked at before.
            wish => wish,
        };
        match wish {
            Wish::Foreign | Wish::InBody => Ok(None),
            Wish::Replay(options) if !self.wants(&options) => Ok(None),
            Wish::Replay(options) => {
                self.check(&options, body)?;
                Ok(Some(options))
            }
            Wish::Command(command) => Err(Box::new(match (self.shared.principal)(head) {
                None => self.refuse(body, &Problem::REPLAY_ANONYMOUS),
                Some(principal) => match self.command(&principal, command).await {
                    Ok(answer) => self.speak().answered(body, &answer),
                    Err(problem) => self.refuse(body, &problem),
                },
            })),
        }
    }

    /// The reply of a request that was served at once.
    async fn served<R: Body>(
        &self,
        options: &Options,
        response: Response<R>,
    ) -> Response<BufferedBody<R>> {
        let marks = options.enabled == Some(true) && self.speak().reads(response.headers());
        if !marks || !response.status().is_success() {
            return response.map(BufferedBody::untouched);
        }
        let (mut head, body) = response.into_parts();
        let body = match buffer(body, self.shared.settings.response_limit).await {
            Buffered::Whole { data, trailers } => match self.speak().processed(&data) {
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

    /// Why a request was not served, as the service tells it.
    async fn why<R: Body>(&self, code: &'static str, response: Response<R>) -> Why {
        if code != UNAVAILABLE || !self.speak().reads(response.headers()) {
            return code.into();
        }
        let limit = self.shared.settings.response_limit;
        let told = match buffer(response.into_body(), limit).await {
            Buffered::Whole { data, .. } => self.speak().unserved(&data),
            Buffered::Partial(_) => None,
        };
        told.unwrap_or_else(|| code.into())
    }

    /// Journals a request, and says so; or says that it could not.
    async fn accept(
        &self,
        head: &Request<()>,
        body: Bytes,
        options: Box<Options>,
        why: Why,
    ) -> Response<Bytes> {
        let entry = match self.entry(head, body.clone(), *options, &why.code) {
            Ok(entry) => entry,
            Err(problem) => return self.refuse(&body, &problem),
        };
        let payload = entry.payload.clone();
        match self.journal.enqueue(entry).await {
            Ok(Enqueued::New(entry)) => {
                self.shared.wake.wake();
                self.accepted(&body, Entry { payload, ..entry }, why).await
            }
            Ok(Enqueued::Existing(entry)) => {
                // As it came, rather than as it comes now.
                let whole = self.journal.find(entry.id).await.ok().flatten();
                self.accepted(&body, whole.unwrap_or(entry), why).await
            }
            Ok(Enqueued::Mismatch) => self.refuse(&body, &Problem::REUSED),
            Err(error) => {
                telemetry::journal_trouble("enqueue", error.kind().as_str());
                self.refuse(&body, &Problem::REPLAY_UNAVAILABLE)
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
            webhooks,
            ..
        } = &*self.shared;
        let owner = principal(head).ok_or(Problem::REPLAY_ANONYMOUS)?;
        if !text::fits(&owner) {
            let detail = "The caller's name is too long to be written down.";
            return Err(Problem::REPLAY_INVALID.detail(detail));
        }
        let mut operation = self.speak().operation(head, &body);
        let dedup = operation.key.take().map(|key| {
            let mut digest = Digest::new("replay");
            digest.part(&owner);
            key.parts.iter().for_each(|part| digest.part(part));
            Dedup {
                key: digest.into(),
                fingerprint: key.fingerprint,
            }
        });
        let queue = webhooks.as_ref().map_or("", Webhooks::queue);
        let callback = options
            .callback
            .map(|(url, headers)| Callback::new(url, &headers, queue));
        let ttl = options.ttl.unwrap_or(settings.ttl);
        let stored = Stored::new(head, body, reason, &operation, callback);
        let function = operation
            .function
            .unwrap_or_else(|| (settings.function)(head));
        Ok(NewEntry {
            label: text::cut(&function),
            owner,
            dedup,
            priority: options.priority,
            ttl: ttl.min(settings.longest_ttl),
            ..NewEntry::new(settings.queue.clone(), stored.encode())
        })
    }

    /// The reply to a request that is in the journal, now or since before.
    async fn accepted(&self, body: &[u8], entry: Entry, why: Why) -> Response<Bytes> {
        // It is in the journal, whether or not it can be said how far.
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
            told: why.told,
        };
        let mut response = self.speak().accepted(body, &accepted);
        let id = ReplayId(entry.id);
        let location = self.shared.settings.location.as_deref();
        let location = location.map(|path| format!("{path}/{id}"));
        if let Some(location) = location.and_then(|path| HeaderValue::try_from(path).ok()) {
            response.headers_mut().insert(LOCATION, location);
        }
        response
    }
}
