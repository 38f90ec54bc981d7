use std::{
    fmt,
    marker::PhantomData,
    pin::pin,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use tokio::time::timeout;
use tower::{Service, ServiceExt};

use super::{
    Replay, Replayed,
    accept::{cannot_call, cannot_serve},
    callback::Ended,
    request::Stored,
};
use crate::{
    backoff::{Backoff, FullJitter},
    classify::{Classify, IDEMPOTENCY_KEY, Retryable, Rules, Standard, Verdict, network},
    delivery::worker::{Admits, Handler},
    dependency::{BreakerState, DependencyStatus},
    error::BoxError,
    idempotency::{hygiene::Unstored, reply},
    retry::{Attempt, PrepareAttempt},
    store::journal::{Entry, Journal, Settle, Status},
    wire::{problem::Problem, read::Read},
};

/// Before another attempt.
const BACKOFF: FullJitter = FullJitter {
    base: Duration::from_secs(2),
    cap: Duration::from_secs(60),
};

/// When to look again for what somebody else executes.
const BUSY: Duration = Duration::from_secs(1);

/// Replays requests of a journal into a service.
pub struct Replays<J, S, B, H = ()> {
    replay: Replay<J>,
    /// In a lock since it need not be `Sync`; it is only cloned.
    service: Mutex<S>,
    prepare: H,
    rules: Rules,
    body: PhantomData<fn() -> B>,
}

impl<J, S, B, H> Replays<J, S, B, H> {
    pub(super) fn new(replay: Replay<J>, service: S, prepare: H) -> Self {
        Self {
            replay,
            service: Mutex::new(service),
            prepare,
            rules: Rules::standard(),
            body: PhantomData,
        }
    }
}

impl<J, S, B, H> fmt::Debug for Replays<J, S, B, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Replays")
    }
}

/// How one attempt ended.
enum Attempted {
    /// There is a reply, which is the last word.
    Final(Box<Response<Bytes>>),
    /// It failed, and may be attempted again.
    Failed(String, Option<Box<Response<Bytes>>>),
    /// It failed for good, without a reply.
    Broken(String),
    /// It was not served at all; when to come back, if that was said.
    NotNow(Option<Duration>),
    /// Somebody else executes it: its caller, or a worker that has died.
    Busy(Option<Duration>),
}

impl<J, S, B, H, R> Handler for Replays<J, S, B, H>
where
    J: Journal + Clone,
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + 'static,
    B: From<Bytes> + Send + 'static,
    R: Body + Send + 'static,
    R::Data: Send,
    H: PrepareAttempt<Request<B>> + Send + Sync + 'static,
    H::Future: Send,
{
    async fn handle(&self, entry: Entry) -> Settle {
        let settings = &self.replay.shared.settings;
        let Some(stored) = Stored::decode(entry.payload.clone()) else {
            return Settle::failed("it can't be read", settings.keep_failed);
        };
        if entry.is_past() {
            let ended = Ended {
                status: Status::Expired,
                reply: None,
                error: None,
            };
            let callback = self.replay.callback(&entry, &stored, &ended);
            return Settle::expired(settings.keep).followed_by(callback);
        }
        if entry.attempts > settings.attempts {
            return self.fail(&entry, &stored, "its workers died of it", None);
        }
        match self.attempt(&entry, &stored).await {
            Attempted::Final(reply) if is_success(&reply) => self.complete(&entry, &stored, &reply),
            Attempted::Final(reply) => {
                let why = format!("replied {}", reply.status().as_u16());
                self.fail(&entry, &stored, &why, Some(&reply))
            }
            Attempted::Broken(why) => self.fail(&entry, &stored, &why, None),
            Attempted::Failed(why, reply) if entry.attempts >= settings.attempts => {
                self.fail(&entry, &stored, &why, reply.as_deref())
            }
            Attempted::Failed(why, _) => {
                let delay = BACKOFF.delay(entry.attempts - 1, Duration::ZERO, rand::random());
                Settle::retry(why, delay)
            }
            Attempted::NotNow(asked) => Settle::release(self.replay.shared.pace.refused(asked)),
            Attempted::Busy(asked) => Settle::release(asked.unwrap_or(BUSY).max(BUSY)),
        }
    }

    fn admits(&self) -> Admits {
        let shared = &self.replay.shared;
        let dependencies = shared.settings.paced_by.iter();
        let paces = dependencies.map(|dependency| pace_of(&dependency.status()));
        let most = paces.min().unwrap_or(usize::MAX);
        match most.min(shared.pace.limit()) {
            0 => Admits::Urgent,
            _ if self.replay.maintenance.is_on() => Admits::Urgent,
            limit => Admits::UpTo(limit),
        }
    }
}

/// How many replays at a time a dependency can do with.
fn pace_of(status: &DependencyStatus) -> usize {
    let allowed = status.retries_allowed;
    let used_up = allowed.is_some_and(|allowed| status.retries >= allowed);
    match status.breaker {
        _ if used_up || status.hold.is_some() => 0,
        BreakerState::Open(left) if !left.is_zero() => 0,
        // It is not known yet whether it is back.
        BreakerState::Open(_) | BreakerState::Probing => 1,
        BreakerState::Closed => usize::MAX,
    }
}

fn is_success(reply: &Response<Bytes>) -> bool {
    reply.status().is_success() || reply.status().is_redirection()
}

impl<J, S, B, H> Replays<J, S, B, H>
where
    J: Journal + Clone,
{
    async fn attempt<R>(&self, entry: &Entry, stored: &Stored) -> Attempted
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<BoxError> + 'static,
        B: From<Bytes> + Send + 'static,
        R: Body + Send + 'static,
        R::Data: Send,
        H: PrepareAttempt<Request<B>> + Send + Sync + 'static,
        H::Future: Send,
    {
        let Some(request) = self.request(entry, stored) else {
            return Attempted::Broken("it can't be read".to_owned());
        };
        let attempt = Attempt::retry(entry.attempts);
        let service = self
            .service
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let settings = &self.replay.shared.settings;
        let calling = async {
            let Ok(request) = self.prepare.prepare(request, attempt).await else {
                return Attempted::Failed("it could not be prepared".to_owned(), None);
            };
            let response = match service.oneshot(request).await {
                Ok(response) => response,
                Err(error) => return self.by_error(error),
            };
            if cannot_serve(&response).is_some() {
                return Attempted::NotNow(self.judge(&response).not_before());
            }
            self.replay.shared.pace.served();
            let verdict = self.judge(&response);
            let reply = gather(response, settings.response_limit).await;
            if Problem::is_processing(&reply) {
                return Attempted::Busy(verdict.not_before());
            }
            match verdict.is_success() || verdict.retry == Retryable::Never {
                true => Attempted::Final(Box::new(reply)),
                false => Attempted::Failed(verdict.cause.to_string(), Some(Box::new(reply))),
            }
        };
        match timeout(settings.timeout, calling).await {
            Ok(attempted) => attempted,
            Err(_) => Attempted::Failed("timeout".to_owned(), None),
        }
    }

    fn judge<R>(&self, response: &Response<R>) -> Verdict {
        Classify::<Request<()>, _>::classify(&Standard, &self.rules, Ok(response))
    }

    fn by_error<E: Into<BoxError> + 'static>(&self, error: E) -> Attempted {
        if cannot_call(&error).is_some() {
            return Attempted::NotNow(None);
        }
        let error = error.into();
        let verdict = network::classify(&self.rules, &*error);
        let why = verdict.cause.to_string();
        match verdict.retry {
            Retryable::Never => Attempted::Broken(why),
            _ => Attempted::Failed(why, None),
        }
    }

    /// The request as it was, but for its credentials. If it had no key it gets one, so that a
    /// worker that dies does not make it happen twice.
    fn request(&self, entry: &Entry, stored: &Stored) -> Option<Request<B>>
    where
        B: From<Bytes>,
    {
        let mut request = stored.request()?;
        let key = HeaderValue::try_from(entry.id.to_string()).ok()?;
        request.headers_mut().entry(IDEMPOTENCY_KEY).or_insert(key);
        request.extensions_mut().insert(Replayed {
            id: super::ReplayId(entry.id),
            principal: entry.owner.clone(),
            attempt: entry.attempts,
        });
        Some(request.map(|()| B::from(stored.body.clone())))
    }

    fn complete(&self, entry: &Entry, stored: &Stored, reply: &Response<Bytes>) -> Settle {
        let ended = Ended {
            status: Status::Completed,
            reply: Some(reply),
            error: None,
        };
        let callback = self.replay.callback(entry, stored, &ended);
        let keep = self.replay.shared.settings.keep;
        let note = format!("replied {}", reply.status().as_u16());
        Settle {
            note,
            ..Settle::completed(encode(reply), keep).followed_by(callback)
        }
    }

    fn fail(
        &self,
        entry: &Entry,
        stored: &Stored,
        why: &str,
        reply: Option<&Response<Bytes>>,
    ) -> Settle {
        let ended = Ended {
            status: Status::Failed,
            reply,
            error: Some(why),
        };
        let callback = self.replay.callback(entry, stored, &ended);
        let keep = self.replay.shared.settings.keep_failed;
        Settle {
            result: reply.map(encode),
            ..Settle::failed(why, keep).followed_by(callback)
        }
    }
}

fn encode(reply: &Response<Bytes>) -> Bytes {
    let (head, body) = reply.clone().into_parts();
    reply::encode(&head, None, &body, &Unstored::default())
}

/// The reply with its body, or without if that is too large or broke off.
async fn gather<R: Body>(response: Response<R>, limit: usize) -> Response<Bytes> {
    let (head, body) = response.into_parts();
    let mut read = Read::default();
    let body = match read.up_to(limit, pin!(body)).await {
        Ok(true) => read.joined(),
        _ => Bytes::new(),
    };
    Response::from_parts(head, body)
}
