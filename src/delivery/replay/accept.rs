use std::{any::Any, future::Future, pin::pin, sync::Arc};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use tower::{Service, ServiceExt};

use super::{
    Replay, ReplayLater, ReplayState,
    control::reply_of,
    dialect::{Original, QueueReason, Rejected, ReplayFormat, ReplayOptions, ReplayRequest},
    request::Stored,
    served::{UNAVAILABLE, cannot_call, is_journaled, replay_key},
};
use crate::{
    call::{ReplayAttempt, ReplayKey, Suspended, key::LONGEST_CONFIGURABLE},
    classify::http::is_replayed,
    http::{
        BufferedBody, RequestBody,
        digest::Digest,
        headers::resize,
        problem::Problem,
        read::{Buffered, ReadError, buffer, read_whole},
    },
    server::dialect::OperationId,
    store::journal::{Entry, Journal},
};

pub(super) const MAINTENANCE: &str = "SERVER_MAINTENANCE";

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
                let reason = MAINTENANCE.into();
                let response = replay.accept(&self.head, body, options, reason, None);
                return Ok(own(response.await));
            }
            let (head, mut resumes) = (self.head, None);
            // The service that was readied makes the first attempt: a clone would wait for its place.
            let (spare, mut service) = (self.service.clone(), Some(self.service));
            let (reason, suspended) = loop {
                let mut served = head.clone();
                let attempt = replay.handed_over(&head, &body, resumes);
                let suspended = attempt.suspended.clone();
                served.extensions_mut().insert(attempt);
                let service = service.take().unwrap_or_else(|| spare.clone());
                match service.oneshot(request(served)).await {
                    Ok(response) => match is_journaled(&replay.state.settings, &response) {
                        // Not of an execution of its own: it may have been journaled before.
                        None if is_replayed(response.headers()) => {
                            return Ok(match replay.journaled(&head, &body, true).await {
                                Journaled::Told(told) => own(told),
                                _ => replay.served(&options, response).await,
                            });
                        }
                        None if response.status() == StatusCode::CONFLICT => {
                            match replay.conflicting(&head, &body, response).await {
                                // Its key waits for a replay that could not be written down.
                                (_, Some(key)) if resumes.is_none() => resumes = Some(key),
                                (response, _) => return Ok(response),
                            }
                        }
                        None => return Ok(replay.served(&options, response).await),
                        Some(code) => break (replay.reason(code, response).await, suspended),
                    },
                    Err(error) => match cannot_call(&error as &dyn Any) {
                        None => return Err(error),
                        Some(code) => break (code.into(), suspended),
                    },
                }
            };
            let response = replay.accept(&head, body, options, reason, Some(&suspended));
            Ok(own(response.await))
        }
    }
}

/// The journal's knowledge of a request.
enum Journaled {
    /// It has the request, and this is the answer.
    Told(Response<Bytes>),
    /// It does not have it.
    No,
    /// It can't be told.
    Unknown,
}

/// Returns an answer of the layer's own.
fn own<R: Body>(response: Response<Bytes>) -> Response<BufferedBody<R>> {
    response.map(BufferedBody::from)
}

/// Returns whether a reply to the request of an entry is the work of its replay: that is over, and did not
/// just find the reply. A redrive executes the request anew.
fn is_executed(entry: &Entry) -> bool {
    let found = || reply_of(entry).is_some_and(|reply| is_replayed(reply.headers()));
    entry.redrives > 0 || entry.status.is_over() && !found()
}

impl<J> ReplayState<J> {
    fn replay_key(&self, head: &Request<()>, body: &[u8]) -> Option<ReplayKey> {
        let owner = self.scope.owner(head)?;
        replay_key(&*self.settings.dialect, head, body, &owner)
    }
}

impl<J: Journal + Clone> Replay<J> {
    /// Tells the idempotency layer below that a request will be journaled if it can't be served, so
    /// that its record is the journal's from then on.
    fn handed_over(
        &self,
        head: &Request<()>,
        body: &Bytes,
        resumes: Option<ReplayKey>,
    ) -> ReplayAttempt {
        let (state, head, body) = (Arc::clone(&self.state), head.clone(), body.clone());
        ReplayAttempt {
            owner: None,
            resumes,
            hold: None,
            suspended: Suspended::default(),
            not_served: |error| cannot_call(error).is_some(),
            attempted_again: Arc::new(move |reply| {
                is_journaled(&state.settings, reply)?;
                state.replay_key(&head, &body)
            }),
        }
    }

    pub(super) fn dialect(&self) -> &dyn ReplayFormat {
        &*self.state.settings.dialect
    }

    pub(super) fn reject(&self, body: &[u8], problem: &Problem) -> Response<Bytes> {
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
    /// another execution is running. If the journal knows nothing of it, returns also the key by which
    /// an attempt that was to be journaled is resumed: an execution that runs has none.
    async fn conflicting<R: Body>(
        &self,
        head: &Request<()>,
        body: &Bytes,
        response: Response<R>,
    ) -> (Response<BufferedBody<R>>, Option<ReplayKey>) {
        let mut resumes = None;
        let (parts, reply) = response.into_parts();
        let limit = self.state.settings.response_limit;
        let reply = match buffer(reply, limit).await {
            Buffered::Whole { data, trailers } => {
                let whole = Response::from_parts(parts.clone(), data.clone());
                if self.dialect().is_processing(&whole) {
                    match self.journaled(head, body, false).await {
                        Journaled::Told(told) => return (own(told), None),
                        Journaled::No => resumes = self.state.replay_key(head, body),
                        Journaled::Unknown => {}
                    }
                }
                BufferedBody::whole(data, trailers)
            }
            Buffered::Partial(reply) => reply,
        };
        (Response::from_parts(parts, reply), resumes)
    }

    /// Answers a request whose key is in the journal; not one whose record has a reply (`replied`) that is
    /// not the work of the replay.
    async fn journaled(&self, head: &Request<()>, body: &Bytes, replied: bool) -> Journaled {
        let owner = self.state.scope.owner(head);
        let id = owner.and_then(|owner| self.operation(&owner, head, body).ok().flatten());
        let Some(id) = id else {
            return Journaled::Unknown;
        };
        let queue = &self.state.settings.queue;
        let found = match self.journal.find_duplicate(queue, id.key).await {
            Ok(Some(found)) if found.fingerprint == id.fingerprint => found,
            Ok(None) => return Journaled::No,
            Ok(Some(_)) | Err(_) => return Journaled::Unknown,
        };
        match self.journal.find(found.entry.id).await {
            Ok(Some(entry)) if replied && !is_executed(&entry) => Journaled::No,
            Ok(Some(entry)) => {
                Journaled::Told(self.accepted(body, entry, UNAVAILABLE.into()).await)
            }
            _ => Journaled::Unknown,
        }
    }

    /// Returns the operation of a request, by which repeats are found; `None` if it has no key.
    pub(super) fn operation(
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
    pub(super) async fn conflict(&self, head: &Request<()>, body: &Bytes) -> Response<Bytes> {
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
                    resize(&mut head.headers, marked.len());
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
}
