use std::pin::pin;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::task::JoinHandle;
use tower::{Service, ServiceExt};

use super::{
    Execution, IdempotencyBody, Outcome,
    body::{Gathered, gather},
    engine::Settlement,
    keyed::Keyed,
    outcome, reply,
    settings::Shared,
};
use crate::{
    store::{IdempotencyStore, Orphans, Ownership, Stored},
    telemetry,
};

/// The handler's reply; none if another execution took over, whose reply is the one.
type Executed<R, E> = Result<Option<Response<IdempotencyBody<R>>>, E>;

/// Executes on a task of its own, which ends when it ends and not when the caller goes away.
pub(super) fn execute<S, St, B, R>(
    keyed: Keyed<S, St>,
    body: Bytes,
    execution: Execution,
) -> JoinHandle<Executed<R, S::Error>>
where
    S: Service<Request<B>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    St: IdempotencyStore,
    B: From<Bytes> + Send + 'static,
    R: Body + Send + 'static,
    R::Error: Send,
{
    tokio::spawn(telemetry::in_span(async move {
        let Keyed {
            service,
            shared,
            mut head,
            ..
        } = keyed;
        head.extensions_mut().insert(execution.clone());
        let executing = pin!(async {
            let request = head.map(|()| B::from(body));
            let response = service.oneshot(request).await?;
            // Boxed, so that a task has no room for its end while it is executing.
            Ok(Box::pin(finish(&shared, &execution, response)).await)
        });
        shared.engine.hold(&execution, executing).await
    }))
}

/// Tells the store how an execution ended. Then there is a reply, unless another execution took
/// over.
async fn finish<St: IdempotencyStore, R: Body>(
    shared: &Shared<St>,
    execution: &Execution,
    response: Response<R>,
) -> Option<Response<IdempotencyBody<R>>> {
    let (settlement, response) = end(shared, response).await;
    let ownership = shared.engine.settle(execution, settlement).await;
    (ownership == Ownership::Held).then_some(response)
}

/// How an execution ended, and its reply.
async fn end<St, R: Body>(
    shared: &Shared<St>,
    response: Response<R>,
) -> (Settlement, Response<IdempotencyBody<R>>) {
    let settings = &shared.settings;
    let from_head = outcome::of_head(&response, settings.server_errors);
    let (outcome, kept, response) = match from_head {
        Some(outcome @ (Outcome::NoEffect | Outcome::Unknown)) => {
            let response = response.map(IdempotencyBody::inner);
            (outcome, Stored::NotRetained, response)
        }
        Some(Outcome::Committed) | None => {
            let (head, body) = response.into_parts();
            match gather(body, settings.response_limit).await {
                Gathered::Whole { data, trailers } => {
                    let trailing = trailers.as_deref();
                    let outcome = from_head
                        .unwrap_or_else(|| outcome::of_trailers(trailing, settings.server_errors));
                    let reply = reply::encode(&head, trailing, &data, &settings.unstored);
                    let body = IdempotencyBody::whole(data, trailers);
                    let response = Response::from_parts(head, body);
                    (outcome, Stored::Reply(reply), response)
                }
                Gathered::TooLarge(body) | Gathered::Broken(body) => {
                    let response = Response::from_parts(head, body);
                    (Outcome::Committed, Stored::NotRetained, response)
                }
            }
        }
    };
    let settlement = match (outcome, shared.engine.orphans) {
        (Outcome::Committed, _) => Settlement::Complete(kept),
        (Outcome::Unknown, Orphans::Unknown) => Settlement::Complete(Stored::Unknown),
        (Outcome::Unknown, Orphans::Reexecute) | (Outcome::NoEffect, _) => Settlement::Release,
    };
    (settlement, response)
}
