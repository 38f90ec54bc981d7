//! Idempotency keys whose outcome is unknown: looked at, resolved, released.

use std::time::{Duration, SystemTime};

use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, Response, StatusCode, header},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tower_reprise::{
    server::idempotency::UnknownOutcomes,
    store::{FencingToken, OutcomeCursor, RecordKey, Resolved, UnknownOutcome},
};

use super::{AdminError, Params, Path, StoreAdmin, replays};

pub(super) fn routes() -> Router<StoreAdmin> {
    Router::new()
        .route("/", get(list))
        .route("/{key}", get(one))
        .route("/{key}/resolve", post(resolve))
        .route("/{key}/release", post(release))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    after: Option<String>,
    limit: Option<u32>,
}

async fn list(
    State(admin): State<StoreAdmin>,
    Params(page): Params<Page>,
) -> Result<Json<Value>, AdminError> {
    let limit = replays::limit(page.limit)?;
    let after = page.after.as_deref().map(|after| {
        let parsed = after.parse::<OutcomeCursor>();
        let allowed = "the `next` of an earlier page";
        parsed.map_err(|_| AdminError::invalid("after", after, allowed))
    });
    let unknown = UnknownOutcomes::new(admin.store);
    let page = unknown.list(after.transpose()?, limit).await?;
    let keys: Vec<_> = page.outcomes.iter().map(describe).collect();
    let next = page.next.map(|next| next.to_string());
    Ok(Json(json!({ "keys": keys, "next": next })))
}

fn describe(unknown: &UnknownOutcome) -> Value {
    let now = SystemTime::now();
    let time = |time: Option<SystemTime>| {
        time.map(|time| humantime::format_rfc3339_seconds(time).to_string())
    };
    // Dialects part what they note with 0x1f: function, version, request id.
    let note = String::from_utf8_lossy(unknown.note.as_bytes());
    let note: Vec<_> = note.split('\x1f').filter(|part| !part.is_empty()).collect();
    json!({
        "key": unknown.key.to_string(),
        "token": unknown.token.get(),
        "note": note.join(" "),
        "unknown_since": time(now.checked_sub(unknown.unknown_for)),
        "expires_at": time(now.checked_add(unknown.expires_in)),
    })
}

fn parse(key: &str) -> Result<RecordKey, AdminError> {
    let allowed = "the 64 hexadecimal digits of a record";
    key.parse()
        .map_err(|_| AdminError::invalid("key", key, allowed))
}

async fn find(
    unknown: &UnknownOutcomes<crate::store::Store>,
    key: &str,
    token: Option<u64>,
) -> Result<UnknownOutcome, AdminError> {
    let found = unknown.find(parse(key)?).await?;
    let mut found = found.ok_or_else(|| {
        let why =
            "no operation of unknown outcome has this key: it runs, is settled, or is forgotten";
        AdminError::new(StatusCode::NOT_FOUND, why)
    })?;
    // Only the outcome that was shown: an owner that came since is not to be resolved.
    found.token = token.map_or(found.token, FencingToken::new);
    Ok(found)
}

async fn one(
    State(admin): State<StoreAdmin>,
    Path(key): Path<String>,
) -> Result<Json<Value>, AdminError> {
    let unknown = UnknownOutcomes::new(admin.store);
    Ok(Json(describe(&find(&unknown, &key, None).await?)))
}

/// The longest time that a reply given by hand is kept.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Finding {
    /// The effect that the operation had: `reply`, `unknown_reply` or `none`.
    effect: String,
    token: Option<u64>,
    /// The status of the reply; its body and content type are those of the request.
    status: Option<u16>,
    /// The time for which the reply is kept.
    keep: Option<String>,
}

async fn resolve(
    State(admin): State<StoreAdmin>,
    Path(key): Path<String>,
    Params(finding): Params<Finding>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, AdminError> {
    let mut unknown = UnknownOutcomes::new(admin.store);
    if let Some(keep) = &finding.keep {
        let invalid = || AdminError::invalid("keep", keep, "24h to 365d");
        let time = humantime::parse_duration(keep).map_err(|_| invalid())?;
        let kept = (time <= LONGEST).then(|| unknown.try_retention(time).ok());
        unknown = kept.flatten().ok_or_else(invalid)?;
    }
    let found = find(&unknown, &key, finding.token).await?;
    let resolved = match (&*finding.effect, finding.status) {
        ("reply", Some(status)) => {
            let allowed = "a status of a reply, 200 to 599";
            let invalid = || AdminError::invalid("status", &status.to_string(), allowed);
            let status = StatusCode::from_u16(status).map_err(|_| invalid())?;
            if !(200..600).contains(&status.as_u16()) {
                return Err(invalid());
            }
            let mut reply = Response::new(body);
            *reply.status_mut() = status;
            if let Some(kind) = headers.get(header::CONTENT_TYPE) {
                reply
                    .headers_mut()
                    .insert(header::CONTENT_TYPE, kind.clone());
            }
            unknown.resolve(&found, &reply).await?
        }
        ("reply", None) => return Err(AdminError::invalid("status", "", "200 to 599")),
        ("unknown_reply", _) => unknown.resolve_without_reply(&found).await?,
        ("none", _) => unknown.resolve_without_effect(&found).await?,
        (other, _) => {
            let allowed = "reply, unknown_reply or none";
            return Err(AdminError::invalid("effect", other, allowed));
        }
    };
    made(&key, resolved, "resolved")
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Release {
    token: Option<u64>,
}

async fn release(
    State(admin): State<StoreAdmin>,
    Path(key): Path<String>,
    Params(params): Params<Release>,
) -> Result<Json<Value>, AdminError> {
    let unknown = UnknownOutcomes::new(admin.store);
    let found = find(&unknown, &key, params.token).await?;
    let resolved = unknown.release(&found).await?;
    made(&key, resolved, "released")
}

fn made(key: &str, resolved: Resolved, status: &str) -> Result<Json<Value>, AdminError> {
    match resolved {
        Resolved::Made => Ok(Json(json!({ "key": key, "status": status }))),
        Resolved::Conflict => Err(AdminError::conflict(
            "another owner has it since, or somebody resolved it: look again".to_owned(),
        )),
    }
}
