use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use tokio::time::{Instant, sleep};
use tower::{Service, ServiceExt};

use super::{
    Execution, IdempotencyBody, Outcome,
    body::{Gathered, gather},
    digest::fingerprint,
    engine::Settlement,
    future::refusal,
    outcome, reply,
    settings::Shared,
};
use crate::{
    store::{
        Claimed, Fingerprint, IdempotencyStore, Lease, Orphans, Ownership, RecordKey, StoreError,
        StoreErrorKind, Stored,
    },
    telemetry,
    wire::problem::Problem,
};

/// While a repeat waits for the first one's reply, it looks this often, and then less often.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const LOOK_AGAIN_MOST: Duration = Duration::from_millis(250);

/// One request with a key.
pub(super) struct Keyed<S, St> {
    pub(super) service: S,
    pub(super) shared: Arc<Shared<St>>,
    pub(super) grpc: bool,
    pub(super) key: RecordKey,
}

impl<S, St: IdempotencyStore> Keyed<S, St> {
    /// Reads the body, claims the key, and answers by what came of that.
    pub(super) async fn answer<B, R>(
        mut self,
        head: Request<()>,
        body: B,
    ) -> Result<Response<IdempotencyBody<R>>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        B: Body + From<Bytes> + Send + 'static,
        R: Body + Send + 'static,
        R::Error: Send,
    {
        let labels = || self.shared.labels(&head);
        let limit = self.shared.settings.request_limit;
        let body = match gather(body, limit).await {
            Gathered::Whole { data, .. } => data,
            Gathered::TooLarge(_) => {
                telemetry::idempotency("refused", labels);
                let detail = format!("At most {limit} bytes are allowed.");
                return Ok(self.refuse(&Problem::TOO_LARGE.detail(detail)));
            }
            Gathered::Broken(_) => {
                telemetry::idempotency("refused", labels);
                return Ok(self.refuse(&Problem::UNREADABLE));
            }
        };
        let claimed = self.claim(fingerprint(&head, &body)).await;
        let labels = || self.shared.labels(&head);
        let problem = match claimed {
            Ok(Claimed::New(lease)) => {
                telemetry::idempotency(
                    if lease.orphaned {
                        "orphaned"
                    } else {
                        "executed"
                    },
                    labels,
                );
                let request = head.map(|()| B::from(body));
                return self.execute(request, lease).await;
            }
            Ok(Claimed::Done(Stored::Reply(bytes))) => match reply::decode(bytes) {
                Some(reply) => {
                    telemetry::idempotency("replayed", labels);
                    return Ok(replayed(reply));
                }
                None => {
                    telemetry::idempotency("store_error", labels);
                    telemetry::store_trouble("replay", StoreErrorKind::Corrupt);
                    Problem::NOT_RETAINED
                }
            },
            Ok(Claimed::Done(Stored::NotRetained)) => {
                telemetry::idempotency("replayed", labels);
                Problem::NOT_RETAINED
            }
            Ok(Claimed::Done(Stored::Unknown)) => {
                telemetry::idempotency("orphaned", labels);
                Problem::OUTCOME_UNKNOWN
            }
            Ok(Claimed::InFlight { .. }) => {
                telemetry::idempotency("in_flight", labels);
                Problem::PROCESSING
            }
            Ok(Claimed::Mismatch) => {
                telemetry::idempotency("mismatch", labels);
                Problem::REUSED
            }
            Err(error) => {
                telemetry::idempotency("store_error", labels);
                telemetry::store_trouble("claim", error.kind());
                if self.shared.settings.fail_open && lets_pass(&error) {
                    let request = head.map(|()| B::from(body));
                    let response = self.service.oneshot(request).await?;
                    return Ok(response.map(IdempotencyBody::inner));
                }
                Problem::UNAVAILABLE
            }
        };
        Ok(self.refuse(&problem))
    }

    fn refuse<R: Body>(&self, problem: &Problem) -> Response<IdempotencyBody<R>> {
        refusal(problem.response(self.grpc))
    }

    /// Claims the key, and again for as long as it is in flight and may be waited for.
    async fn claim(&mut self, fingerprint: Fingerprint) -> Result<Claimed, StoreError>
    where
        S: Clone,
    {
        let Shared {
            engine, settings, ..
        } = &*self.shared;
        let claimed = engine.claim(self.key, fingerprint).await;
        if settings.wait.is_zero() || !matches!(claimed, Ok(Claimed::InFlight { .. })) {
            return claimed;
        }
        crate::release(&mut self.service);
        let until = Instant::now() + settings.wait;
        let mut pause = LOOK_AGAIN;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            sleep(pause.min(left)).await;
            let claimed = engine.claim(self.key, fingerprint).await;
            if left <= pause || !matches!(claimed, Ok(Claimed::InFlight { .. })) {
                return claimed;
            }
            pause = (pause * 2).min(LOOK_AGAIN_MOST);
        }
    }

    /// Executes on a task of its own, which ends when it ends and not when the caller goes away.
    async fn execute<B, R>(
        self,
        mut request: Request<B>,
        lease: Lease,
    ) -> Result<Response<IdempotencyBody<R>>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>> + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        B: Send + 'static,
        R: Body + Send + 'static,
        R::Error: Send,
    {
        let Self {
            service,
            shared,
            grpc,
            key,
        } = self;
        let execution = Execution::new(key, lease);
        request.extensions_mut().insert(execution.clone());
        let executing = tokio::spawn(telemetry::in_span(async move {
            let engine = &shared.engine;
            let executing = async {
                let response = service.oneshot(request).await?;
                Ok(settle(&shared, &execution, response).await)
            };
            engine.hold(&execution, executing).await
        }));
        let problem = match executing.await {
            Ok(Err(error)) => return Err(error),
            Ok(Ok(Some(response))) => return Ok(response),
            Ok(Ok(None)) => Problem::PROCESSING,
            // The lease runs out, and then the key is an orphan.
            Err(crashed) if crashed.is_panic() => Problem::CRASHED,
            Err(_) => Problem::UNAVAILABLE,
        };
        Ok(refusal(problem.response(grpc)))
    }
}

/// Tells the store how an execution ended; then there is a reply, unless another execution took
/// over and its reply is the one.
async fn settle<St, R>(
    shared: &Shared<St>,
    execution: &Execution,
    response: Response<R>,
) -> Option<Response<IdempotencyBody<R>>>
where
    St: IdempotencyStore,
    R: Body,
{
    let settings = &shared.settings;
    let (head, body) = response.into_parts();
    let from_head = outcome::of_head(&head, settings.server_errors);
    let (outcome, kept, body) = match from_head {
        Some(outcome @ (Outcome::NoEffect | Outcome::Unknown)) => {
            (outcome, Stored::NotRetained, IdempotencyBody::inner(body))
        }
        Some(Outcome::Committed) | None => match gather(body, settings.response_limit).await {
            Gathered::Whole { data, trailers } => {
                let outcome = from_head.unwrap_or_else(|| {
                    outcome::of_trailers(trailers.as_ref(), settings.server_errors)
                });
                let bytes = reply::encode(
                    head.status,
                    &head.headers,
                    trailers.as_ref(),
                    &data,
                    &settings.unstored,
                );
                let body = IdempotencyBody::whole(data, trailers);
                (outcome, Stored::Reply(bytes), body)
            }
            Gathered::TooLarge(body) | Gathered::Broken(body) => {
                (Outcome::Committed, Stored::NotRetained, body)
            }
        },
    };
    let settlement = match (outcome, shared.engine.orphans) {
        (Outcome::Committed, _) => Settlement::Complete(kept),
        (Outcome::Unknown, Orphans::Unknown) => Settlement::Complete(Stored::Unknown),
        (Outcome::Unknown, Orphans::Reexecute) | (Outcome::NoEffect, _) => Settlement::Release,
    };
    match shared.engine.settle(execution, settlement).await {
        Ownership::Held => Some(Response::from_parts(head, body)),
        Ownership::Lost => None,
    }
}

fn replayed<R: Body>(reply: reply::Reply) -> Response<IdempotencyBody<R>> {
    let mut response = Response::new(IdempotencyBody::whole(reply.body, reply.trailers));
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
