use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use tokio::time::{Instant, sleep};
use tower::{Service, ServiceExt};

use super::{
    Dialect, Execution,
    dialect::Refusal,
    engine::Operation,
    execute::{Ended, execute},
    future::{Answer, refusal},
    settings::Shared,
};
use crate::http::{BufferedBody, reply};
use crate::{
    http::{
        problem::Problem,
        read::{ReadError, read_whole},
    },
    store::{Claimed, IdempotencyStore, Note, StoreError, StoreErrorKind, Stored},
    telemetry::{self, Answered},
};

/// While a repeat waits for the first one's reply, it looks this often, and then less often.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const LOOK_AGAIN_MOST: Duration = Duration::from_millis(250);

/// One request with a key, or that may have one.
pub(super) struct Keyed<S, St, D: Dialect> {
    pub(super) service: S,
    pub(super) shared: Arc<Shared<St, D>>,
    pub(super) asked: D::Asked,
    /// Boxed, since it is moved about a lot, and futures keep a place for each move.
    pub(super) head: Box<Request<()>>,
}

impl<S, St: IdempotencyStore, D: Dialect> Keyed<S, St, D> {
    /// Reads the body, claims the key, and answers by what came of that.
    #[allow(
        clippy::manual_async_fn,
        reason = "an async fn would keep its arguments twice"
    )]
    pub(super) fn answer<B, R>(
        mut self,
        body: B,
    ) -> impl Future<Output = Answer<R, S::Error>> + Send
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        B: Body + From<Bytes> + Send + 'static,
        B::Data: Send,
        B::Error: Send,
        R: Body + Send + 'static,
        R::Error: Send,
    {
        async move {
            let limit = self.shared.settings.request_limit;
            let body = match read_whole(pin!(body), limit).await {
                Ok(body) => body,
                Err(ReadError::TooLarge) => {
                    let detail = format!("At most {limit} bytes are allowed.");
                    let problem = Problem::TOO_LARGE.detail(detail);
                    return Ok(self.refuse(Answered::Refused, problem));
                }
                Err(ReadError::Broken) => {
                    return Ok(self.refuse(Answered::Refused, Problem::UNREADABLE));
                }
            };
            let Shared { dialect, .. } = &*self.shared;
            let read = dialect.read(self.shared.common(), &self.head, &mut self.asked, &body);
            let operation = match read {
                Ok(Some(operation)) => operation,
                Ok(None) => return self.pass(body).await,
                Err(problem) => return Ok(self.refuse(Answered::Refused, problem)),
            };
            let (answered, problem, note) = match self.claim(&operation).await {
                Ok(Claimed::New(lease)) => {
                    self.count(match lease.orphaned {
                        true => Answered::Orphaned,
                        false => Answered::Executed,
                    });
                    let shared = Arc::clone(&self.shared);
                    let Operation { key, retention, .. } = operation;
                    let execution = Execution::new(shared, key, lease, retention);
                    let asked = self.asked.clone();
                    let problem = match execute(self, body, execution).await {
                        Ok(Err(error)) => return Err(error),
                        Ok(Ok(Some(response))) => return Ok(response),
                        Ok(Ok(None)) => Problem::PROCESSING,
                        // The lease runs out, and then the key is an orphan.
                        Err(Ended::Crashed) => Problem::CRASHED,
                        Err(Ended::Abandoned) => Problem::UNAVAILABLE,
                    };
                    return Ok(refusal(D::refuse(&asked, &problem.into())));
                }
                Ok(Claimed::Done { stored, note }) => match stored {
                    Stored::Reply(bytes) => match reply::decode(bytes) {
                        Some(mut reply) => {
                            self.count(Answered::Replayed);
                            let Shared { dialect, .. } = &*self.shared;
                            dialect.replayed(&self.asked, &note, &mut reply);
                            return Ok(replayed(reply));
                        }
                        None => {
                            telemetry::store_trouble("replay", StoreErrorKind::Corrupt.as_str());
                            (Answered::StoreError, Problem::NOT_RETAINED, note)
                        }
                    },
                    Stored::NotRetained => (Answered::Replayed, Problem::NOT_RETAINED, note),
                    Stored::Unknown => (Answered::Orphaned, Problem::OUTCOME_UNKNOWN, note),
                },
                Ok(Claimed::InFlight { note, .. }) => {
                    (Answered::InFlight, Problem::PROCESSING, note)
                }
                Ok(Claimed::Mismatch { fingerprint, note }) => {
                    let refusal = Refusal {
                        problem: Problem::REUSED,
                        note,
                        fingerprint: Some(fingerprint),
                    };
                    return Ok(self.refuse(Answered::Mismatch, refusal));
                }
                Err(error) => {
                    telemetry::store_trouble("claim", error.kind().as_str());
                    if self.shared.settings.fail_open && lets_pass(&error) {
                        self.count(Answered::StoreError);
                        return self.pass(body).await;
                    }
                    (Answered::StoreError, Problem::UNAVAILABLE, Note::NONE)
                }
            };
            let refusal = Refusal {
                note,
                ..problem.into()
            };
            Ok(self.refuse(answered, refusal))
        }
    }

    /// Executes it without protection.
    fn pass<B, R>(self, body: Bytes) -> Pin<Box<dyn Future<Output = Answer<R, S::Error>> + Send>>
    where
        S: Service<Request<B>, Response = Response<R>> + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        B: From<Bytes> + Send + 'static,
        R: Body + Send + 'static,
    {
        let request = self.head.map(|()| B::from(body));
        let response = self.service.oneshot(request);
        Box::pin(async { Ok(response.await?.map(BufferedBody::untouched)) })
    }

    fn count(&self, answered: Answered) {
        telemetry::idempotency(answered, || {
            self.shared.labels(&self.head, Some(&self.asked))
        });
    }

    fn refuse<R: Body>(
        &self,
        answered: Answered,
        why: impl Into<Refusal>,
    ) -> Response<BufferedBody<R>> {
        self.count(answered);
        refusal(D::refuse(&self.asked, &why.into()))
    }

    /// Claims the key, and again for as long as it is in flight and may be waited for.
    async fn claim(&mut self, operation: &Operation) -> Result<Claimed, StoreError>
    where
        S: Clone,
    {
        let Shared {
            engine, settings, ..
        } = &*self.shared;
        let claimed = engine.claim(operation).await;
        if settings.wait.is_zero() || !matches!(claimed, Ok(Claimed::InFlight { .. })) {
            return claimed;
        }
        crate::call::release(&mut self.service);
        let waiting = async {
            let until = Instant::now() + settings.wait;
            let mut pause = LOOK_AGAIN;
            loop {
                let left = until.saturating_duration_since(Instant::now());
                sleep(pause.min(left)).await;
                let claimed = engine.claim(operation).await;
                if left <= pause || !matches!(claimed, Ok(Claimed::InFlight { .. })) {
                    return claimed;
                }
                pause = (pause * 2).min(LOOK_AGAIN_MOST);
            }
        };
        Box::pin(waiting).await
    }
}

fn replayed<R: Body>(reply: reply::Reply) -> Response<BufferedBody<R>> {
    let mut response = Response::new(BufferedBody::whole(reply.body, reply.trailers));
    *response.status_mut() = reply.status;
    *response.headers_mut() = reply.headers;
    let replayed = HeaderValue::from_static("true");
    response
        .headers_mut()
        .insert("idempotent-replayed", replayed);
    response
}

/// Whether a request may be executed although its store failed, where that is wanted at all. A
/// record that is there but can't be read may be that of an execution.
fn lets_pass(error: &StoreError) -> bool {
    error.is_transient() || error.kind() == StoreErrorKind::Full
}
