//! The admin port: what operators see and do, for people, scripts and the console.

mod console;
mod error;
mod guard;
mod keys;
mod letters;
mod owners;
mod redrives;
mod replays;
mod store_admin;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{FromRef, State},
    http::{StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinSet, time::timeout};
use tower_reprise::dependency::{BreakerState, Dependency};

pub(crate) use self::{
    error::{AdminError, Params, Path},
    guard::Guard,
    store_admin::StoreAdmin,
};
use crate::{
    audit,
    gateway::{policy::Registries, upstreams::Upstreams},
};

/// The time limit of a readiness check.
const PATIENCE: Duration = Duration::from_secs(2);

/// A gateway, as its operators see it.
#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) store_admin: StoreAdmin,
    pub(crate) registries: Registries,
    pub(crate) upstreams: Upstreams,
    pub(crate) prometheus: PrometheusHandle,
    pub(crate) draining: watch::Receiver<bool>,
}

impl FromRef<Admin> for StoreAdmin {
    fn from_ref(admin: &Admin) -> Self {
        admin.store_admin.clone()
    }
}

pub(crate) async fn serve(
    listener: TcpListener,
    admin: Admin,
    guard: Guard,
    mut closed: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let guard = Arc::new(guard);
    let app = router(admin)
        .merge(console::routes(Arc::clone(&guard)))
        .fallback(|| async { AdminError::not_found() })
        .method_not_allowed_fallback(|| async { AdminError::method() })
        .layer(middleware::from_fn_with_state(guard, guard::check));
    let closing = async move { _ = closed.wait_for(|closed| *closed).await };
    axum::serve(listener, app)
        .with_graceful_shutdown(closing)
        .await
}

fn router(admin: Admin) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/dependencies", get(dependencies))
        .route("/dependencies/upstream/{verb}", post(force))
        .route("/events", get(console::events))
        .route("/audit", get(audited))
        .route("/maintenance", get(maintenance))
        .route("/maintenance/on", post(maintenance_on))
        .route("/maintenance/off", post(maintenance_off))
        .with_state(admin.clone())
        .merge(admin.store_admin.routes())
}

const ROUTES: &str = "\
GET  /healthz                       whether the process lives
GET  /readyz                        whether the store takes writes, the upstream is there, nobody said stop
GET  /metrics                       for Prometheus
GET  /dependencies                  budget, breaker and gate
POST /dependencies/upstream/open?name=NAME    refuses all calls; close: refuses none; reset: as it was made
GET  /events                        the state, each second, as server-sent events
GET  /audit                         how the policies in force differ from the standard
GET  /maintenance                   whether it is on
POST /maintenance/on?for=10min      nothing is sent to the upstream; how long is only told to callers
POST /maintenance/off               what was written down is replayed
GET  /replays?status=queued         replays of all callers: status, limit, after
GET  /replays/ID                    where one stands
GET  /replays/ID/reply              the reply that it got
POST /replays/ID/cancel             calls it off
POST /replays/ID/trigger            replays it now, even in maintenance
GET  /dead-letters?queue=replay     what could not be done: queue, owner, label, cause, limit, after
GET  /dead-letters/ID               one of them, with its history
POST /dead-letters/ID/redrive       queues it again; a reply that is kept for its key is still its reply
POST /dead-letters/redrive?queue=replay&dry_run=true
                                    all: queue, owner, label, cause, dry_run, per_second, at_most, background
POST /dead-letters/ID/purge         removes it for good
POST /dead-letters/purge?queue=replay&dry_run=true
                                    all: queue, owner, label, cause, dry_run, at_most, background
POST /owners/erase?owner=NAME&queue=replay&dry_run=true
                                    removes up to 500 entries of an owner; those that run are left
GET  /keys                          idempotency keys of unknown outcome: limit, after
GET  /keys/KEY                      one of them
POST /keys/KEY/resolve?effect=none  how it ended: effect=none, unknown_reply, or reply with status and the
                                    body of this request; keep=24h, token
POST /keys/KEY/release              the next repeat is executed, whatever happened: token
GET  /redrives                      those in the background, and how far they are
GET  /redrives/NUMBER               one of them
POST /redrives/NUMBER/stop          ends one; the rest stay dead letters
";

async fn ready(State(admin): State<Admin>) -> Response {
    let draining = *admin.draining.borrow();
    let maintenance = admin.store_admin.replay.maintenance().is_on();
    let store = async { timeout(PATIENCE, admin.store_admin.writes()).await == Ok(true) };
    // In maintenance nobody asks for them.
    let upstreams = async {
        match maintenance {
            true => BTreeMap::new(),
            false => reached(&admin.upstreams).await,
        }
    };
    let (store, upstreams) = tokio::join!(store, upstreams);
    // With one of several it can serve something.
    let upstream = maintenance || upstreams.values().any(|there| *there);
    let status = match store && upstream && !draining {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let body = json!({
        "store": store,
        "upstream": upstream,
        "upstreams": upstreams,
        "draining": draining,
        "maintenance": maintenance,
    });
    (status, Json(body)).into_response()
}

/// Returns the upstreams by name, and whether something listens there.
async fn reached(upstreams: &Upstreams) -> BTreeMap<String, bool> {
    let mut asking = JoinSet::new();
    for upstream in upstreams.list() {
        asking.spawn(async move {
            let there = timeout(PATIENCE, upstream.is_there()).await == Ok(true);
            (upstream.name().to_owned(), there)
        });
    }
    asking.join_all().await.into_iter().collect()
}

async fn metrics(State(admin): State<Admin>) -> impl IntoResponse {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], admin.prometheus.render())
}

impl Admin {
    /// Lists the dependencies of the upstreams, those that were not called yet too.
    fn upstream_dependencies(&self) -> Vec<Arc<Dependency>> {
        for upstream in self.upstreams.list() {
            let _ = self.registries.upstream.get(upstream.name());
        }
        self.registries.upstream.list()
    }
}

async fn dependencies(State(admin): State<Admin>) -> Json<Value> {
    let list = |known: Vec<Arc<Dependency>>| -> Vec<Value> {
        known
            .iter()
            .map(|dependency| describe(dependency))
            .collect()
    };
    Json(json!({
        "upstream": list(admin.upstream_dependencies()),
        "inbound": list(admin.registries.inbound.list()),
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
}

async fn force(
    State(admin): State<Admin>,
    Path(verb): Path<String>,
    Params(Named { name }): Params<Named>,
) -> Result<Json<Value>, AdminError> {
    let known = admin.registries.upstream.list();
    let dependency = known.iter().find(|known| known.name() == name);
    let dependency = dependency.ok_or_else(AdminError::not_found)?;
    match &*verb {
        "open" => dependency.force_open(),
        "close" => dependency.force_closed(),
        "reset" => dependency.reset(),
        other => return Err(AdminError::invalid("verb", other, "open, close or reset")),
    }
    tracing::warn!(dependency = %name, %verb, "forced by an operator");
    Ok(Json(describe(dependency)))
}

async fn audited(State(admin): State<Admin>) -> Json<Value> {
    let mut findings = audit::describe(&admin.registries.upstream.audit());
    // A finding about an upstream's policy holds for each of its endpoints.
    let upstreams = admin.upstreams.list();
    let endpoints: BTreeSet<_> = upstreams
        .iter()
        .flat_map(|upstream| upstream.names_of_endpoints())
        .collect();
    findings.retain(|finding| {
        let name = finding["dependency"].as_str().unwrap_or_default();
        !endpoints.contains(name)
    });
    Json(json!({ "findings": findings }))
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
        "breaker": {
            "state": state,
            "seconds_left": left.map(|left| left.as_secs_f64()),
            "reason": status.breaker_changed.map(|(reason, _)| reason.as_str()),
            "seconds_ago": status.breaker_changed.map(|(_, ago)| ago.as_secs_f64()),
        },
        "shed": status.shed,
        "held": status.held,
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
    Json(json!({ "on": admin.store_admin.replay.maintenance().is_on() }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Until {
    r#for: Option<String>,
}

async fn maintenance_on(
    State(admin): State<Admin>,
    Params(until): Params<Until>,
) -> Result<Json<Value>, AdminError> {
    let time = until.r#for.as_deref().map(humantime::parse_duration);
    let time = time.transpose().map_err(|_| {
        AdminError::invalid(
            "for",
            until.r#for.as_deref().unwrap_or_default(),
            "a time such as 10min",
        )
    })?;
    let until = time.and_then(|time| std::time::SystemTime::now().checked_add(time));
    admin.store_admin.replay.maintenance().on(until);
    tracing::warn!("maintenance is on");
    Ok(maintenance(State(admin)).await)
}

async fn maintenance_off(State(admin): State<Admin>) -> Json<Value> {
    admin.store_admin.replay.maintenance().off();
    tracing::warn!("maintenance is off");
    maintenance(State(admin)).await
}
