//! Tower layers that make calls safe to repeat.
//!
//! Services die of their own retries: storms, payments made twice, herds that wake together. This
//! crate decides whether, when and how often a client calls again, and makes what it repeats
//! harmless. Each layer works alone; together they share one classification policy and one state
//! per dependency.
//!
//! ```no_run
//! use http_body_util::Full;
//! use hyper_util::{client::legacy::Client, rt::TokioExecutor};
//! use tower::ServiceBuilder;
//! use tower_reprise::{Dependencies, Policy, stacks};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let hyper_client = Client::builder(TokioExecutor::new()).build_http::<Full<bytes::Bytes>>();
//!
//! let deps = Dependencies::new(Policy::synchronous().service("checkout").build()?);
//! let client = ServiceBuilder::new().layer(stacks::client(deps)).service(hyper_client);
//! # let _ = client;
//! # Ok(())
//! # }
//! ```
//!
//! # The stack
//!
//! ```text
//! IdempotencyKey    one key per operation, the same on every attempt
//!  └ RetryBudget    count the original once; bound retry loops that are not ours
//!     └ Retry       call → verdict → vetoes → budget → wait max(backoff, asked for) → again
//!        └ RetryAfter      what one response asked for holds for the whole dependency
//!           └ CircuitBreaker   stop calling what fails; one probe at a time
//!              └ Peek       what the head of a reply does not tell; keep connections usable
//!                 └ your client
//!
//! Dependencies      the registry they share: policy, budget, breaker and gate of each dependency
//! ```
//!
//! | layer | module | alone it |
//! | --- | --- | --- |
//! | [`IdempotencyKeyLayer`] | [`idempotency_key`] | stamps a key on each POST and PATCH |
//! | [`RetryBudgetLayer`] | [`retry_budget`] | bounds anybody's retries, on a client or a server |
//! | [`RetryLayer`] | [`retry`] | retries, with full jitter, within attempts, time and budget |
//! | [`RetryAfterLayer`] | [`retry_after`] | holds or refuses calls to what asked to be left alone |
//! | [`CircuitBreakerLayer`] | [`circuit_breaker`] | refuses calls to what fails |
//! | [`PeekLayer`] | [`peek`] | reads gRPC trailers and error codes in bodies for the others |
//! | [`ProblemLayer`] | [`problem`] | makes errors responses, for a router or a proxy |
//!
//! [`stacks`] has all of them as one layer, and what tonic, axum and reqwest need.
//!
//! On a server, with the `server`, `delivery` and `forrst` features:
//!
//! | layer | module | alone it |
//! | --- | --- | --- |
//! | `IdempotencyLayer` | `idempotency` | executes an operation once, and replays its reply |
//! | `EventDedupLayer` | `idempotency::events` | processes an event once, however often it is delivered |
//! | `ReplayLayer` | `replay` | journals what can't be served now, and replays it later |
//! | `RetryGuidanceLayer` | `forrst::guidance` | tells clients whether and when to call again |
//! | `DeadLetterLayer` | `delivery::dead_letter` | keeps events that their consumer fails on |
//! | `WebhookVerifyLayer` | `delivery::verify` | lets only signed webhooks through |
//!
//! # Where things are
//!
//! What a user may ask for is in [`policy`], what an outcome means in [`classify`], how long to
//! wait in [`backoff`] and [`retry_after::parse`], and what is remembered about a dependency in
//! [`dependency`]. What must outlive a request on a server is in `store`: idempotency records and a
//! journal of what is to be done. Who works on that journal is in `delivery`: the worker, webhooks,
//! dead letters. How servers speak to a peer is in `wire`. Each layer's folder holds its `layer`,
//! `service` and `future`. Layers tell each other things through typed request and response extensions ([`retry::Attempt`],
//! [`RetryOverride`], [`IdempotencyKey`], [`RetryOutcome`]), never by knowing each other's types.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! | --- | --- | --- |
//! | `hyper` | yes | tells errors of hyper, hyper-util, h2 and rustls apart by their types |
//! | `metrics` | yes | counters, gauges and histograms through the `metrics` facade |
//! | `tracing` | yes | one structured event per retry |
//! | `serde` | no | policies from TOML, JSON and the environment |
//! | `codes` | no | error codes in JSON bodies |
//! | `forrst` | no | the forrst dialect: envelopes, retry guidance in replies, given and obeyed, and (with `server`) functions that are executed once, or (with `delivery`) later |
//! | `axum` | no | axum's bodies can be sent again |
//! | `tonic` | no | tonic's bodies can be sent again; refusals are statuses |
//! | `reqwest` | no | `reqwest::Client` as the innermost service |
//! | `reqwest-middleware` | no | layers in a reqwest-middleware chain |
//! | `server` | no | idempotency on a server, with records in memory, and the seam for other stores |
//! | `sqlite` | no | the store in a SQLite file, durable and shared by the processes of a machine |
//! | `postgres` | no | the store in PostgreSQL, shared by many machines, with an exactly-once path |
//! | `redis` | no | the store in Redis, shared by many machines |
//! | `delivery` | no | the replay journal; webhooks, signed and guarded, and their verification; dead letters |
//! | `seal` | no | a wrapper around any store that encrypts the replies in it |
//! | `full` | no | all of these |

pub mod backoff;
pub mod circuit_breaker;
pub mod classify;
#[cfg(feature = "delivery")]
pub mod delivery;
pub mod dependency;
pub mod error;
#[cfg(feature = "forrst")]
pub mod forrst;
#[cfg(feature = "full")]
pub mod guide;
#[cfg(feature = "server")]
pub mod idempotency;
pub mod idempotency_key;
pub mod peek;
pub mod policy;
pub mod problem;
#[cfg(feature = "delivery")]
pub mod replay;
pub mod retry;
pub mod retry_after;
pub mod retry_budget;
pub mod stacks;
#[cfg(feature = "server")]
pub mod store;

mod headers;
mod reply;
mod sync;
mod telemetry;
mod wire;

#[cfg(feature = "delivery")]
pub use self::delivery::verify::WebhookVerifyLayer;
#[cfg(feature = "server")]
pub use self::idempotency::IdempotencyLayer;
#[cfg(feature = "delivery")]
pub use self::replay::ReplayLayer;
pub use self::{
    circuit_breaker::CircuitBreakerLayer,
    dependency::Dependencies,
    idempotency_key::{IdempotencyKey, IdempotencyKeyLayer},
    peek::PeekLayer,
    policy::Policy,
    problem::ProblemLayer,
    retry::{RetryLayer, RetryOutcome, RetryOverride},
    retry_after::RetryAfterLayer,
    retry_budget::RetryBudgetLayer,
};

/// What threads share, in every order of their steps. Run by `tests/models`.
#[cfg(reprise_loom)]
#[doc(hidden)]
pub mod models {
    pub use crate::{dependency::models::*, store::models::*};
}

/// Gives back what a service reserved when it was made ready, because it will not be called: a
/// refused call must not keep a place in a concurrency limit below.
fn release<S: Clone>(service: &mut S) {
    *service = service.clone();
}
