//! Tell clients whether and when to call again.
//!
//! A client that is told nothing guesses: it hammers what needs a minute, and gives up on what
//! needs a second. The server knows. [`RetryGuidanceLayer`] puts what it knows into failed forrst
//! replies, as their retry extension, and into a `Retry-After` header for all other clients:
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
//! Whoever knows better is heard first, in this order:
//!
//! 1. a handler that put the extension into its reply: it stays as it is;
//! 2. a handler that put a [`Retry`](super::Retry) into the extensions of its `http::Response`;
//! 3. an idempotency extension that says `cached`: the same would come again, so it is not allowed;
//! 4. a rate-limit extension of which nothing remains, or that comes with `RATE_LIMITED`: its
//!    `reset` is the wait;
//! 5. a handler that put a `Retry-After` header into its reply, or, with 429 and 503, `RateLimit`
//!    headers of which nothing remains: they are the wait; with `x-should-retry: false` it is not
//!    allowed;
//! 6. the table, which can be changed: [`code`](RetryGuidanceLayer::code),
//!    [`silent`](RetryGuidanceLayer::silent).
//!
//! A code that is not in the table gets no guidance. With several errors, one that may not be
//! retried decides, and else the first that is in the table.
//!
//! # Plain HTTP
//!
//! Replies of status 429 and 503 that are not forrst get a `Retry-After` header, unless they have
//! one: of 1 s, or as long as their `RateLimit` headers say. A handler's own [`Retry`](super::Retry)
//! becomes a header in any failed reply; if it is not allowed, `x-should-retry: false`.
//!
//! An RFC 9457 problem document (`application/problem+json`) says in its member `retry` what the
//! extension says, by its `code` if the table knows it, and else by its status. Clients with a
//! [`PeekLayer`](crate::client::peek::PeekLayer) obey that too, if the document has its `status`.
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
//! # What is read
//!
//! JSON, up to 64 KiB of it and for up to 250 ms; a longer or slower reply passes as it is, as does
//! one that is compressed or comes with a digest. What is added is added in place: all other
//! members keep their bytes.

mod future;
mod layer;
mod plain;
mod table;

pub use self::{
    future::RetryGuidanceFuture,
    layer::{RetryGuidance, RetryGuidanceLayer},
};
