//! What operators see and do.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Query, Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, time::timeout};
use tower_reprise::{
    delivery::{dead_letter::DeadLetters, replay::Replay},
    dependency::{BreakerState, Dependency},
    store::{StoreError, journal::Journal},
};

use crate::{letters, policy::Registries, replays, store::Store};

/// How long the store may take to say that it is there.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) store: Store,
    pub(crate) registries: Registries,
    pub(crate) replay: Replay<Store>,
    pub(crate) letters: DeadLetters<Store>,
    pub(crate) prometheus: PrometheusHandle,
    pub(crate) draining: watch::Receiver<bool>,
}

pub(crate) async fn serve(
    listener: TcpListener,
    admin: Admin,
    mut closed: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let app = router(admin);
    let closing = async move { _ = closed.wait_for(|closed| *closed).await };
    axum::serve(listener, app)
        .with_graceful_shutdown(closing)
        .await
}

fn router(admin: Admin) -> Router {
    Router::new()
        .route("/", get(|| async { ROUTES }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/dependencies", get(dependencies))
        .route("/maintenance", get(maintenance))
        .route("/maintenance/on", post(maintenance_on))
        .route("/maintenance/off", post(maintenance_off))
        .nest("/dead-letters", letters::routes())
        .fallback_service(replays::routes(&admin))
        .with_state(admin)
        .layer(middleware::from_fn(not_by_a_page))
}

const ROUTES: &str = "\
GET  /healthz                       whether the process lives
GET  /readyz                        whether the store answers and nobody told it to stop
GET  /metrics                       for Prometheus
GET  /dependencies                  budget, breaker and gate
GET  /maintenance                   whether it is on
POST /maintenance/on?for=10min      nothing is sent to the upstream; how long is only told to callers
POST /maintenance/off               what was written down is replayed
GET  /replays?status=queued         replays of all callers: status, limit, after
GET  /replays/ID                    where one stands
GET  /replays/ID/reply              the reply that it got
POST /replays/ID/cancel             calls it off
POST /replays/ID/trigger            replays it now, even in maintenance
GET  /dead-letters?queue=replay     what could not be done: queue, limit, after
GET  /dead-letters/ID               one of them, with its history
POST /dead-letters/ID/redrive       queues it again; a reply that is kept for its key is still its reply
POST /dead-letters/redrive?queue=replay&dry_run=true    all: queue, owner, label, dry_run, per_second, at_most
";

/// A page in an operator's browser is no operator.
async fn not_by_a_page(request: Request, next: Next) -> Response {
    let headers = request.headers();
    if headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site") {
        let safe = request.method().is_safe()
            && headers.get("sec-fetch-site").is_some_and(|s| s == "none");
        if !safe {
            return (StatusCode::FORBIDDEN, "not from a web page\n").into_response();
        }
    }
    next.run(request).await
}

async fn ready(State(admin): State<Admin>) -> Response {
    let draining = *admin.draining.borrow();
    // Any question will do.
    let asked = timeout(PATIENCE, admin.store.lanes("replay", None, 1)).await;
    let store = asked.is_ok_and(|answer| answer.is_ok());
    let status = match store && !draining {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let maintenance = admin.replay.maintenance().is_on();
    let body = json!({ "store": store, "draining": draining, "maintenance": maintenance });
    (status, Json(body)).into_response()
}

async fn metrics(State(admin): State<Admin>) -> impl IntoResponse {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], admin.prometheus.render())
}

async fn dependencies(State(admin): State<Admin>) -> Json<Value> {
    let list = |known: Vec<Arc<Dependency>>| -> Vec<Value> {
        known
            .iter()
            .map(|dependency| describe(dependency))
            .collect()
    };
    Json(json!({
        "upstream": list(admin.registries.upstream.list()),
        "inbound": list(admin.registries.inbound.list()),
    }))
}

fn describe(dependency: &Dependency) -> Value {
    let status = dependency.status();
    let policy = dependency.policy();
    let (state, left) = match status.breaker {
        BreakerState::Closed => ("closed", None),
        BreakerState::Open(left) => ("open", Some(left)),
        BreakerState::Recovering => ("recovering", None),
        _ => ("unknown", None),
    };
    json!({
        "name": dependency.name(),
        "budget": {
            "originals": status.originals,
            "retries": status.retries,
            "retries_allowed": status.retries_allowed,
        },
        "breaker": { "state": state, "seconds_left": left.map(|left| left.as_secs_f64()) },
        "gate": { "seconds_left": status.hold.map(|hold| hold.as_secs_f64()) },
        "policy": {
            "profile": format!("{:?}", policy.profile()),
            "service": policy.service(),
            "max_retries": policy.max_retries(),
            "total_seconds": policy.total_timeout().as_secs_f64(),
        },
    })
}

async fn maintenance(State(admin): State<Admin>) -> Json<Value> {
    Json(json!({ "on": admin.replay.maintenance().is_on() }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Until {
    r#for: Option<String>,
}

async fn maintenance_on(
    State(admin): State<Admin>,
    Query(until): Query<Until>,
) -> Result<Json<Value>, Trouble> {
    let time = until.r#for.as_deref().map(humantime::parse_duration);
    let time = time.transpose().map_err(|_| {
        Trouble::wrong(
            "for",
            until.r#for.as_deref().unwrap_or_default(),
            "a time such as 10min",
        )
    })?;
    let until = time.and_then(|time| std::time::SystemTime::now().checked_add(time));
    admin.replay.maintenance().on(until);
    tracing::warn!("maintenance is on");
    Ok(maintenance(State(admin)).await)
}

async fn maintenance_off(State(admin): State<Admin>) -> Json<Value> {
    admin.replay.maintenance().off();
    tracing::warn!("maintenance is off");
    maintenance(State(admin)).await
}

/// Why an operator gets no answer.
pub(crate) struct Trouble(StatusCode, String);

impl Trouble {
    pub(crate) fn wrong(field: &str, value: &str, allowed: &str) -> Self {
        let shown: String = value.chars().take(64).collect();
        let message = format!("{field} is {shown}, allowed: {allowed}");
        Self(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn not_found() -> Self {
        Self(StatusCode::NOT_FOUND, "there is no such thing".to_owned())
    }

    pub(crate) fn conflict(why: String) -> Self {
        Self(StatusCode::CONFLICT, why)
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}
