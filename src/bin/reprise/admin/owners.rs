//! Erases all that queues hold of an owner.

use axum::{Json, Router, extract::State, routing::post};
use serde::Deserialize;
use serde_json::{Value, json};
use tower_reprise::store::journal::{Journal, Query};

use super::{AdminError, Params, StoreAdmin};

/// Entries that are removed for one request.
const STEP: u32 = 500;

pub(super) fn routes() -> Router<StoreAdmin> {
    Router::new().route("/owners/erase", post(erase))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Erasure {
    owner: String,
    queue: String,
    #[serde(default)]
    dry_run: bool,
}

async fn erase(
    State(admin): State<StoreAdmin>,
    Params(erasure): Params<Erasure>,
) -> Result<Json<Value>, AdminError> {
    let Erasure {
        owner,
        queue,
        dry_run,
    } = erasure;
    if owner.is_empty() {
        return Err(AdminError::invalid("owner", &owner, "the name of one"));
    }
    if dry_run {
        let query = Query {
            owner: Some(owner),
            ..Query::new(queue.clone(), u32::MAX)
        };
        let matched = admin.store.count(query).await?;
        return Ok(Json(json!({ "queue": queue, "matched": matched })));
    }
    let erased = match &*queue {
        // Their keys are freed.
        "replay" => admin.replay.erase(&owner, STEP).await?,
        queue => admin.store.erase(queue, &owner, STEP).await?,
    };
    Ok(Json(json!({
        "queue": queue, "erased": erased.removed, "left": erased.left,
    })))
}
