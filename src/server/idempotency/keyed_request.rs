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
    Execution,
    execute::{Aborted, execute},
    future::ReplyResult,
    settings::LayerState,
    settlement::Resumes,
};
use crate::{
    call::ReplayAttempt,
    http::{
        BufferedBody, RequestBody,
        problem::Problem,
        read::{ReadError, read_whole},
        reply,
    },
    server::dialect::{Dialect, Operation, Rejection},
    store::{Claimed, IdempotencyStore, Note, StoreError, StoreErrorKind, Stored},
    telemetry::{self, Answered},
};

/// A repeat that waits for the first reply polls the record at intervals from the first to the
/// second.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const LOOK_AGAIN_MOST: Duration = Duration::from_millis(250);

/// A request that has a key, or may have one in its body.
pub(super) struct KeyedRequest<S, St, D: Dialect> {
    pub(super) service: S,
    pub(super) state: Arc<LayerState<St, D>>,
    pub(super) asked: D::Asked,
    /// Boxed, since it is moved about a lot, and futures keep a place for each move.
    pub(super) head: Box<Request<()>>,
}

impl<S, St: IdempotencyStore, D: Dialect> KeyedRequest<S, St, D> {
    /// Reads the body, claims the key, and answers by the result of the claim.
    #[allow(
        clippy::manual_async_fn,
        reason = "an async fn would keep its arguments twice"
    )]
    pub(super) fn answer<B, R>(
        mut self,
        body: B,
    ) -> impl Future<Output = ReplyResult<R, S::Error>> + Send
    where
        S: Service<Request<B::Rebuilt>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        B: RequestBody + Send + 'static,
        B::Data: Send,
        B::Error: Send,
        B::Rebuilt: Send,
        R: Body + Send + 'static,
        R::Error: Send,
    {
        async move {
            let limit = self.state.settings.request_limit;
            let body = match read_whole(pin!(body), limit).await {
                Ok(body) => body,
                Err(ReadError::TooLarge) => {
                    let detail = format!("At most {limit} bytes are allowed.");
                    let problem = Problem::TOO_LARGE.detail(detail);
                    return Ok(self.reject(Answered::Refused, problem));
                }
                Err(ReadError::Broken) => {
                    return Ok(self.reject(Answered::Refused, Problem::UNREADABLE));
                }
            };
            let LayerState { dialect, .. } = &*self.state;
            let context = self.state.context();
            let operation = dialect.operation(context, &self.head, &mut self.asked, &body);
            let operation = match operation {
                Ok(Some(operation)) => operation,
                Ok(None) => return self.pass::<B, R>(body).await,
                Err(problem) => return Ok(self.reject(Answered::Refused, problem)),
            };
            let (answered, problem, note) = match self.claim(&operation).await {
                Ok(Claimed::New(lease)) => {
                    self.count(match lease.orphaned {
                        true => Answered::Orphaned,
                        false => Answered::Executed,
                    });
                    let state = Arc::clone(&self.state);
                    let Operation { id, retention, .. } = operation;
                    let execution = Execution::new(state, id.key, lease, retention);
                    let asked = self.asked.clone();
                    let problem = match execute::<_, _, _, B, _>(self, body, execution).await {
                        Ok(Err(error)) => return Err(error),
                        Ok(Ok(Some(response))) => return Ok(response),
                        Ok(Ok(None)) => Problem::PROCESSING,
                        // The lease runs out, and then the key is an orphan.
                        Err(Aborted::Panicked) => Problem::CRASHED,
                        Err(Aborted::ShutDown) => Problem::UNAVAILABLE,
                    };
                    return Ok(D::reject(&asked, &problem.into()).map(BufferedBody::from));
                }
                Ok(Claimed::Done { stored, note }) => match stored {
                    Stored::Reply(bytes) => match reply::decode(bytes) {
                        Some(mut reply) => {
                            self.count(Answered::Replayed);
                            let LayerState { dialect, .. } = &*self.state;
                            dialect.rewrite_replayed(&self.asked, &note, &mut reply);
                            return Ok(replayed(reply));
                        }
                        None => {
                            telemetry::store_trouble("replay", StoreErrorKind::Corrupt.as_str());
                            (Answered::StoreError, Problem::NOT_RETAINED, note)
                        }
                    },
                    Stored::NotRetained => (Answered::Replayed, Problem::NOT_RETAINED, note),
                    Stored::Unknown => {
                        telemetry::outcome_unknown(operation.id.key, || {
                            self.state.labels(&self.head, Some(&self.asked))
                        });
                        (Answered::Orphaned, Problem::OUTCOME_UNKNOWN, note)
                    }
                },
                Ok(Claimed::InFlight { note, .. }) => {
                    (Answered::InFlight, Problem::PROCESSING, note)
                }
                Ok(Claimed::Mismatch { fingerprint, note }) => {
                    let rejection = Rejection {
                        problem: Problem::REUSED,
                        note,
                        fingerprint: Some(fingerprint),
                    };
                    return Ok(self.reject(Answered::Mismatch, rejection));
                }
                Err(error) => {
                    telemetry::store_trouble("claim", error.kind().as_str());
                    if self.state.settings.fail_open && lets_pass(&error) {
                        self.count(Answered::StoreError);
                        return self.pass::<B, R>(body).await;
                    }
                    (Answered::StoreError, Problem::UNAVAILABLE, Note::NONE)
                }
            };
            let rejection = Rejection {
                note,
                ..problem.into()
            };
            Ok(self.reject(answered, rejection))
        }
    }

    /// Executes the request without protection.
    fn pass<B, R>(
        self,
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = ReplyResult<R, S::Error>> + Send>>
    where
        S: Service<Request<B::Rebuilt>, Response = Response<R>> + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        B: RequestBody,
        B::Rebuilt: Send,
        R: Body + Send + 'static,
    {
        let request = self.head.map(|()| B::rebuilt(body));
        let response = self.service.oneshot(request);
        Box::pin(async { Ok(response.await?.map(BufferedBody::new)) })
    }

    fn count(&self, answered: Answered) {
        telemetry::idempotency(answered, || {
            self.state.labels(&self.head, Some(&self.asked))
        });
    }

    fn reject<R: Body>(
        &self,
        answered: Answered,
        why: impl Into<Rejection>,
    ) -> Response<BufferedBody<R>> {
        self.count(answered);
        D::reject(&self.asked, &why.into()).map(BufferedBody::from)
    }

    /// Claims the key, and again for as long as it is in flight and may be waited for.
    async fn claim(&mut self, operation: &Operation) -> Result<Claimed, StoreError>
    where
        S: Clone,
    {
        let LayerState {
            engine, settings, ..
        } = &*self.state;
        let attempt = self.head.extensions().get::<ReplayAttempt>();
        let resumes = attempt.and_then(|attempt| Resumes::of(attempt, settings.limits.lease));
        let claimed = engine.claim(operation, resumes).await;
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
                let claimed = engine.claim(operation, resumes).await;
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

/// Returns whether a layer that fails open may execute a request after this error. A record that
/// can't be read may be that of an execution.
fn lets_pass(error: &StoreError) -> bool {
    error.is_transient() || error.kind() == StoreErrorKind::Full
}
