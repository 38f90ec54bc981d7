use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use bytes::Bytes;
use http::{Request, Response, response::Parts};
use http_body::Body;
use tower::{Service, ServiceExt};

use super::{
    Execution, HandlerOutcome,
    keyed_request::KeyedRequest,
    outcome,
    settings::LayerState,
    settlement::{Resumes, Settlement},
};
use crate::{
    call::{CallerContext, KeptReply, ReplayAttempt},
    http::{
        BufferedBody, RequestBody,
        headers::resize,
        read::{Buffered, buffer},
        reply,
    },
    server::dialect::{Dialect, Rewrite},
    store::{ClaimId, CrashPolicy, IdempotencyStore, Ownership, Stored},
    telemetry,
};

/// The handler's reply; `None` if another execution took over, whose reply counts.
type Executed<R, E> = Result<Option<Response<BufferedBody<R>>>, E>;

/// The end of an execution that neither replied nor failed.
pub(super) enum Aborted {
    Panicked,
    /// The runtime is shutting down.
    ShutDown,
}

/// Executes a request to its end, also if the caller goes away: one that is not done at its first
/// poll goes on on a task of its own.
pub(super) async fn execute<S, St, D, B, R>(
    keyed: KeyedRequest<S, St, D>,
    body: Bytes,
    execution: Execution,
) -> Result<Executed<R, S::Error>, Aborted>
where
    S: Service<Request<B::Rebuilt>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    St: IdempotencyStore,
    D: Dialect,
    B: RequestBody,
    B::Rebuilt: Send,
    R: Body + Send + 'static,
    R::Error: Send,
{
    let pending = Arc::clone(&keyed.state.engine.pending);
    let mut executing = Box::pin(telemetry::in_span(async move {
        let KeyedRequest {
            service,
            state,
            asked,
            mut head,
        } = keyed;
        head.extensions_mut().insert(execution.clone());
        let attempt = head.extensions().get::<ReplayAttempt>().cloned();
        let executing = pin!(async {
            let request = head.map(|()| B::rebuilt(body));
            match service.oneshot(request).await {
                // Boxed, so that the future is not larger while the handler runs.
                Ok(response) => {
                    let finish = finish(&state, &asked, &execution, attempt.as_ref(), response);
                    Ok(Box::pin(finish).await)
                }
                Err(error) => {
                    let journaled = |attempt: &ReplayAttempt| (attempt.not_served)(&error);
                    if state.settings.judge.is_unsent(&error)
                        || attempt.as_ref().is_some_and(journaled)
                    {
                        let unsent = unexecuted(&state, &execution, attempt.as_ref());
                        let release = settle(&state, &execution, attempt.as_ref(), unsent);
                        let _ = Box::pin(release).await;
                    }
                    Err(error)
                }
            }
        });
        state.engine.hold(&execution, executing).await
    }));
    let first = poll_fn(|cx| {
        let step = AssertUnwindSafe(|| executing.as_mut().poll(cx));
        Poll::Ready(catch_unwind(step))
    });
    match first.await {
        Ok(Poll::Ready(executed)) => Ok(executed),
        Ok(Poll::Pending) => {
            // Calls of the handler go by its caller on this task too.
            let caller = CallerContext::current();
            let running = tokio::spawn(CallerContext::carry(caller, async move {
                let _pending = pending.execution();
                executing.await
            }));
            running.await.map_err(|error| match error.is_panic() {
                true => Aborted::Panicked,
                false => Aborted::ShutDown,
            })
        }
        Err(_) => Err(Aborted::Panicked),
    }
}

/// Settles an execution with the store, and returns its reply unless another execution took over.
async fn finish<St: IdempotencyStore, D: Dialect, R: Body>(
    state: &LayerState<St, D>,
    asked: &D::Asked,
    execution: &Execution,
    attempt: Option<&ReplayAttempt>,
    response: Response<R>,
) -> Option<Response<BufferedBody<R>>> {
    let (settlement, mut response) = end(state, asked, execution, attempt, response).await;
    let failed = response.status().is_client_error() || response.status().is_server_error();
    if failed && matches!(settlement, Settlement::Complete(_)) {
        response.extensions_mut().insert(KeptReply);
    }
    let ownership = settle(state, execution, attempt, settlement).await;
    (ownership == Ownership::Held).then_some(response)
}

/// Settles an execution, and lets its journal hold the key for longer if it is suspended.
async fn settle<St: IdempotencyStore, D>(
    state: &LayerState<St, D>,
    execution: &Execution,
    attempt: Option<&ReplayAttempt>,
    settlement: Settlement,
) -> Ownership {
    let id = match settlement {
        Settlement::Suspend(id, _) => Some(id),
        _ => None,
    };
    let ownership = state.engine.settle(execution, settlement).await;
    if let (Some(id), Some(attempt), Ownership::Held) = (id, attempt, ownership) {
        let (engine, execution) = (Arc::clone(&state.engine), execution.clone());
        attempt.suspended.set(Box::new(move |time| {
            Box::pin(async move { engine.hold_suspended(&execution, id, time).await })
        }));
    }
    ownership
}

/// Returns how an execution is to be settled, and its reply.
async fn end<St, D: Dialect, R: Body>(
    state: &LayerState<St, D>,
    asked: &D::Asked,
    execution: &Execution,
    attempt: Option<&ReplayAttempt>,
    response: Response<R>,
) -> (Settlement, Response<BufferedBody<R>>) {
    let (settings, retention) = (&state.settings, execution.retention());
    // A handler that knows its outcome is believed; whatever else fails in a replay is attempted
    // again by execution, and its reply is not kept.
    let marked = response.extensions().get::<HandlerOutcome>().is_some();
    let attempted_again = |head: &Parts, body: &Bytes| {
        let attempt = attempt.filter(|_| !marked)?;
        let reply = Response::from_parts(head.clone(), body.clone());
        let id = (attempt.attempted_again)(&reply)?;
        Some(suspend(state, attempt, id))
    };
    let suspended;
    let from_head = settings.judge.by_head(&response);
    let prior_effect = outcome::prior_effect(&response);
    let (outcome, stored, response) = match from_head {
        Some(outcome @ (HandlerOutcome::NoEffect | HandlerOutcome::Unknown))
            if marked || outcome == HandlerOutcome::NoEffect =>
        {
            let (head, body) = response.into_parts();
            suspended = attempted_again(&head, &Bytes::new());
            let response = Response::from_parts(head, BufferedBody::new(body));
            (outcome, Stored::NotRetained, response)
        }
        // The body of a reply that leaves its outcome open may tell.
        _ => {
            let (mut head, body) = response.into_parts();
            match buffer(body, settings.response_limit).await {
                Buffered::Whole { data, trailers } => {
                    suspended = attempted_again(&head, &data);
                    let trailing = trailers.as_deref();
                    let mut outcome =
                        from_head.unwrap_or_else(|| settings.judge.by_trailers(trailing));
                    let context = state.context();
                    let rewrite = state
                        .dialect
                        .rewrite(context, asked, retention, &head, &data);
                    if let Rewrite::NoEffect = rewrite {
                        outcome = HandlerOutcome::NoEffect;
                    }
                    let encode = |head: &Parts, body: &[u8]| {
                        reply::encode(head, trailing, body, &settings.stored_headers)
                    };
                    let (reply, data) = match rewrite {
                        Rewrite::Rewritten { stored, sent }
                            if outcome == HandlerOutcome::Committed =>
                        {
                            resize(&mut head.headers, stored.len());
                            let reply = encode(&head, &stored);
                            resize(&mut head.headers, sent.len());
                            (reply, sent)
                        }
                        _ => (encode(&head, &data), data),
                    };
                    let body = BufferedBody::whole(data, trailers);
                    let response = Response::from_parts(head, body);
                    (outcome, Stored::Reply(reply), response)
                }
                Buffered::Partial(body) => {
                    suspended = attempted_again(&head, &Bytes::new());
                    let response = Response::from_parts(head, body);
                    let outcome = from_head.unwrap_or(HandlerOutcome::Committed);
                    (outcome, Stored::NotRetained, response)
                }
            }
        }
    };
    let outcome = match outcome {
        HandlerOutcome::NoEffect if !settings.judge.is_undone(prior_effect) => {
            HandlerOutcome::Unknown
        }
        outcome => outcome,
    };
    let settlement = match (outcome, state.engine.settings.crash_policy) {
        (HandlerOutcome::NoEffect, _) => unexecuted(state, execution, attempt),
        _ if suspended.is_some() => suspended.unwrap_or(Settlement::Orphan),
        (HandlerOutcome::Committed, _) => Settlement::Complete(stored),
        (HandlerOutcome::Unknown, CrashPolicy::Unknown) => Settlement::Complete(Stored::Unknown),
        (HandlerOutcome::Unknown, CrashPolicy::Reexecute) => Settlement::Orphan,
    };
    (settlement, response)
}

/// Returns how an execution without effect is settled.
fn unexecuted<St, D>(
    state: &LayerState<St, D>,
    execution: &Execution,
    attempt: Option<&ReplayAttempt>,
) -> Settlement {
    let resumes = attempt.and_then(|attempt| Resumes::of(attempt, state.settings.limits.lease));
    Settlement::unexecuted(execution.is_orphan(), resumes)
}

fn suspend<St, D>(state: &LayerState<St, D>, attempt: &ReplayAttempt, id: [u8; 16]) -> Settlement {
    let hold = attempt.hold.unwrap_or(state.settings.limits.lease);
    Settlement::Suspend(ClaimId::new(id), hold)
}
