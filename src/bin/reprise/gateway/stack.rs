//! The layers, in order.
//!
//! ```text
//! callers ─▶ InboundRetryBudget ─▶ Deadline ─▶ Problem ─▶ Replay ─▶ Idempotency ─▶ the client's stack ─▶ an endpoint
//!                                                           ▲
//!                               worker, with what Replay wrote down
//! ```

use std::{convert::Infallible, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as HttpBody;
use hyper::body::Incoming;
use tower::{Service, ServiceBuilder};
use tower_reprise::{
    DeadlineLayer, IdempotencyLayer, InboundBudgetLayer, ProblemLayer, RetryLayer,
    delivery::{
        dead_letter::{DeadLetters, LogAlert},
        replay::Replay,
        webhooks::Webhooks,
        worker::WorkerHandle,
    },
    error::BoxError,
    http::BufferedBody,
    server::{
        dialect::{Requirement, Scope},
        problem::ProblemBody,
    },
    stacks,
    store::journal::Journal,
};

use crate::{
    gateway::caller::Callers,
    gateway::policy::Registries,
    gateway::settings::{Resend, Settings},
    gateway::unknown_outcome::{self, OrUnknown},
    gateway::upstreams::{Sender, Upstreams},
    store::Store,
};

/// The longest that a request may ask to wait.
const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A service for callers: it never fails, and it can be cloned for each of them.
pub(crate) trait Serves<R>:
    Service<Request<Body>, Response = Response<R>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S, R> Serves<R> for S where
    S: Service<Request<Body>, Response = Response<R>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// The body of what callers get.
pub(crate) trait Answers:
    HttpBody<Data = Bytes, Error: Into<BoxError>> + From<Bytes> + Send + 'static
{
}

impl<R> Answers for R where
    R: HttpBody<Data = Bytes, Error: Into<BoxError>> + From<Bytes> + Send + 'static
{
}

/// The proxy and nothing else.
pub(crate) fn bare(upstreams: Upstreams) -> impl Serves<ProblemBody<Incoming>> {
    let sender = Sender(upstreams.clone());
    ServiceBuilder::new()
        .layer(ProblemLayer::new())
        .filter(move |request| upstreams.aim(request))
        .service(sender)
}

/// A reply as it comes out of all layers.
type Reply = ProblemBody<
    ProblemBody<ProblemBody<BufferedBody<BufferedBody<OrUnknown<BufferedBody<Incoming>>>>>>,
>;

/// The background parts of the gateway.
pub(crate) struct Behind {
    pub(crate) replay: Replay<Store>,
    pub(crate) letters: DeadLetters<Store>,
    pub(crate) workers: Vec<WorkerHandle>,
}

/// All layers, and the workers behind them.
pub(crate) async fn layered(
    settings: &Settings,
    upstreams: &Upstreams,
    store: &Store,
    registries: &Registries,
) -> Result<(impl Serves<Reply>, Behind), BoxError> {
    let secret = store.secret().await?;
    let callers = Callers::new(
        settings.scope_header.clone(),
        settings.anonymous.clone(),
        secret,
    );

    // One execution for each key.
    let requirement = match settings.require_key {
        true => Requirement::Required,
        false => Requirement::Optional,
    };
    let mut idempotency = IdempotencyLayer::builder(store.clone())
        .scope(Scope::new(move |head| callers.who(head)))
        .crash_policy(settings.orphans)
        .requirement(move |_| requirement)
        .request_limit(settings.request_limit)
        .response_limit(settings.response_limit)
        .retention(settings.retention)
        .lease(settings.lease)
        .wait(settings.wait)
        .server_errors(settings.server_errors);
    if settings.fail_open {
        idempotency = idempotency.fail_open();
    }
    let operations = upstreams.clone();
    idempotency = idempotency.route(move |head| operations.operation(head));
    let idempotency = idempotency.build()?;

    // Replays, and who is told of them.
    let webhooks = settings.callbacks.clone().map(|(signer, guard)| {
        Webhooks::builder(store.clone(), signer)
            .guard(guard)
            .build()
    });
    let webhooks = webhooks.transpose()?;
    let mut replay = Replay::before(store.clone(), &idempotency)
        .request_limit(settings.request_limit)
        .response_limit(settings.response_limit)
        .ttl(settings.replay_ttl, settings.replay_ttl.max(WEEK))
        .concurrency(settings.replay_concurrency)
        // Nothing is served in maintenance, whatever the method or the caller.
        .served_in_maintenance(|_| false);
    // One that is down does not keep the others from theirs.
    let targets = upstreams.clone();
    replay = replay
        .target(move |head| targets.name(head))
        .targets_paced_by(&registries.upstream);
    if let Some(webhooks) = &webhooks {
        replay = replay.callbacks(webhooks.clone());
    }
    if settings.replay_all {
        replay = replay.replay_by_default();
    }
    if let Some(path) = &settings.replay_path {
        replay = replay.location(path.clone());
    }
    let replay = replay.build()?;
    // Before there is a worker.
    if settings.maintenance {
        replay.maintenance().on(None);
    }

    // Out: the whole client's stack. The key is stamped only where the upstream honours it, which
    // the policy may say, or the operator.
    let deps = registries.upstream.clone();
    let (stamp, mut retry, guard, hedge, peek) = stacks::client(deps.clone());
    if settings.resend != Resend::Unsent {
        retry = RetryLayer::new(deps).charge_repeats();
    }
    let stamp = (settings.resend == Resend::Stamped).then_some(stamp);
    let (endpoints, deps) = (upstreams.clone(), registries.upstream.clone());
    let calls = ServiceBuilder::new()
        // Each of the layers above moves this future.
        .map_future(Box::pin)
        .map_request(Upstreams::go_by_authority)
        .option_layer(stamp)
        .layer(retry)
        .map_request(move |request| endpoints.choose(&deps, request))
        .layer((guard, hedge, peek))
        .service(Sender(upstreams.clone()));

    // In, to where the worker comes in too.
    let routes = upstreams.clone();
    let once = ServiceBuilder::new()
        .filter(move |request| routes.aim(request))
        .map_result(unknown_outcome::restore_error)
        .layer(idempotency)
        .map_result(unknown_outcome::hide_error)
        .service(calls);
    let mut workers = vec![
        replay
            .worker::<Body, _>(once.clone())
            .lease(settings.lease)
            .start()?,
    ];

    // All the way in.
    // The calls to the upstream are made with the request itself, which carries the context.
    let mut deadlines = DeadlineLayer::new().task_local(false);
    if settings.trust_callers {
        deadlines = deadlines.trust_callers();
    }
    let serves = ServiceBuilder::new()
        .layer(InboundBudgetLayer::new(registries.inbound.clone()))
        .layer(deadlines)
        .layer(ProblemLayer::new())
        .layer(replay.layer())
        .service(once);

    let letters = DeadLetters::new(store.clone());
    workers.push(letters.alerts(LogAlert).lease(settings.lease).start()?);
    if let Some(webhooks) = webhooks {
        workers.push(webhooks.worker().lease(settings.lease).start()?);
    }
    let behind = Behind {
        replay,
        letters,
        workers,
    };
    Ok((serves, behind))
}
