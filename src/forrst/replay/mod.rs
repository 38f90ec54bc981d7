//! The replay extension on a server: what can't be served now is replayed later.
//!
//! It is [`replay`](crate::delivery::replay) in other words. An envelope asks by its `replay` extension, and
//! the same layer journals, the same worker replays, the same webhooks tell. With [`Forrst`](super::Forrst) as its
//! [dialect](crate::delivery::replay::ReplayBuilder::dialect) it understands and answers in envelopes:
//!
//! ```
//! use std::time::{Duration, SystemTime};
//! use axum::{Router, body::{Body, Bytes, to_bytes}, routing::post};
//! use http::{Request, StatusCode};
//! use serde_json::{Value, from_slice, json};
//! use tower::ServiceExt;
//! use tower_reprise::{IdempotencyLayer, delivery::replay::Replay, forrst::Forrst, server::dialect::Scope, store::{MemoryStore, CrashPolicy}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! async fn handler(call: Bytes) -> axum::Json<Value> {
//!     let call: Value = from_slice(&call).unwrap_or_default();
//!     let protocol = json!({ "name": "forrst", "version": "0.1.0" });
//!     axum::Json(json!({ "protocol": protocol, "id": call["id"], "result": { "order": 7 } }))
//! }
//!
//! let store = MemoryStore::new();
//! let scope = Scope::new(|_| Some("shop"));
//! let idempotency = IdempotencyLayer::builder(store.clone())
//!     .with_dialect(Forrst::new())
//!     .scope(scope.clone())
//!     .crash_policy(CrashPolicy::Reexecute)
//!     .build()?;
//! let replay = Replay::builder(store, scope).dialect(Forrst::new()).build()?;
//! let calls = Router::new().route("/forrst", post(handler)).layer(idempotency);
//! let worker = replay.worker::<Body, _>(calls.clone()).start()?;
//! let app = calls.layer(replay.layer());
//! let call = async |envelope: Value| {
//!     let request = Request::post("/forrst").header("content-type", "application/json");
//!     let request = request.body(Body::from(envelope.to_string())).unwrap();
//!     let response = app.clone().oneshot(request).await.unwrap();
//!     let status = response.status();
//!     let body = to_bytes(response.into_body(), 10_000).await.unwrap();
//!     (status, from_slice::<Value>(&body).unwrap())
//! };
//!
//! let until = SystemTime::now() + Duration::from_secs(7200);
//! replay.maintenance().announce("Database migration", Some(until));
//! let (status, queued) = call(json!({
//!     "id": "req_123",
//!     "call": { "function": "orders.create", "version": "1.0.0", "arguments": {} },
//!     "extensions": [
//!         { "urn": "urn:forrst:ext:replay", "options": { "priority": "high" } },
//!         { "urn": "urn:forrst:ext:idempotency", "options": { "key": "order_7" } },
//!     ],
//! })).await;
//! assert_eq!(status, StatusCode::ACCEPTED);
//! let data = &queued["extensions"][0]["data"];
//! assert_eq!((&data["status"], &data["reason"]), (&json!("queued"), &json!("SERVER_MAINTENANCE")));
//!
//! replay.maintenance().off();
//! let status = json!({
//!     "call": {
//!         "function": "forrst.replay.status",
//!         "arguments": { "replay_id": data["replay_id"] },
//!     },
//! });
//! # loop {
//! #     let (_, told) = call(status.clone()).await;
//! #     if told["result"]["status"] == "completed" { break; }
//! #     tokio::time::sleep(Duration::from_millis(1)).await;
//! # }
//! // A moment later:
//! let (_, told) = call(status).await;
//! assert_eq!(told["result"]["result"]["order"], 7);
//! worker.shutdown(Duration::from_secs(10)).await;
//! # Ok(())
//! # }
//! ```
//!
//! # What is said
//!
//! | situation | status | the reply |
//! | --- | --- | --- |
//! | served at once | the handler's | the handler's; if it succeeded, the extension says `processed` |
//! | journaled | 202 | no result and no errors; the extension says `queued` and what is known of it, the `maintenance` extension why and until when, if that is the reason: by the [switch](crate::delivery::replay::Maintenance::announce), or by a handler that said so with 503 |
//! | the same idempotency key, still queued | 202 | the same `replay_id` |
//! | the same key, meanwhile replayed | that of the reply | the reply that the replay got; the extension says `completed` or `failed` |
//! | the same key, other arguments | 422 | `IDEMPOTENCY_CONFLICT` |
//! | not an envelope, options that can't be read | 400 | `VALIDATION_ERROR`, with the `field` in its details |
//! | nobody's | 403 | `FORBIDDEN` |
//! | does not ask for it, in maintenance | 503 | `SERVER_MAINTENANCE` |
//! | can't be written down | 503 | `UNAVAILABLE` |
//!
//! A request is the same as another one of the same caller by the key in its idempotency extension,
//! its function and its version; the order of its arguments and the spelling of numbers make no
//! difference. One without a key gets one when it is replayed.
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | `queued` means that the call is in the journal; if it can't be written down, the reply is `UNAVAILABLE` | that a repeat of a call without a key is recognised |
//! | repeats of a key get one `replay_id`, and later the reply that the replay got | when that is: the position and the estimate are of the moment |
//! | callers see, cancel and trigger their own replays alone | a `total` beyond 10 000 |
//! | credentials for a callback are written down only in a sealed journal | that the caller's own credentials are there when the call is replayed |
//!
//! [Those](crate::delivery::replay#promises) of replay over plain HTTP hold as well.
//!
//! # Functions
//!
//! The layer answers calls of `forrst.replay.status`, `cancel`, `trigger` (each with a
//! `replay_id`) and `list` (`status`, `function`, `limit` from 1 to 100, `cursor`) itself, where it
//! stands. Callers see their own replays; those of others are `REPLAY_NOT_FOUND`. What is over can
//! be neither cancelled nor triggered: `REPLAY_ALREADY_COMPLETE`, `REPLAY_CANCELLED`,
//! `REPLAY_EXPIRED`. The status of one that was replayed has its `result` or its `errors`. A list's
//! `total` is counted up to 10 000.
//!
//! # Callbacks
//!
//! The body of `replay.completed` has the `result` of the call, that of `replay.failed` its
//! `errors`. They are delivered as all [webhooks](crate::delivery::webhooks) are: signed, to public
//! addresses only, until they arrive. Credentials in a callback's `headers` need a
//! [sealed](crate::store::journal::Journal::is_sealed) journal, since the envelope is written down
//! whole.
//!
//! # What is read
//!
//! Requests of the methods that can be replayed, if they are JSON or do not say what they are. They
//! have to be envelopes then. Other content types pass as they are, and so does what is compressed:
//! the layer belongs inside of what decompresses. The reply to a call that asks for replay is read
//! too, up to the [limit](crate::delivery::replay::ReplayBuilder::response_limit), before it is sent on.

mod functions;
mod wire;

use bytes::Bytes;
use http::{
    HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use serde_json::{Value, json};

use super::{EnvelopeError, Extension, Fault, ReplayData, Request, Response, caller::Caller};

/// Reads the caller from a body, as far as it can be told.
fn caller(body: &[u8]) -> Caller {
    match Request::parse(body) {
        Ok(mut request) => Caller::of(&mut request),
        Err(_) => Caller::guess(body),
    }
}

/// Returns the fault of an envelope that is not valid.
fn invalid(code: &str, error: &EnvelopeError) -> Fault {
    let details = match error.at() {
        "" => Value::Null,
        at => json!({ "field": at }),
    };
    Fault::new(code, error.to_string()).details(details)
}

fn extension(data: &ReplayData) -> Extension {
    Extension::with_data(ReplayData::URN, json!(data))
}

/// Writes an envelope that caches must not store.
fn reply(status: StatusCode, envelope: &Response) -> http::Response<Bytes> {
    let body = serde_json::to_vec(envelope).unwrap_or_default();
    let mut response = http::Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
