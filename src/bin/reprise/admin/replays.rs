//! Replays of all callers. What the crate's routes do for a caller, they do here for an operator.

use axum::{
    Json, Router,
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::{any, get},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tower::ServiceExt;
use tower_reprise::{
    delivery::replay::ReplayId,
    store::journal::{Entry, EntryId, Journal, Query, Status, Timestamp},
};

use super::{AdminError, Params, StoreAdmin};
use crate::gateway::caller::Operator;

pub(super) fn routes() -> Router<StoreAdmin> {
    Router::new()
        .route("/replays", get(list))
        .route("/replays/{id}", any(one))
        .route("/replays/{id}/{action}", any(one))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    #[serde(default = "replay")]
    pub(crate) queue: String,
    pub(crate) status: Option<String>,
    pub(crate) owner: Option<String>,
    pub(crate) label: Option<String>,
    pub(crate) cause: Option<String>,
    #[serde(default)]
    pub(crate) after: u64,
    pub(crate) limit: Option<u32>,
}

fn replay() -> String {
    "replay".to_owned()
}

/// Checks the length of a page.
pub(super) fn limit(limit: Option<u32>) -> Result<u32, AdminError> {
    let limit = limit.unwrap_or(100);
    let refused = || AdminError::invalid("limit", &limit.to_string(), "1 to 1000");
    (1..=1000)
        .contains(&limit)
        .then_some(limit)
        .ok_or_else(refused)
}

impl Page {
    /// All but the status and the cause, which stores do not select by.
    pub(crate) fn query(&self) -> Result<Query, AdminError> {
        Ok(Query {
            owner: self.owner.clone(),
            label: self.label.clone(),
            after: self.after,
            ..Query::new(self.queue.clone(), limit(self.limit)?)
        })
    }

    fn status(&self) -> Result<Option<Status>, AdminError> {
        let Some(text) = &self.status else {
            return Ok(None);
        };
        let known = Status::ALL
            .into_iter()
            .find(|status| status.as_str() == text);
        let allowed = "queued, processing, completed, failed, expired or cancelled";
        known
            .map(Some)
            .ok_or_else(|| AdminError::invalid("status", text, allowed))
    }
}

async fn list(
    State(admin): State<StoreAdmin>,
    Params(page): Params<Page>,
) -> Result<Json<Value>, AdminError> {
    let query = Query {
        status: page.status()?,
        ..page.query()?
    };
    let counts = admin.store.counts("replay").await?;
    let counts = Status::ALL.map(|status| (status.as_str().to_owned(), counts.of(status).into()));
    let counts: serde_json::Map<String, Value> = counts.into_iter().collect();
    let replays = admin.store.list(query).await?;
    let replays: Vec<_> = replays.iter().map(describe).collect();
    Ok(Json(json!({ "counts": counts, "replays": replays })))
}

pub(crate) fn describe(entry: &Entry) -> Value {
    json!({
        "id": id_of(entry),
        "owner": entry.owner,
        "label": entry.label,
        "status": entry.status.as_str(),
        "cause": entry.cause,
        "redrives": entry.redrives,
        "attempts": entry.attempts,
        "queued_at": time(entry.queued_at),
        "changed_at": time(entry.changed_at),
        "expires_at": time(entry.expires_at),
        "sequence": entry.sequence,
    })
}

fn id_of(entry: &Entry) -> String {
    match &*entry.queue {
        "replay" => ReplayId::from(entry.id).to_string(),
        _ => entry.id.to_string(),
    }
}

pub(crate) fn time(at: Timestamp) -> String {
    let at = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_micros(at.as_micros());
    humantime::format_rfc3339_millis(at).to_string()
}

/// By the crate's own routes, in the name of whose it is.
async fn one(
    State(admin): State<StoreAdmin>,
    mut request: Request,
) -> Result<Response, AdminError> {
    let path = request
        .uri()
        .path()
        .trim_start_matches("/replays")
        .to_owned();
    let id = path.trim_matches('/').split('/').next().unwrap_or_default();
    let id = parse(id).ok_or_else(AdminError::not_found)?;
    let entry = admin
        .store
        .find(id)
        .await?
        .ok_or_else(AdminError::not_found)?;
    *request.uri_mut() = path.parse().map_err(|_| AdminError::not_found())?;
    request.extensions_mut().insert(Operator(entry.owner));
    let Ok(response) = admin.replay.routes().oneshot(request).await;
    Ok(response.into_response())
}

/// An entry's id, with or without what replays have before it.
pub(crate) fn parse(id: &str) -> Option<EntryId> {
    id.strip_prefix("rpl_").unwrap_or(id).parse().ok()
}
