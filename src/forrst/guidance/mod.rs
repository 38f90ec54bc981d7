//! Retry guidance from a server: whether and when to call again.
//!
//! A client without guidance guesses: it hammers a service that needs a minute, and gives up on one
//! that needs a second. [`RetryGuidanceLayer`] adds the retry extension to failed forrst replies, and
//! a `Retry-After` header for all other clients. Put it outermost on a server of forrst functions.
//! A service whose handlers all set their own guidance does not need it. The defaults:
//!
//! | error code | strategy | after | retries |
//! | --- | --- | --- | --- |
//! | `RATE_LIMITED` | fixed | 60 s | 3 |
//! | `UNAVAILABLE` | exponential | 1 s | 5 |
//! | `DEADLINE_EXCEEDED` | immediate | | 1 |
//! | `INTERNAL_ERROR` | exponential | 1 s | 3 |
//! | `DEPENDENCY_ERROR` | exponential | 2 s | 3 |
//! | `IDEMPOTENCY_PROCESSING` | fixed | 1 s | 3 |
//! | `SERVER_MAINTENANCE`, `FUNCTION_MAINTENANCE` | fixed | 60 s | 1 |
//! | `FUNCTION_DISABLED` | fixed | 30 s | 2 |
//! | `INVALID_ARGUMENTS`, `NOT_FOUND`, `UNAUTHORIZED`, `FORBIDDEN`, `CANCELLED`, `VALIDATION_ERROR`, `IDEMPOTENCY_CONFLICT`, `REPLAY_NOT_FOUND`, `REPLAY_EXPIRED`, `REPLAY_ALREADY_COMPLETE`, `REPLAY_CANCELLED` | not allowed | | |
//!
//! The first of these that is present decides:
//!
//! 1. the retry extension of the handler's reply, which stays unchanged;
//! 2. a [`Retry`](super::Retry) in the extensions of the handler's `http::Response`;
//! 3. an idempotency extension with `cached` or `processed`, and any other reply that an
//!    [`IdempotencyLayer`](crate::server::idempotency) of this process keeps: a retry gets the same
//!    reply, so it is not allowed;
//! 4. a rate-limit extension with nothing remaining, or beside `RATE_LIMITED`: its `reset` is the
//!    wait;
//! 5. a `Retry-After` header, or, with 429 and 503, `RateLimit` headers with nothing remaining: they
//!    are the wait; `x-should-retry: false` allows no retry;
//! 6. the table, which can be changed: [`code`](RetryGuidanceLayer::code),
//!    [`silent`](RetryGuidanceLayer::silent).
//!
//! A code that is not in the table gets no guidance. Of several errors, one that may not be retried
//! decides, and otherwise the first in the table.
//!
//! # Plain HTTP
//!
//! Replies of status 429 and 503 that are not forrst get a `Retry-After` header unless they have one:
//! the wait of their `RateLimit` headers, or
//! [1 s](RetryGuidanceLayer::http_retry_after). A handler's own [`Retry`](super::Retry) becomes a
//! header of any failed reply; one that is not allowed becomes `x-should-retry: false`.
//!
//! An RFC 9457 problem document (`application/problem+json`) gets the extension's data as its member
//! `retry`, by its `code` if the table has it, and otherwise by its status. Clients with a
//! [`PeekLayer`](crate::client::peek::PeekLayer) obey that member if the document has its `status`.
//!
//! # Example
//!
//! ```
//! use std::{convert::Infallible, time::Duration};
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::{BodyExt, Full};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::forrst::{self, Retry, RetryGuidanceLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let handler = service_fn(|_: Request<()>| async {
//!     let body = r#"{"protocol":{"name":"forrst","version":"0.1.0"},"id":"1","result":null,
//!         "errors":[{"code":"STOCKTAKING","message":"Come back later"}]}"#;
//!     let response = Response::builder().status(503).header("content-type", "application/json");
//!     Ok::<_, Infallible>(response.body(Full::new(Bytes::from(body))).unwrap())
//! });
//! let guidance = Retry::fixed(Duration::from_secs(20)).max_attempts(2);
//! let mut server = ServiceBuilder::new()
//!     .layer(RetryGuidanceLayer::new().code("STOCKTAKING", guidance.clone()))
//!     .service(handler);
//!
//! let response = server.ready().await?.call(Request::new(())).await?;
//! assert_eq!(response.headers()["retry-after"], "20");
//! let body = response.into_body().collect().await?.to_bytes();
//! let envelope = forrst::Response::parse(&body)?;
//! assert_eq!(envelope.data_of(Retry::URN)?, Some(guidance));
//! # Ok(())
//! # }
//! ```
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | a failed reply gets guidance that agrees with its code, its limits and what the server keeps | that clients obey it |
//! | all other members of a body keep their bytes | guidance in bodies that are larger than the limit, compressed or signed: those get headers only |
//!
//! # What goes wrong
//!
//! The layer reads JSON of up to 64 KiB for up to 250 ms. A longer or slower reply gets headers only,
//! and so does one that is compressed or has a digest. All other members of a changed body keep their
//! bytes.

mod future;
mod http_reply;
mod layer;
mod table;

pub use self::{
    future::RetryGuidanceFuture,
    layer::{RetryGuidance, RetryGuidanceLayer},
};
