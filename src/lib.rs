//! Middleware that retries failed calls without making an outage worse, and without doing anything
//! twice: a client decides whether, when and how often to call again, and a server recognises a
//! repeated request and answers it with the first one's reply.
//!
//! Each layer works alone; together they share one view of what an error means and one state per
//! dependency. **Start with the [`guide`]**: what is safe to repeat, the order of layers, operation,
//! migration from other crates. [`stacks`] has the one line for axum, tonic, reqwest and hyper, and each
//! layer's module says what it does, when to use it, its defaults, and what goes wrong.
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
//! let deps = Dependencies::new(Policy::http().service("checkout").build()?);
//! let client = ServiceBuilder::new().layer(stacks::client(deps)).service(hyper_client);
//! # let _ = client;
//! # Ok(())
//! # }
//! ```
//!
//! # Layers
//!
//! On a client, outermost first; [`stacks::client`] is all of them as one layer:
//!
//! | layer | module | alone it |
//! | --- | --- | --- |
//! | [`IdempotencyKeyLayer`] | [`client::idempotency_key`] | stamps a key on each POST and PATCH |
//! | [`RetryBudgetLayer`] | [`client::retry_budget`] | bounds retries to a share of the traffic, also those of other retry loops |
//! | [`RetryLayer`] | [`client::retry`] | retries, with full jitter, within attempts, time and budget |
//! | [`RetryAfterLayer`] | [`client::retry_after`] | holds or refuses calls to a dependency that asked to be left alone |
//! | [`CircuitBreakerLayer`] | [`client::circuit_breaker`] | refuses calls to a dependency that fails |
//! | [`HedgeLayer`] | [`client::hedge`] | sends a second attempt for a call that takes long |
//! | `AttemptSpanLayer` | `client::attempt_span` | makes a trace span for each attempt; in [`stacks::traced`](stacks), not in [`stacks::client`] |
//! | [`PeekLayer`] | [`client::peek`] | reads gRPC trailers and error codes in bodies for the others |
//!
//! On a server, some with the `server`, `delivery` and `forrst` features:
//!
//! | layer | module | alone it |
//! | --- | --- | --- |
//! | [`InboundBudgetLayer`] | [`server::inbound_budget`] | refuses inbound retries over a budget |
//! | [`DeadlineLayer`] | [`server::deadline`] | gives calls that are made to serve a request its caller's deadline and attempt number |
//! | [`ProblemLayer`] | [`server::problem`] | turns errors into responses, for a router or a proxy |
//! | `IdempotencyLayer` | `server::idempotency` | executes an operation once, and replays its reply |
//! | `EventDedupLayer` | `server::idempotency::events` | processes an event once, however often it is delivered |
//! | `ReplayLayer` | `delivery::replay` | journals requests that can't be served now, and replays them later |
//! | `DeadLetterLayer` | `delivery::dead_letter` | keeps events that their consumer fails on |
//! | `WebhookVerifyLayer` | `delivery::webhooks::verify` | lets only signed webhooks through |
//! | `RetryGuidanceLayer` | `forrst::guidance` | tells clients whether and when to call again |
//!
//! # The house
//!
//! Each room uses its own floor and lower ones, never a higher one and never in a circle;
//! `tests/architecture.rs` holds it to that.
//!
//! ```text
//! 5  stacks     the layers on axum, tonic and reqwest      guide      config   policy files
//! 4  forrst     one wire dialect, on top of client, server and delivery
//! 3  client     retry, retry_budget, retry_after, circuit_breaker, hedge, idempotency_key,
//!               peek
//!    server     deadline, dialect, idempotency, inbound_budget, problem
//!    delivery   worker, replay, webhooks, dead_letter, guard
//! 2  dependency what is remembered about a dependency: budget, breaker, gate, latency, registry
//!    store      what outlives the process: records and queues, on four backends
//! 1  policy     what a user may ask for: profiles, ranges, approvals, audit
//!    classify   what an outcome means: HTTP, gRPC, network errors, error codes
//! 0  call       what layers tell each other about one call: attempt, verdict, outcome
//!    http       bodies, headers, problem documents, stored replies
//!    backoff  error  telemetry  sync
//! ```
//!
//! A layer's folder holds its `layer`, `service` and `future`. Layers never know each other's types:
//! they meet in one [`Dependencies`] registry, and in typed extensions of requests and responses
//! ([`call`]).
//!
//! # Features
//!
//! | feature | default | what it adds |
//! | --- | --- | --- |
//! | `codes` | yes | error codes in JSON bodies; without it, a policy with other codes than the standard's is an error |
//! | `hyper` | no | knows errors of hyper and hyper-util; without it, a reply that breaks off or a failed look-up is an unknown error, and not retried |
//! | `h2` | no | knows resets of HTTP/2 streams; without it, one that the server refused is not retried |
//! | `rustls` | no | knows TLS errors; without it, an untrusted certificate is known by its text, and any other failed handshake counts as a failed connection, which is retried |
//! | `buffer` | no | knows that a `tower::buffer` is closed; without it, that counts as a failure of the dependency |
//! | `metrics` | yes | counters, gauges and histograms through the `metrics` facade |
//! | `tracing` | yes | one structured event per retry |
//! | `serde` | no | policies from TOML, JSON and the environment, and from gRPC service configs |
//! | `forrst` | no | the forrst dialect: envelopes, retry guidance in replies, given and obeyed, and (with `server`) functions that are executed once, or (with `delivery`) later |
//! | `descriptors` | no | idempotent and unary methods from the descriptor set of a gRPC service |
//! | `axum` | no | axum's bodies can be sent again; below nested routers, idempotency goes by the whole path |
//! | `tonic` | no | tonic's bodies can be sent again; refusals are statuses; with `hyper`, `h2` and `buffer`, and for TLS add `rustls` |
//! | `reqwest` | no | `reqwest::Client` as the innermost service; with `hyper`, `h2` and `rustls` |
//! | `reqwest-middleware` | no | layers in a reqwest-middleware chain |
//! | `server` | no | idempotency on a server, with records in memory, and the seam for other stores |
//! | `sqlite` | no | the store in a SQLite file, durable and shared by the processes of a machine |
//! | `postgres` | no | the store in PostgreSQL, shared by many machines, with an exactly-once path |
//! | `redis` | no | the store in Redis, shared by many machines |
//! | `delivery` | no | the replay journal; webhooks, signed and guarded, and their verification; dead letters |
//! | `seal` | no | a wrapper around any store that encrypts the replies in it |
//! | `full` | no | all of these |

#![cfg_attr(docsrs, feature(doc_cfg))]

#[macro_use]
mod debug;

pub mod backoff;
pub mod call;
pub mod classify;
pub mod client;
#[cfg(feature = "serde")]
pub mod config;
#[cfg(feature = "delivery")]
pub mod delivery;
pub mod dependency;
pub mod error;
#[cfg(feature = "forrst")]
pub mod forrst;
pub mod guide;
pub mod http;
pub mod policy;
pub mod server;
pub mod stacks;
#[cfg(feature = "server")]
pub mod store;

mod sync;
pub mod telemetry;

#[cfg(feature = "delivery")]
pub use self::delivery::{replay::ReplayLayer, webhooks::verify::WebhookVerifyLayer};
#[cfg(feature = "server")]
pub use self::server::idempotency::IdempotencyLayer;
pub use self::{
    call::{IdempotencyKey, RetryOutcome, RetryOverride},
    client::{
        circuit_breaker::CircuitBreakerLayer, hedge::HedgeLayer,
        idempotency_key::IdempotencyKeyLayer, peek::PeekLayer, retry::RetryLayer,
        retry_after::RetryAfterLayer, retry_budget::RetryBudgetLayer,
    },
    dependency::Dependencies,
    policy::Policy,
    server::{deadline::DeadlineLayer, inbound_budget::InboundBudgetLayer, problem::ProblemLayer},
};

/// Models of the lock-free parts, which loom runs in every order of their steps (`tests/models`).
#[cfg(reprise_loom)]
#[doc(hidden)]
pub mod models {
    pub use crate::{dependency::models::*, store::models::*};
}
