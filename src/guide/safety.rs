//! What is safe to retry.
//!
//! Three questions, each asked on its own after every failed attempt; a retry needs three times yes.
//!
//! # May it pass?
//!
//! | outcome | |
//! | --- | --- |
//! | connection refused, reset, closed early; a timeout | yes |
//! | a name that can't be resolved | yes, twice |
//! | 408, 429, 500, 502, 503, 504 | yes; 425 once |
//! | `UNAVAILABLE`, `DEADLINE_EXCEEDED`, `RESOURCE_EXHAUSTED`, `ABORTED` | yes |
//! | 409 that says the first request is still being processed | yes |
//! | a certificate that is not trusted | never |
//! | any other status, any other 409, a reply that was [replayed](crate::server::idempotency) | never |
//! | whatever says `x-should-retry: false` | never |
//!
//! [`Rules`](crate::classify::Rules) and a policy's builder change the tables;
//! [`Codes`](crate::classify::Codes) reads the error code in a JSON body, where a status alone says
//! too little.
//!
//! # Is it harmless to do twice?
//!
//! Nobody can tell a request that was lost from a reply that was lost. So a request is repeated only
//! if one of these holds:
//!
//! - its method is idempotent: GET, HEAD, OPTIONS, TRACE, PUT, DELETE;
//! - it carries an idempotency key, **and the server honours keys**;
//! - the gRPC method is declared [idempotent](crate::policy::PolicyBuilder::idempotent_methods);
//! - it surely was never processed: the connection was refused, or HTTP/2 said so (`REFUSED_STREAM`,
//!   a `GOAWAY` with a lower last stream).
//!
//! ```
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{Dependencies, Policy, RetryLayer, RetryOutcome, call::StopReason, error::BoxError};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! let deps = Dependencies::new(Policy::synchronous().build()?);
//! let mut client = ServiceBuilder::new().layer(RetryLayer::new(deps)).service(service_fn(
//!     |_: Request<()>| async { Ok::<_, BoxError>(Response::builder().status(503).body(())?) },
//! ));
//!
//! let naked = Request::post("http://bank.example/payments").body(())?;
//! let response = client.ready().await?.call(naked).await?;
//! let outcome = RetryOutcome::of(&response).unwrap();
//! assert_eq!((outcome.attempts(), outcome.stop_reason()), (1, Some(StopReason::NotIdempotent)));
//!
//! let keyed = Request::post("http://bank.example/payments").header("idempotency-key", "7c4a8d09");
//! let response = client.ready().await?.call(keyed.body(())?).await?;
//! assert_eq!(RetryOutcome::of(&response).unwrap().attempts(), 4);
//! # Ok(())
//! # }
//! ```
//!
//! The second of them is a promise that only you can make. [`stacks::client`](crate::stacks::client)
//! stamps a key on every POST and PATCH, which makes them retryable: for a server that ignores keys
//! build the stack without [`IdempotencyKeyLayer`](crate::client::idempotency_key::IdempotencyKeyLayer). A key that shall
//! survive a crash of the client has to be stored before the call: see
//! [`idempotency_key`](crate::client::idempotency_key).
//!
//! # Is it allowed?
//!
//! Within the attempts, the time for the whole call, the [budget](super::budgets), an open breaker
//! and what the dependency asked for. A wait that does not fit in the time that is left ends the
//! call at once, rather than after a wait for nothing. The caller gets the last real answer, and
//! [`RetryOutcome`](crate::call::RetryOutcome) says which of these it was.
//!
//! # Bodies
//!
//! A body that is at hand is sent again. One that streams is recorded as it passes, up to
//! [`replay_limit`](crate::policy::PolicyBuilder::replay_limit); one that is longer is streamed all
//! the same, and can't be retried once it was touched. Nothing is held back to be able to retry.
//!
//! # Credentials
//!
//! Every attempt carries what the first one carried. A token may be
//! [refreshed](crate::client::retry::BearerToken) between attempts; that it can't be dropped or weakened is
//! checked.
