//! Requests that are safe to retry.
//!
//! After a failed attempt a retry needs three conditions: the failure is transient, the request may
//! be executed twice, and the limits allow it.
//!
//! # Transient failures
//!
//! | outcome | retried |
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
//! # Idempotent requests
//!
//! A client can't tell a lost request from a lost reply. So a request is retried only if
//!
//! - its method is idempotent: GET, HEAD, OPTIONS, TRACE, PUT, DELETE;
//! - it carries an idempotency key, **and the server honours keys**;
//! - the call is declared [idempotent](crate::call::RetryOverride::idempotent): a search by POST;
//! - the gRPC method is declared [idempotent](crate::policy::PolicyBuilder::idempotent_methods);
//! - or it was certainly not processed: the connection was refused, or HTTP/2 said so (`REFUSED_STREAM`,
//!   a `GOAWAY` with a lower last stream).
//!
//! ```
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{Dependencies, Policy, RetryLayer, RetryOutcome, call::StopReason, error::BoxError};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! let deps = Dependencies::new(Policy::http().build()?);
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
//! Only you know whether a server honours keys. [`stacks::client`](crate::stacks::client) stamps a
//! key on every POST and PATCH, and retries them on its strength only if the policy says that the
//! dependency [honours keys](crate::policy::PolicyBuilder::honours_keys). In a stack of your own, an
//! [`IdempotencyKeyLayer`](crate::client::idempotency_key::IdempotencyKeyLayer), or a key that you set,
//! is your word for it. A classifier of your own changes what an outcome means, and none of this. To
//! survive a crash of the client, a key must be stored before the call: see
//! [`idempotency_key`](crate::client::idempotency_key).
//!
//! # Limits
//!
//! The number of attempts, the time of the whole call, the [budget](super::budgets), the breaker and
//! a `Retry-After` of the dependency each can end a call. A wait that does not fit into the remaining
//! time ends it at once. The caller gets the last real response, and
//! [`RetryOutcome`](crate::call::RetryOutcome) names the reason.
//!
//! # Bodies
//!
//! A buffered body is sent again. A streaming one is recorded as it passes, up to
//! [`replay_limit`](crate::policy::PolicyBuilder::replay_limit), and recording delays nothing. A retry
//! sends what was recorded and goes on with the rest, also if that is still to come; once more than
//! the limit has passed there is no retry. See
//! [`ReplayBody`](crate::client::retry::ReplayBody).
//!
//! # Credentials
//!
//! Every attempt carries the credentials of the first one. A token can be
//! [refreshed](crate::client::retry::BearerToken) between attempts, but neither dropped nor weakened.
//! After a 401 the refreshed request goes out at once, whatever its method: it was not executed.
