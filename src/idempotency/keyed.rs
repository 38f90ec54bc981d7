use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use tokio::time::{Instant, sleep};
use tower::{Service, ServiceExt};

use super::{
    Execution, IdempotencyBody,
    digest::fingerprint,
    execute::execute,
    future::refusal,
    reply,
    settings::{Shared, speaks_grpc},
};
use crate::{
    store::{
        Claimed, Fingerprint, IdempotencyStore, RecordKey, StoreError, StoreErrorKind, Stored,
    },
    telemetry::{self, Answered},
    wire::{problem::Problem, read::Read},
};

/// While a repeat waits for the first one's reply, it looks this often, and then less often.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const LOOK_AGAIN_MOST: Duration = Duration::from_millis(250);

/// One request with a key.
pub(super) struct Keyed<S, St> {
    pub(super) service: S,
    pub(super) shared: Arc<Shared<St>>,
    pub(super) key: RecordKey,
    /// Boxed, since it is moved about a lot, and futures keep a place for each move.
    pub(super) head: Box<Request<()>>,
}

impl<S, St: IdempotencyStore> Keyed<S, St> {
    /// Reads the body, claims the key, and answers by what came of that.
    #[allow(
        clippy::manual_async_fn,
        reason = "an async fn would keep its arguments twice"
    )]
    pub(super) fn answer<B, R>(
        mut self,
        body: B,
    ) -> impl Future<Output = Result<Response<IdempotencyBody<R>>, S::Error>> + Send
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
            let mut read = Read::default();
            let body = match read.up_to(limit, pin!(body)).await {
                Ok(true) => read.joined(),
                Ok(false) => {
                    let detail = format!("At most {limit} bytes are allowed.");
                    let problem = Problem::TOO_LARGE.detail(detail);
                    return Ok(self.refuse(Answered::Refused, &problem));
                }
                Err(_) => return Ok(self.refuse(Answered::Refused, &Problem::UNREADABLE)),
            };
            let (answered, problem) = match self.claim(fingerprint(&self.head, &body)).await {
                Ok(Claimed::New(lease)) => {
                    self.count(match lease.orphaned {
                        true => Answered::Orphaned,
                        false => Answered::Executed,
                    });
                    let execution = Execution::new(self.key, lease);
                    let grpc = speaks_grpc(&self.head);
                    let executing = execute(self, body, execution);
                    let problem = match executing.await {
                        Ok(Err(error)) => return Err(error),
                        Ok(Ok(Some(response))) => return Ok(response),
                        Ok(Ok(None)) => Problem::PROCESSING,
                        // The lease runs out, and then the key is an orphan.
                        Err(crashed) if crashed.is_panic() => Problem::CRASHED,
                        Err(_) => Problem::UNAVAILABLE,
                    };
                    return Ok(refusal(problem.response(grpc)));
                }
                Ok(Claimed::Done(Stored::Reply(bytes))) => match reply::decode(bytes) {
                    Some(reply) => {
                        self.count(Answered::Replayed);
                        return Ok(replayed(reply));
                    }
                    None => {
                        telemetry::store_trouble("replay", StoreErrorKind::Corrupt);
                        (Answered::StoreError, Problem::NOT_RETAINED)
                    }
                },
                Ok(Claimed::Done(Stored::NotRetained)) => {
                    (Answered::Replayed, Problem::NOT_RETAINED)
                }
                Ok(Claimed::Done(Stored::Unknown)) => {
                    (Answered::Orphaned, Problem::OUTCOME_UNKNOWN)
                }
                Ok(Claimed::InFlight { .. }) => (Answered::InFlight, Problem::PROCESSING),
                Ok(Claimed::Mismatch) => (Answered::Mismatch, Problem::REUSED),
                Err(error) => {
                    telemetry::store_trouble("claim", error.kind());
                    if self.shared.settings.fail_open && lets_pass(&error) {
                        self.count(Answered::StoreError);
                        let request = self.head.map(|()| B::from(body));
                        let response = Box::pin(self.service.oneshot(request)).await?;
                        return Ok(response.map(IdempotencyBody::inner));
                    }
                    (Answered::StoreError, Problem::UNAVAILABLE)
                }
            };
            Ok(self.refuse(answered, &problem))
        }
    }

    fn count(&self, answered: Answered) {
        telemetry::idempotency(answered, || self.shared.labels(&self.head));
    }

    fn refuse<R: Body>(
        &self,
        answered: Answered,
        problem: &Problem,
    ) -> Response<IdempotencyBody<R>> {
        self.count(answered);
        refusal(problem.response(speaks_grpc(&self.head)))
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
        let waiting = async {
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
        };
        Box::pin(waiting).await
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
