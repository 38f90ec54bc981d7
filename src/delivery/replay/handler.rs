use std::{
    any::Any,
    borrow::Cow,
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
    Replay,
    attempt::{Judged, judge, judge_reply},
    callback::Ended,
    request::Stored,
    served::{cannot_call, cannot_serve},
    slow_start::SlowStart,
};
use crate::{
    backoff::{Backoff, FullJitter},
    call::{Attempt, Retryable},
    classify::{Rules, http::is_replayed, network},
    client::retry::PrepareAttempt,
    delivery::{
        dead_letter::reason,
        redact::correlation_id,
        stored_message,
        worker::{Admission, AttemptLabels, Handler, LaneAdmission, TargetAdmission},
    },
    dependency::{BreakerState, DependencyStatus},
    error::BoxError,
    http::{header_filter::HeaderFilter, headers::printable, read::read_whole, reply},
    store::journal::{Entry, Journal, Settlement, Status},
};

/// The pause before another attempt.
const BACKOFF: FullJitter = FullJitter {
    base: Duration::from_secs(2),
    cap: Duration::from_secs(60),
};

/// The pause before looking again at a request that another execution is running.
const BUSY: Duration = Duration::from_secs(1);

/// Replays requests of a journal into a service.
pub struct ReplayHandler<J, S, B, H = ()> {
    replay: Replay<J>,
    /// In a lock since it need not be `Sync`; it is only cloned.
    service: Mutex<S>,
    prepare: H,
    body: PhantomData<fn() -> B>,
}

impl<J, S, B, H> ReplayHandler<J, S, B, H> {
    pub(super) fn new(replay: Replay<J>, service: S, prepare: H) -> Self {
        Self {
            replay,
            service: Mutex::new(service),
            prepare,
            body: PhantomData,
        }
    }
}

opaque_debug! { ReplayHandler<J, S, B, H> }

/// The end of one attempt.
enum Attempted {
    Done(Box<Reply>),
    /// The reply is final, and says that it failed.
    Refused(Box<Reply>),
    /// It failed, and may be attempted again.
    Failed(String, Option<Box<Reply>>),
    /// It failed for good, without a reply.
    Broken(String),
    /// It was not served at all; with the time to come back, if the reply says so.
    NotNow(Option<Duration>),
    /// Another execution is running: its caller's, or that of a worker that has died.
    Busy(Option<Duration>),
}

impl<J, S, B, H, R> Handler for ReplayHandler<J, S, B, H>
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
        let settings = &self.replay.state.settings;
        let Some(stored) = Stored::decode(entry.payload.clone()) else {
            return reason::failed(reason::UNREADABLE, settings.keep_failed);
        };
        if entry.is_past() {
            self.replay.abandon(&entry, &stored).await;
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
                let why = format!("replied {}", reply.response.status().as_u16());
                self.fail(&entry, &stored, &why, Some(&reply)).await
            }
            Attempted::Broken(why) => self.fail(&entry, &stored, &why, None).await,
            Attempted::Failed(why, reply) if entry.attempts >= settings.attempts => {
                self.fail(&entry, &stored, &why, reply.as_deref()).await
            }
            Attempted::Failed(why, _) => again(&entry, why.clone()).cause(why),
            Attempted::NotNow(asked) => {
                Settlement::release(self.replay.state.pace(&entry.lane).refused(asked))
            }
            Attempted::Busy(asked) => Settlement::release(asked.unwrap_or(BUSY).max(BUSY)),
        }
    }

    fn target<'a>(&self, entry: &'a Entry) -> Option<Cow<'a, str>> {
        let target = self.replay.state.settings.target_of(&entry.lane);
        Some(Cow::Borrowed(target.unwrap_or(&entry.queue)))
    }

    fn lane(&self, lane: &str) -> LaneAdmission {
        let state = &self.replay.state;
        let target = state.settings.target_of(lane).map(|name| {
            let paces = state.settings.targets_paced_by.iter();
            let most = paces.map(|all| pace_of(&all.get(name).status())).min();
            TargetAdmission {
                name: name.into(),
                admission: admission(most, &state.paces.of(name)),
            }
        });
        LaneAdmission {
            target,
            ..LaneAdmission::default()
        }
    }

    fn labels(&self, entry: &Entry) -> AttemptLabels {
        let settings = &self.replay.state.settings;
        let headers = stored_message::contents(entry.payload.clone()).map(|(headers, _)| headers);
        let headers = headers.unwrap_or_default();
        let key = headers.get(settings.dialect.key_header());
        let key = key.and_then(|key| printable(key.as_bytes()).map(str::to_owned));
        AttemptLabels {
            max_attempts: settings.attempts,
            correlation_id: correlation_id(&headers),
            idempotency_key: key,
        }
    }

    fn admission(&self) -> Admission {
        let state = &self.replay.state;
        let paces = state.settings.paced_by.iter();
        let paces = paces.map(|(all, name)| pace_of(&all.get(name).status()));
        let most = paces.min();
        match (self.replay.maintenance.is_on(), &state.settings.target) {
            (true, _) => Admission::Urgent,
            (false, None) => admission(most, &state.paces.of("")),
            (false, Some(_)) => up_to(most.unwrap_or(usize::MAX)),
        }
    }
}

/// Returns what a pace admits, if no more than `most` are.
fn admission(most: Option<usize>, pace: &SlowStart) -> Admission {
    up_to(most.unwrap_or(usize::MAX).min(pace.limit()))
}

fn up_to(most: usize) -> Admission {
    match most {
        0 => Admission::Urgent,
        most => Admission::UpTo(most),
    }
}

/// Returns how many replays at a time a dependency can take.
fn pace_of(status: &DependencyStatus) -> usize {
    let allowed = status.retries_allowed;
    let used_up = allowed.is_some_and(|allowed| status.retries > 0 && status.retries >= allowed);
    match status.breaker {
        _ if used_up || status.hold.is_some() => 0,
        BreakerState::Open(left) if !left.is_zero() => 0,
        // It is not known yet whether it is back.
        BreakerState::Open(_) | BreakerState::Recovering => 1,
        BreakerState::Closed => usize::MAX,
    }
}

impl<J, S, B, H, R> ReplayHandler<J, S, B, H>
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
    /// Attempts a request under the key that it has.
    ///
    /// If it was redriven, and that key has but the stored reply that failed it, it is attempted
    /// under a key of the redrive: so it is executed once more for each redrive, and only if the
    /// execution before is known to have failed.
    async fn attempt(&self, entry: &Entry, stored: &Stored) -> Attempted {
        let attempting = async {
            let mut attempted = Attempted::Broken(reason::UNREADABLE.to_owned());
            for redrive in 0..=entry.redrives {
                let Some(request) = self.replay.request(entry, stored, redrive) else {
                    break;
                };
                attempted = self.call(entry, request.map(B::from)).await;
                let replayed = matches!(&attempted, Attempted::Refused(reply) if is_replayed(reply.response.headers()));
                if !replayed {
                    break;
                }
            }
            attempted
        };
        match timeout(self.replay.state.settings.timeout, attempting).await {
            Ok(attempted) => attempted,
            Err(_) => Attempted::Failed("timeout".to_owned(), None),
        }
    }

    async fn call(&self, entry: &Entry, request: Request<B>) -> Attempted {
        let attempt = Attempt::retry(entry.attempts);
        let service = self
            .service
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let settings = &self.replay.state.settings;
        let Ok(request) = self.prepare.prepare(request, attempt).await else {
            return Attempted::Failed(reason::UNPREPARED.to_owned(), None);
        };
        let response = match service.oneshot(request).await {
            Ok(response) => response,
            Err(error) => return self.by_error(error),
        };
        if cannot_serve(&response).is_some() {
            return Attempted::NotNow(judge(&response).repeat_after());
        }
        self.replay.state.pace(&entry.lane).served();
        let reply = Box::new(Reply::read(response, settings.response_limit).await);
        match judge_reply(&*settings.dialect, &reply.response) {
            Judged::Processing(asked) => Attempted::Busy(asked),
            Judged::Success => Attempted::Done(reply),
            Judged::Final => Attempted::Refused(reply),
            Judged::Transient(cause) => Attempted::Failed(cause.to_string(), Some(reply)),
        }
    }
}

impl<J: Journal + Clone, S, B, H> ReplayHandler<J, S, B, H> {
    fn by_error<E: Into<BoxError> + 'static>(&self, error: E) -> Attempted {
        if cannot_call(&error as &dyn Any).is_some() {
            return Attempted::NotNow(None);
        }
        let error = error.into();
        let verdict = network::classify(&Rules::standard(), &*error);
        let why = verdict.cause.to_string();
        match verdict.retry {
            Retryable::Never => Attempted::Broken(why),
            _ => Attempted::Failed(why, None),
        }
    }

    async fn complete(&self, entry: &Entry, stored: &Stored, reply: &Reply) -> Settlement {
        let ended = Ended {
            status: Status::Completed,
            reply: Some(&reply.response),
            error: None,
        };
        let keep = self.replay.state.settings.keep;
        let settle = Settlement {
            note: format!("replied {}", reply.response.status().as_u16()),
            ..Settlement::completed(reply.encode(), keep)
        };
        self.told(entry, stored, &ended, settle).await
    }

    async fn fail(
        &self,
        entry: &Entry,
        stored: &Stored,
        why: &str,
        reply: Option<&Reply>,
    ) -> Settlement {
        self.replay.abandon(entry, stored).await;
        let ended = Ended {
            status: Status::Failed,
            reply: reply.map(|reply| &reply.response),
            error: Some(why),
        };
        let settle = Settlement {
            result: Some(reply.map(Reply::encode).unwrap_or_default()),
            ..Settlement::failed(why, self.replay.state.settings.keep_failed).cause(why.to_owned())
        };
        self.told(entry, stored, &ended, settle).await
    }

    /// Adds the callback to a settlement. One that can't be sent is dead-lettered before.
    async fn told(
        &self,
        entry: &Entry,
        stored: &Stored,
        ended: &Ended<'_>,
        settle: Settlement,
    ) -> Settlement {
        let settle = settle.remainder(stored.summary().encode());
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

/// Retries after a pause.
fn again(entry: &Entry, why: impl Into<String>) -> Settlement {
    let n = entry.attempts.saturating_sub(1);
    Settlement::retry(why, BACKOFF.delay(n, Duration::ZERO, rand::random()))
}

/// A reply that was read up to the limit.
struct Reply {
    response: Response<Bytes>,
    /// The body is not there, since it is too large or broke off.
    bodiless: bool,
}

impl Reply {
    async fn read<R: Body>(response: Response<R>, limit: usize) -> Self {
        let (head, body) = response.into_parts();
        let body = read_whole(pin!(body), limit).await;
        Self {
            bodiless: body.is_err(),
            response: Response::from_parts(head, body.unwrap_or_default()),
        }
    }

    /// Encodes the reply for the journal. One without its body is not kept, and then does not take
    /// the place of the reply of an earlier attempt.
    fn encode(&self) -> Bytes {
        if self.bodiless {
            return Bytes::new();
        }
        let (head, body) = self.response.clone().into_parts();
        reply::encode(&head, None, &body, &HeaderFilter::default())
    }
}
