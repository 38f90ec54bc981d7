use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header::CONTENT_LENGTH, response::Parts};
use http_body::Body;
use tower::{Service, ServiceExt};

use super::{
    Dialect, Execution, Outcome, dialect::Made, engine::Settlement, keyed::Keyed, outcome,
    settings::Shared,
};
use crate::http::{
    BufferedBody,
    read::{Buffered, buffer},
    reply,
};
use crate::{
    store::{CrashPolicy, IdempotencyStore, Ownership, Stored},
    telemetry,
};

/// The handler's reply; none if another execution took over, whose reply is the one.
type Executed<R, E> = Result<Option<Response<BufferedBody<R>>>, E>;

/// Why there is neither a reply nor an error of the handler's.
pub(super) enum Ended {
    /// It panicked.
    Crashed,
    /// The runtime is being shut down.
    Abandoned,
}

/// Executes to the end, also if the caller goes away: what is not done at its first step goes on on
/// a task of its own.
pub(super) async fn execute<S, St, D, B, R>(
    keyed: Keyed<S, St, D>,
    body: Bytes,
    execution: Execution,
) -> Result<Executed<R, S::Error>, Ended>
where
    S: Service<Request<B>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    St: IdempotencyStore,
    D: Dialect,
    B: From<Bytes> + Send + 'static,
    R: Body + Send + 'static,
    R::Error: Send,
{
    let mut executing = Box::pin(telemetry::in_span(async move {
        let Keyed {
            service,
            shared,
            asked,
            mut head,
        } = keyed;
        head.extensions_mut().insert(execution.clone());
        let executing = pin!(async {
            let request = head.map(|()| B::from(body));
            match service.oneshot(request).await {
                // Boxed, so that there is no room for its end while it is executing.
                Ok(response) => Ok(Box::pin(finish(&shared, &asked, &execution, response)).await),
                Err(error) => {
                    if outcome::is_unsent(&error, shared.settings.server_errors) {
                        let release = shared.engine.settle(&execution, Settlement::Release);
                        let _ = Box::pin(release).await;
                    }
                    Err(error)
                }
            }
        });
        shared.engine.hold(&execution, executing).await
    }));
    let first = poll_fn(|cx| {
        let step = AssertUnwindSafe(|| executing.as_mut().poll(cx));
        Poll::Ready(catch_unwind(step))
    });
    match first.await {
        Ok(Poll::Ready(executed)) => Ok(executed),
        Ok(Poll::Pending) => tokio::spawn(executing).await.map_err(|error| {
            if error.is_panic() {
                Ended::Crashed
            } else {
                Ended::Abandoned
            }
        }),
        Err(_) => Err(Ended::Crashed),
    }
}

/// Tells the store how an execution ended. Then there is a reply, unless another execution took
/// over.
async fn finish<St: IdempotencyStore, D: Dialect, R: Body>(
    shared: &Shared<St, D>,
    asked: &D::Asked,
    execution: &Execution,
    response: Response<R>,
) -> Option<Response<BufferedBody<R>>> {
    let (settlement, response) = end(shared, asked, execution.retention(), response).await;
    let ownership = shared.engine.settle(execution, settlement).await;
    (ownership == Ownership::Held).then_some(response)
}

/// How an execution ended, and its reply.
async fn end<St, D: Dialect, R: Body>(
    shared: &Shared<St, D>,
    asked: &D::Asked,
    retention: Duration,
    response: Response<R>,
) -> (Settlement, Response<BufferedBody<R>>) {
    let settings = &shared.settings;
    let from_head = outcome::of_head(&response, settings.server_errors);
    let before = outcome::before(&response);
    let (outcome, kept, response) = match from_head {
        Some(outcome @ (Outcome::NoEffect | Outcome::Unknown)) => {
            let response = response.map(BufferedBody::untouched);
            (outcome, Stored::NotRetained, response)
        }
        Some(Outcome::Committed) | None => {
            let (mut head, body) = response.into_parts();
            match buffer(body, settings.response_limit).await {
                Buffered::Whole { data, trailers } => {
                    let trailing = trailers.as_deref();
                    let mut outcome = from_head
                        .unwrap_or_else(|| outcome::of_trailers(trailing, settings.server_errors));
                    let common = shared.common();
                    let made = shared
                        .dialect
                        .processed(common, asked, retention, &head, &data);
                    if let Made::NoEffect = made {
                        outcome = Outcome::NoEffect;
                    }
                    let encode = |head: &Parts, body: &[u8]| {
                        reply::encode(head, trailing, body, &settings.unstored)
                    };
                    let (reply, data) = match made {
                        Made::AsItIs | Made::NoEffect => (encode(&head, &data), data),
                        Made::Dressed { kept, sent } => {
                            resize(&mut head.headers, &kept);
                            let reply = encode(&head, &kept);
                            resize(&mut head.headers, &sent);
                            (reply, sent)
                        }
                    };
                    let body = BufferedBody::whole(data, trailers);
                    let response = Response::from_parts(head, body);
                    (outcome, Stored::Reply(reply), response)
                }
                Buffered::Partial(body) => {
                    let response = Response::from_parts(head, body);
                    (Outcome::Committed, Stored::NotRetained, response)
                }
            }
        }
    };
    let outcome = match outcome {
        Outcome::NoEffect if !settings.server_errors.is_undone(before) => Outcome::Unknown,
        outcome => outcome,
    };
    let settlement = match (outcome, shared.engine.orphans) {
        (Outcome::Committed, _) => Settlement::Complete(kept),
        (Outcome::Unknown, CrashPolicy::Unknown) => Settlement::Complete(Stored::Unknown),
        (Outcome::Unknown, CrashPolicy::Reexecute) => Settlement::Orphan,
        (Outcome::NoEffect, _) => Settlement::Release,
    };
    (settlement, response)
}

/// Says how long a body is that took the place of another.
fn resize(headers: &mut HeaderMap, body: &Bytes) {
    if let Some(length) = headers.get_mut(CONTENT_LENGTH) {
        *length = body.len().into();
    }
}
