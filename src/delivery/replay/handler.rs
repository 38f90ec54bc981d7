use std::{
    fmt,
    marker::PhantomData,
    pin::pin,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::time::timeout;
use tower::{Service, ServiceExt};

use super::{
    Replay, Replayed,
    accept::{cannot_call, cannot_serve},
    callback::{Ended, redrives},
    request::Stored,
};
use crate::{
    backoff::{Backoff, FullJitter},
    call::{Attempt, Retryable, Verdict},
    classify::{Classify, Rules, Standard, http::is_replayed, network},
    client::retry::PrepareAttempt,
    delivery::{
        dead_letter::reason,
        worker::{Admits, Handler},
    },
    dependency::{BreakerState, DependencyStatus},
    error::BoxError,
    http::{header_filter::Unstored, read::read_whole, reply},
    store::journal::{Entry, Journal, Settlement, Status},
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
    /// It succeeded.
    Done(Box<Response<Bytes>>),
    /// There is a reply, which is the last word, and says that it failed.
    Refused(Box<Response<Bytes>>),
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
    async fn handle(&self, entry: Entry) -> Settlement {
        let settings = &self.replay.shared.settings;
        let Some(stored) = Stored::decode(entry.payload.clone()) else {
            return Settlement::failed(reason::UNREADABLE, settings.keep_failed);
        };
        if entry.is_past() {
            let ended = Ended {
                status: Status::Expired,
                reply: None,
                error: None,
            };
            let settle = Settlement::expired(settings.keep);
            return self.told(&entry, &stored, &ended, settle).await;
        }
        if entry.attempts > settings.attempts {
            return self.fail(&entry, &stored, reason::WORKERS_DIED, None).await;
        }
        match self.attempt(&entry, &stored).await {
            Attempted::Done(reply) => self.complete(&entry, &stored, &reply).await,
            Attempted::Refused(reply) => {
                let why = format!("replied {}", reply.status().as_u16());
                self.fail(&entry, &stored, &why, Some(&reply)).await
            }
            Attempted::Broken(why) => self.fail(&entry, &stored, &why, None).await,
            Attempted::Failed(why, reply) if entry.attempts >= settings.attempts => {
                self.fail(&entry, &stored, &why, reply.as_deref()).await
            }
            Attempted::Failed(why, _) => again(&entry, why),
            Attempted::NotNow(asked) => Settlement::release(self.replay.shared.pace.refused(asked)),
            Attempted::Busy(asked) => Settlement::release(asked.unwrap_or(BUSY).max(BUSY)),
        }
    }

    fn admits(&self) -> Admits {
        let shared = &self.replay.shared;
        let paces = shared.settings.paced_by.iter();
        let paces = paces.map(|find| pace_of(&find().status()));
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

impl<J, S, B, H> Replays<J, S, B, H>
where
    J: Journal + Clone,
{
    /// Attempts it, under the key that it has.
    ///
    /// If it was redriven, and all there is under that key is the reply that it died of, it is
    /// attempted under a key of the redrive: so it is executed once more for each redrive, and only
    /// if what was executed before is known to have failed.
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
        let attempting = async {
            let mut attempted = Attempted::Broken(reason::UNREADABLE.to_owned());
            for redrive in 0..=redrives(entry) {
                let Some(request) = self.request(entry, stored, redrive) else {
                    break;
                };
                attempted = self.call(entry, request).await;
                let kept =
                    matches!(&attempted, Attempted::Refused(reply) if is_replayed(reply.headers()));
                if !kept {
                    break;
                }
            }
            attempted
        };
        match timeout(self.replay.shared.settings.timeout, attempting).await {
            Ok(attempted) => attempted,
            Err(_) => Attempted::Failed("timeout".to_owned(), None),
        }
    }

    async fn call<R>(&self, entry: &Entry, request: Request<B>) -> Attempted
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<BoxError> + 'static,
        R: Body + Send + 'static,
        R::Data: Send,
        H: PrepareAttempt<Request<B>> + Send + Sync + 'static,
        H::Future: Send,
    {
        let attempt = Attempt::retry(entry.attempts);
        let service = self
            .service
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let settings = &self.replay.shared.settings;
        let Ok(request) = self.prepare.prepare(request, attempt).await else {
            return Attempted::Failed(reason::UNPREPARED.to_owned(), None);
        };
        let response = match service.oneshot(request).await {
            Ok(response) => response,
            Err(error) => return self.by_error(error),
        };
        if cannot_serve(&response).is_some() {
            return Attempted::NotNow(self.judge(&response).not_before());
        }
        self.replay.shared.pace.served();
        let mut reply = gather(response, settings.response_limit).await;
        let speak = settings.dialect.speak();
        if let Some(signal) = speak.signal(&reply) {
            reply.extensions_mut().insert(signal);
        }
        let verdict = self.judge(&reply);
        if speak.is_busy(&reply) {
            return Attempted::Busy(verdict.not_before());
        }
        let reply = Box::new(reply);
        match verdict.retry {
            _ if verdict.is_success() => Attempted::Done(reply),
            Retryable::Never => Attempted::Refused(reply),
            _ => Attempted::Failed(verdict.cause.to_string(), Some(reply)),
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
    /// worker that dies does not make it happen twice. For a redrive it gets the key of that, which
    /// nobody else has; `None` if it can't.
    fn request(&self, entry: &Entry, stored: &Stored, redrive: usize) -> Option<Request<B>>
    where
        B: From<Bytes>,
    {
        let mut request = stored.request()?;
        let speak = self.replay.shared.settings.dialect.speak();
        let (headers, body) = (request.headers_mut(), stored.body.clone());
        let body = match redrive {
            0 => speak.keyed(headers, body, &entry.id.to_string()),
            n => speak.rekeyed(headers, body, &format!("{}-{n}", entry.id))?,
        };
        request.extensions_mut().insert(Replayed {
            id: super::ReplayId(entry.id),
            principal: entry.owner.clone(),
            attempt: entry.attempts,
        });
        Some(request.map(|()| B::from(body)))
    }

    async fn complete(
        &self,
        entry: &Entry,
        stored: &Stored,
        reply: &Response<Bytes>,
    ) -> Settlement {
        let ended = Ended {
            status: Status::Completed,
            reply: Some(reply),
            error: None,
        };
        let keep = self.replay.shared.settings.keep;
        let settle = Settlement {
            note: format!("replied {}", reply.status().as_u16()),
            ..Settlement::completed(encode(Some(reply)), keep)
        };
        self.told(entry, stored, &ended, settle).await
    }

    async fn fail(
        &self,
        entry: &Entry,
        stored: &Stored,
        why: &str,
        reply: Option<&Response<Bytes>>,
    ) -> Settlement {
        let ended = Ended {
            status: Status::Failed,
            reply,
            error: Some(why),
        };
        let settle = Settlement {
            result: Some(encode(reply)),
            ..Settlement::failed(why, self.replay.shared.settings.keep_failed)
        };
        self.told(entry, stored, &ended, settle).await
    }

    /// How it ended, and with it who is told so. A callback that can't be sent is a dead letter
    /// before it ends.
    async fn told(
        &self,
        entry: &Entry,
        stored: &Stored,
        ended: &Ended<'_>,
        settle: Settlement,
    ) -> Settlement {
        let unsendable = match self.replay.callback(entry, stored, ended) {
            Ok(callback) => return settle.followed_by(callback),
            Err(unsendable) => unsendable,
        };
        match self.replay.bury_callback(entry, unsendable).await {
            Ok(()) => settle,
            Err(_) => again(entry, "its callback could not be written down"),
        }
    }
}

/// Another attempt, after a while.
fn again(entry: &Entry, why: impl Into<String>) -> Settlement {
    let n = entry.attempts.saturating_sub(1);
    Settlement::retry(why, BACKOFF.delay(n, Duration::ZERO, rand::random()))
}

/// On a reply whose body is not there, since it is too large or broke off.
#[derive(Clone)]
struct Bodiless;

/// The reply as it is kept. Nothing of one without its body is, and then nothing takes the place of
/// what an earlier attempt left.
fn encode(reply: Option<&Response<Bytes>>) -> Bytes {
    match reply {
        Some(reply) if reply.extensions().get::<Bodiless>().is_none() => {
            let (head, body) = reply.clone().into_parts();
            reply::encode(&head, None, &body, &Unstored::default())
        }
        _ => Bytes::new(),
    }
}

/// The reply with its body, or marked as without.
async fn gather<R: Body>(response: Response<R>, limit: usize) -> Response<Bytes> {
    let (mut head, body) = response.into_parts();
    let body = match read_whole(pin!(body), limit).await {
        Ok(body) => body,
        Err(_) => {
            head.extensions.insert(Bodiless);
            Bytes::new()
        }
    };
    Response::from_parts(head, body)
}
