//! Dead letters: looked at, redriven, and purged.

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode},
    routing::{get, post},
};
use base64::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tower_reprise::{
    delivery::dead_letter::{Purged, Redriven, Selection},
    store::journal::{Entry, Journal, Query, Status},
};

use super::{
    AdminError, Params, Path, StoreAdmin,
    redrives::Act,
    replays::{self, Page, time},
};

pub(super) fn routes() -> Router<StoreAdmin> {
    Router::new()
        .route("/", get(list))
        .route(
            "/redrive",
            post(|admin, many| all(Act::Redrive, admin, many)),
        )
        .route("/purge", post(|admin, many| all(Act::Purge, admin, many)))
        .route("/{id}", get(one))
        .route("/{id}/redrive", post(redrive))
        .route("/{id}/purge", post(purge))
}

async fn list(
    State(admin): State<StoreAdmin>,
    Params(page): Params<Page>,
) -> Result<Json<Value>, AdminError> {
    let query = Query {
        status: Some(Status::Failed),
        ..page.query()?
    };
    let letters = admin.store.list(query).await?;
    // The place to go on from, even if none of these is of the cause.
    let after = letters.last().map(|letter| letter.sequence);
    let wanted = page.cause.as_deref();
    let letters: Vec<_> = letters
        .iter()
        .filter(|letter| wanted.is_none_or(|wanted| cause(letter) == wanted))
        .map(|letter| {
            let mut described = replays::describe(letter);
            described["cause"] = cause(letter).into();
            described
        })
        .collect();
    Ok(Json(
        json!({ "queue": page.queue, "letters": letters, "after": after }),
    ))
}

/// The cause as a redrive selects by it.
fn cause(letter: &Entry) -> &str {
    letter.cause.as_deref().unwrap_or("failed")
}

async fn one(
    State(admin): State<StoreAdmin>,
    Path(id): Path<String>,
) -> Result<Json<Value>, AdminError> {
    let id = replays::parse(&id).ok_or_else(AdminError::not_found)?;
    let letter = admin.letters.get(id).await?;
    let letter = letter.ok_or_else(AdminError::not_found)?;
    let history: Vec<_> = letter
        .history
        .iter()
        .map(|attempted| json!({ "at": time(attempted.at), "note": attempted.note }))
        .collect();
    Ok(Json(json!({
        "id": letter.id.to_string(),
        "queue": letter.queue,
        "owner": letter.owner,
        "label": letter.label,
        "cause": letter.cause(),
        "reason": letter.reason,
        "attempts": letter.attempts,
        "queued_at": time(letter.queued_at),
        "died_at": time(letter.died_at),
        "headers": headers(&letter.headers),
        "payload": String::from_utf8_lossy(&letter.payload),
        "payload_base64": BASE64_STANDARD.encode(&letter.payload),
        "history": history,
    })))
}

fn headers(headers: &HeaderMap) -> Map<String, Value> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let names = headers.keys();
    names
        .map(|name| {
            let values: Vec<_> = headers.get_all(name).iter().map(text).collect();
            (name.to_string(), values.join(", ").into())
        })
        .collect()
}

async fn redrive(
    State(admin): State<StoreAdmin>,
    Path(id): Path<String>,
) -> Result<Json<Value>, AdminError> {
    let parsed = replays::parse(&id).ok_or_else(AdminError::not_found)?;
    match admin.letters.redrive(parsed).await? {
        Redriven::Queued => Ok(Json(json!({ "id": id, "status": "queued" }))),
        Redriven::NotDead(status) => Err(not_dead(&id, status)),
        Redriven::Unknown => Err(AdminError::not_found()),
    }
}

async fn purge(
    State(admin): State<StoreAdmin>,
    Path(id): Path<String>,
) -> Result<Json<Value>, AdminError> {
    let parsed = replays::parse(&id).ok_or_else(AdminError::not_found)?;
    match admin.letters.purge(parsed).await? {
        Purged::Removed => Ok(Json(json!({ "id": id, "status": "purged" }))),
        Purged::NotDead(status) => Err(not_dead(&id, status)),
        Purged::Unknown => Err(AdminError::not_found()),
    }
}

fn not_dead(id: &str, status: Status) -> AdminError {
    AdminError::conflict(format!("{id} is {}, allowed: failed", status.as_str()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Many {
    queue: String,
    owner: Option<String>,
    label: Option<String>,
    cause: Option<String>,
    #[serde(default)]
    dry_run: bool,
    per_second: Option<u32>,
    at_most: Option<u64>,
    /// Answers at once, and goes on whether the operator waits or not.
    #[serde(default)]
    background: bool,
}

/// The most letters that are redriven or purged in a second.
const FASTEST: u32 = 100_000;

impl Many {
    fn selection(&self) -> Result<Selection, AdminError> {
        let mut selection = Selection::queue(self.queue.clone());
        if let Some(owner) = &self.owner {
            selection = selection.owner(owner);
        }
        if let Some(label) = &self.label {
            selection = selection.label(label);
        }
        if let Some(cause) = &self.cause {
            selection = selection.cause(cause);
        }
        if let Some(per_second) = self.per_second {
            if !(1..=FASTEST).contains(&per_second) {
                let allowed = format!("1 to {FASTEST}");
                return Err(AdminError::invalid(
                    "per_second",
                    &per_second.to_string(),
                    &allowed,
                ));
            }
            selection = selection.per_second(per_second);
        }
        if let Some(at_most) = self.at_most {
            selection = selection.at_most(at_most);
        }
        Ok(match self.dry_run {
            true => selection.dry_run(),
            false => selection,
        })
    }
}

async fn all(
    act: Act,
    State(admin): State<StoreAdmin>,
    Params(many): Params<Many>,
) -> Result<(StatusCode, Json<Value>), AdminError> {
    let selection = many.selection()?;
    if many.background && !many.dry_run {
        let filter = json!({
            "queue": many.queue, "owner": many.owner, "label": many.label, "cause": many.cause,
        });
        let letters = admin.letters.clone();
        let started = admin.redrives.start(act, letters, selection, filter);
        return Ok((StatusCode::ACCEPTED, Json(started.await?)));
    }
    // As long as the operator waits for it.
    let report = act.run(&admin.letters, selection).await?;
    let report = json!({
        "matched": report.matched, act.done(): report.changed, "dry_run": many.dry_run,
    });
    Ok((StatusCode::OK, Json(report)))
}
