//! On the server: a forrst function is executed once, however often it is called with one key.
//!
//! [`Forrst`] is the dialect in which an [`IdempotencyLayer`](crate::server::idempotency::IdempotencyLayer) understands
//! envelopes. The key is in the request's idempotency extension, and what became of it in the
//! reply's. Everything else, stores, leases, orphans, is as the layer's
//! [module](crate::server::idempotency) says.
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::{BodyExt, Full};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{IdempotencyLayer, error::BoxError, server::dialect::Scope, store::{MemoryStore, CrashPolicy}};
//! use tower_reprise::forrst::{self, Forrst, IdempotencyData};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let layer = IdempotencyLayer::builder(MemoryStore::new())
//!     .with_dialect(Forrst::new())
//!     .scope(Scope::new(|_| Some("shop")))
//!     .crash_policy(CrashPolicy::Reexecute)
//!     .build()?;
//! let charge = service_fn(|request: Request<Full<Bytes>>| async {
//!     let body = request.into_body().collect().await?.to_bytes();
//!     let id = forrst::Request::parse(&body)?.id;
//!     let reply = serde_json::json!({ "id": id, "result": { "charge_id": "ch_abc" } });
//!     let response = Response::builder().header("content-type", "application/json");
//!     Ok::<_, BoxError>(response.body(Full::<Bytes>::from(reply.to_string()))?)
//! });
//! let mut server = ServiceBuilder::new().layer(layer).service(charge);
//!
//! for (id, status) in [("req_001", "processed"), ("req_002", "cached")] {
//!     let call = serde_json::json!({
//!         "id": id,
//!         "call": { "function": "payments.charge", "version": "1.0.0", "arguments": { "amount": 100 } },
//!         "extensions": [{ "urn": "urn:forrst:ext:idempotency", "options": { "key": "charge_456" } }]
//!     });
//!     let request = Request::post("/").body(Full::from(call.to_string()))?;
//!     let response = (&mut server).oneshot(request).await?;
//!     let body = response.into_body().collect().await?.to_bytes();
//!     let reply = forrst::Response::parse(&body)?;
//!     let data: IdempotencyData = reply.data_of(IdempotencyData::URN)?.expect("it was asked for");
//!     assert_eq!((reply.id.as_deref(), &*data.status), (Some(id), status));
//!     assert_eq!(data.original_request_id.as_deref(), Some("req_001"));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What a call gets
//!
//! | its key | answer | `status` of the extension |
//! | --- | --- | --- |
//! | is new | the function's reply | `processed` |
//! | was used with the same arguments | the stored reply, with the `id` of this call | `cached` |
//! | is being used with the same arguments | `IDEMPOTENCY_PROCESSING`, 409 | `processing` |
//! | was used with other arguments | `IDEMPOTENCY_CONFLICT`, 422 | `conflict` |
//! | is no key, or the envelope is none, or its id, function or version has a NUL | `VALIDATION_ERROR`, 400 | |
//! | is nobody's | `FORBIDDEN`, 403 | |
//! | can't be looked up | `UNAVAILABLE`, 503 | |
//! | was used, and its reply was too large to keep | `IDEMPOTENCY_REPLY_NOT_RETAINED`, 409 | |
//! | was used, and its outcome is [not known](crate::store::CrashPolicy) | `IDEMPOTENCY_OUTCOME_UNKNOWN`, 409 | |
//!
//! A conflict tells the caller the hash of the arguments that its key came with first. A key belongs
//! to a caller, a function and its version. Arguments are the same if their
//! [`canonical`](super::canonical()) forms are, whatever the order of their members and the spelling
//! of their numbers. Calls without the extension are passed on.
//!
//! All requests are taken for envelopes, but for those of safe methods (GET and the like): a call
//! whose key went unseen would be made without protection. So this layer goes around forrst's
//! routes, and inside of what decompresses bodies.
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | of the calls with one key, caller, function and version one is executed, on all servers that share the store | anything for calls without the extension |
//! | repeats get the first reply, its errors too, with their own `id` and a `status` of `cached` | that a reply beyond the limit is kept: repeats are told that it was executed |
//! | all other members of a stored reply keep their bytes | the `id` and the `status` in a reply that is no envelope, is compressed or has a digest: it stays as it is |
//! | a key that can't be read is refused, and not passed on as a call without one | that a function which says `UNAVAILABLE` after it took effect is executed once: it needs a [`HandlerOutcome`](crate::server::idempotency::HandlerOutcome) |
//!
//! But for these differences the [layer's](crate::server::idempotency#promises) hold.
//!
//! # What is kept
//!
//! The reply of a function that was executed, errors too: a repeat gets them again. What says that
//! nothing was executed is not kept, and a repeat is executed: the statuses that the layer
//! [releases](crate::server::idempotency), and replies of which all errors are `UNAUTHORIZED`,
//! `RATE_LIMITED`, `UNAVAILABLE`, `SERVER_MAINTENANCE`, `FUNCTION_MAINTENANCE`, `FUNCTION_DISABLED`
//! or `IDEMPOTENCY_PROCESSING`. A handler that knows better marks its response with a
//! [`HandlerOutcome`](crate::server::idempotency::HandlerOutcome).
//!
//! It is kept for the layer's retention, or for the `ttl` that a call asks for, of 24 hours up to
//! [`longest_ttl`](Forrst::longest_ttl). What other extensions say in a reply stays as it was, and
//! so does a reply that is not an envelope, or that is compressed or comes with a digest.

pub(super) mod wire;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

#[cfg(feature = "delivery")]
use crate::classify::Codes;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The forrst dialect of an [`IdempotencyLayer`](crate::server::idempotency::IdempotencyLayer), see
/// the [module docs](self), and of a `ReplayLayer`.
#[derive(Clone)]
#[must_use]
pub struct Forrst {
    longest_ttl: Duration,
    #[cfg(feature = "delivery")]
    pub(super) codes: Codes,
    clock: Arc<dyn Fn() -> SystemTime + Send + Sync>,
}

impl Forrst {
    /// Stores replies for up to 7 days.
    pub fn new() -> Self {
        Self {
            longest_ttl: 7 * DAY,
            #[cfg(feature = "delivery")]
            codes: Codes::forrst(),
            clock: Arc::new(SystemTime::now),
        }
    }

    /// Sets the longest that a call may ask for its reply to be stored: 24 hours to 365 days.
    pub fn longest_ttl(mut self, ttl: Duration) -> Self {
        self.longest_ttl = ttl;
        self
    }

    /// Sets the clock for `cached_at` and `expires_at`, for tests. Records expire by the store's
    /// clock.
    pub fn clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }
}

impl Default for Forrst {
    fn default() -> Self {
        Self::new()
    }
}

opaque_debug! { Forrst, self, longest_ttl = self.longest_ttl }
