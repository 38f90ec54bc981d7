//! The console: one page of plain HTML, CSS and JavaScript, live over server-sent events.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderMap, header},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use http_body_util::channel::Channel;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};
use tower_reprise::store::journal::{Journal, Status};

use super::{Admin, Guard, ROUTES, describe};

/// Nothing from elsewhere, nothing inline, in nobody's frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// The interval between two updates of the state.
const TICK: Duration = Duration::from_secs(1);
/// The ticks between two counts of the queue, since a count may cost the store a scan.
const COUNTED: u32 = 3;

pub(super) fn routes(guard: Arc<Guard>) -> Router {
    Router::new()
        .route("/", get(page))
        .route(
            "/console.css",
            get(|| async { file("text/css", include_str!("console/console.css")) }),
        )
        .route(
            "/console.js",
            get(|| async { file("text/javascript", include_str!("console/console.js")) }),
        )
        .with_state(guard)
}

/// The page for a browser, the list of routes for others.
async fn page(State(guard): State<Arc<Guard>>, headers: HeaderMap) -> Response {
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok());
    if !accept.is_some_and(|accept| accept.contains("text/html")) {
        return ROUTES.into_response();
    }
    let page = include_str!("console/index.html").replace("{{page}}", guard.page());
    guarded(Html(page))
}

fn file(kind: &'static str, text: &'static str) -> Response {
    guarded(([(header::CONTENT_TYPE, kind)], text))
}

fn guarded(response: impl IntoResponse) -> Response {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, response).into_response()
}

/// Sends the state until the operator leaves or the gateway stops.
pub(super) async fn events(State(admin): State<Admin>) -> Response {
    let (mut events, body) = Channel::<Bytes, Infallible>::new(1);
    tokio::spawn(async move {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for tick in (0..COUNTED).cycle() {
            ticks.tick().await;
            let event = format!("data: {}\n\n", state(&admin, tick == 0).await);
            let stopping = *admin.draining.borrow();
            if events.send_data(event.into()).await.is_err() || stopping {
                return;
            }
        }
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, Body::new(body)).into_response()
}

async fn state(admin: &Admin, counted: bool) -> Value {
    let upstreams = admin.upstreams.list();
    let upstream = admin.upstream_dependencies();
    let upstream = upstream.iter().map(|dependency| {
        let mut described = describe(dependency);
        described["kind"] = "upstream".into();
        let name = dependency.name();
        if let Some(known) = upstreams.iter().find(|known| known.name() == name) {
            described["calls"] = known.calls.show();
        }
        let mut endpoints = upstreams.iter().flat_map(|known| &known.endpoints);
        if let Some(known) = endpoints.find(|known| &*known.dependency == name) {
            described["attempts"] = known.attempts.show();
        }
        described
    });
    let inbound = admin.registries.inbound.list();
    let inbound = inbound.iter().map(|dependency| {
        let mut described = describe(dependency);
        described["kind"] = "inbound".into();
        described
    });
    let dependencies: Vec<_> = upstream.chain(inbound).collect();
    let mut state = json!({
        "dependencies": dependencies,
        "maintenance": admin.store_admin.replay.maintenance().is_on(),
        "draining": *admin.draining.borrow(),
        "redrives": admin.store_admin.redrives.describe(),
    });
    if counted && let Ok(counts) = admin.store_admin.store.counts("replay").await {
        let counts =
            Status::ALL.map(|status| (status.as_str().to_owned(), counts.of(status).into()));
        state["replays"] = Value::Object(counts.into_iter().collect());
    }
    state
}
