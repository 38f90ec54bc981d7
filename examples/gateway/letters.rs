//! Dead letters: looked at, and redriven.

use axum::{
    Json, Router,
    extract::{Path, Query, State},
    http::{HeaderMap, HeaderValue},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tower_reprise::{
    delivery::dead_letter::{Redrive, Redriven},
    store::journal::{Journal, Status},
};

use crate::{
    admin::{Admin, Trouble},
    replays::{self, Page, time},
};

pub(crate) fn routes() -> Router<Admin> {
    Router::new()
        .route("/", get(list))
        .route("/redrive", post(redrive_all))
        .route("/{id}", get(one))
        .route("/{id}/redrive", post(redrive))
}

async fn list(
    State(admin): State<Admin>,
    Query(page): Query<Page>,
) -> Result<Json<Value>, Trouble> {
    let query = tower_reprise::store::journal::Query {
        status: Some(Status::Failed),
        after: page.after,
        ..tower_reprise::store::journal::Query::new(page.queue.clone(), page.limit()?)
    };
    let letters = admin.store.list(query).await?;
    let letters: Vec<_> = letters.iter().map(replays::describe).collect();
    Ok(Json(json!({ "queue": page.queue, "letters": letters })))
}

async fn one(State(admin): State<Admin>, Path(id): Path<String>) -> Result<Json<Value>, Trouble> {
    let id = replays::parse(&id).ok_or_else(Trouble::not_found)?;
    let letter = admin.letters.get(id).await?;
    let letter = letter.ok_or_else(Trouble::not_found)?;
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
        "reason": letter.reason,
        "attempts": letter.attempts,
        "queued_at": time(letter.queued_at),
        "died_at": time(letter.died_at),
        "headers": headers(&letter.headers),
        "payload": String::from_utf8_lossy(&letter.payload),
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
    State(admin): State<Admin>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Trouble> {
    let parsed = replays::parse(&id).ok_or_else(Trouble::not_found)?;
    match admin.letters.redrive(parsed).await? {
        Redriven::Queued => Ok(Json(json!({ "id": id, "status": "queued" }))),
        Redriven::NotDead(status) => {
            let why = format!("{id} is {}, allowed: failed", status.as_str());
            Err(Trouble::conflict(why))
        }
        Redriven::Unknown => Err(Trouble::not_found()),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Many {
    queue: String,
    owner: Option<String>,
    label: Option<String>,
    #[serde(default)]
    dry_run: bool,
    per_second: Option<u32>,
    at_most: Option<u64>,
}

/// As long as the operator waits for it.
async fn redrive_all(
    State(admin): State<Admin>,
    Query(many): Query<Many>,
) -> Result<Json<Value>, Trouble> {
    let mut redrive = Redrive::queue(many.queue);
    if let Some(owner) = many.owner {
        redrive = redrive.owner(owner);
    }
    if let Some(label) = many.label {
        redrive = redrive.label(label);
    }
    if let Some(per_second) = many.per_second {
        redrive = redrive.per_second(per_second);
    }
    if let Some(at_most) = many.at_most {
        redrive = redrive.at_most(at_most);
    }
    if many.dry_run {
        redrive = redrive.dry_run();
    }
    let report = admin.letters.redrive_all(redrive).await?;
    Ok(Json(
        json!({ "matched": report.matched, "redriven": report.redriven, "dry_run": many.dry_run }),
    ))
}
