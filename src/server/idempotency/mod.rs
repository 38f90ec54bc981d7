//! Execution of an operation once, however often it is asked for.
//!
//! A client that gets no reply can't know whether its payment was made. It asks again, with the
//! same `Idempotency-Key`, and the server has to know the key: then the second request gets the
//! first one's reply, and nobody pays twice. [`IdempotencyLayer`] does that in front of any HTTP
//! service, an axum router for one.
//!
//! # When to use it
//!
//! In front of handlers whose second execution would do harm: payments, orders, messages.
//!
//! Not for reads, which can be repeated as they are. Not instead of a unique constraint where there is
//! one: it also holds against callers that lose their key. Not around endless or large replies, which it
//! reads before it sends them.
//!
//! # Defaults
//!
//! The [`scope`](IdempotencyBuilder::scope) and the [`crash_policy`](IdempotencyBuilder::crash_policy) have
//! none: they have to be chosen.
//!
//! | setting | default |
//! | --- | --- |
//! | [`methods`](IdempotencyBuilder::methods), [`requirement`](IdempotencyBuilder::requirement) | POST and PATCH need a key, all others pass |
//! | [`header`](IdempotencyBuilder::header), [`max_key_len`](IdempotencyBuilder::max_key_len) | `Idempotency-Key`, bare or quoted; 64 characters |
//! | [`retention`](IdempotencyBuilder::retention) | 24 h |
//! | [`lease`](IdempotencyBuilder::lease), [`max_execution`](IdempotencyBuilder::max_execution) | 30 s, renewed for 15 min |
//! | [`request_limit`](IdempotencyBuilder::request_limit), [`response_limit`](IdempotencyBuilder::response_limit) | 1 MiB each |
//! | [`wait`](IdempotencyBuilder::wait) | none: a duplicate gets 409 at once |
//! | [`store_timeout`](IdempotencyBuilder::store_timeout) | 5 s |
//! | [`fail_open`](IdempotencyBuilder::fail_open) | off: 503 while the store is down |
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{IdempotencyLayer, error::BoxError, server::dialect::Scope, store::{MemoryStore, CrashPolicy}};
//!
//! #[derive(Clone)]
//! struct Principal { id: String }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let layer = IdempotencyLayer::builder(MemoryStore::new())
//!     .scope(Scope::new(|req| req.extensions().get::<Principal>().map(|p| p.id.clone())))
//!     .crash_policy(CrashPolicy::Reexecute)
//!     .build()?;
//! let mut server = ServiceBuilder::new()
//!     .layer(layer)
//!     .service(service_fn(|_: Request<Full<Bytes>>| async {
//!         Ok::<_, BoxError>(Response::new(Full::<Bytes>::from("paid")))
//!     }));
//!
//! let pay = || {
//!     let mut request = Request::post("/payments")
//!         .header("idempotency-key", "7c4a8d09-ca95-4c6d-8f3b-91a7e6e0b9d2")
//!         .body(Full::<Bytes>::from("100 EUR"))
//!         .unwrap();
//!     request.extensions_mut().insert(Principal { id: "alice".into() });
//!     request
//! };
//! let first = (&mut server).oneshot(pay()).await?;
//! let again = (&mut server).oneshot(pay()).await?;
//! assert!(!first.headers().contains_key("idempotent-replayed"));
//! assert_eq!(again.headers()["idempotent-replayed"], "true");
//! # Ok(())
//! # }
//! ```
//!
//! # What a request gets
//!
//! | its key | answer |
//! | --- | --- |
//! | is new | the handler's reply, which is stored for 24 hours or longer |
//! | was used for the same request | the stored reply, with `Idempotent-Replayed: true` |
//! | is being used for the same request | 409 and `Retry-After`, or the reply after a [`wait`](IdempotencyBuilder::wait) |
//! | was used for another request | 422 |
//! | is missing where one is needed, or is no key | 400 |
//! | can't be looked up, since the store does not answer | 503, unless it [fails open](IdempotencyBuilder::fail_open) |
//!
//! Rejections are problem documents (RFC 9457), or gRPC statuses. "The same request" is the same
//! method, path, query, content type and body. A key belongs to the
//! [`Scope`](super::dialect::Scope) of its request: without one, a caller could get another's reply.
//!
//! # What is executed, and what is kept
//!
//! A handler that is not done at once goes on on a task of its own, so that a client that hangs up
//! does not leave a payment half made: the client finds the reply when it asks again. Replies are
//! stored, errors too, since the handler was executed:
//!
//! | reply | the key |
//! | --- | --- |
//! | any, with a [`HandlerOutcome`] | as the handler says |
//! | 401, 425, 429; 503 with `Retry-After`; a refusal of a layer of this crate that did not call its service | is released, and a repeat is executed |
//! | 408, 503 without `Retry-After` | has an unknown outcome, and the [`CrashPolicy`](crate::store::CrashPolicy) decides |
//! | any other | keeps the reply |
//! | an error that says that nothing was sent (a refusal by a breaker, no connection) | is released |
//! | any other error of the service | is left to its lease, as if the server had died |
//!
//! A 408 or a bare 503 is no proof that nothing was done, since a timeout layer *below* this one
//! sends it after the handler began. Put timeouts above this layer, where they are harmless; or
//! declare the statuses that your handler alone sends with
//! [`no_effect_statuses`](IdempotencyBuilder::no_effect_statuses). A call that a [`RetryLayer`](crate::client::retry::RetryLayer) below
//! made more than once is judged by all of its attempts: if one of them
//! [may have been processed](crate::call::RetryOutcome::in_doubt), the outcome is unknown, whatever
//! the last one met.
//!
//! Whole replies are stored, with trailers, except for headers that belong to a connection, a caller
//! or a moment (`Set-Cookie`, `Date`, trace ids, …). A reply beyond
//! [`response_limit`](IdempotencyBuilder::response_limit) goes to the first caller only. It is read
//! up to there before any of it is sent, so endless responses have no place under this layer.
//! Trailers of a request are not passed on.
//!
//! # When a server dies
//!
//! A server executes under a lease, seconds long, which it renews. When it dies, or its handler
//! panics, repeats get 409 until the lease has run out; then the
//! [`CrashPolicy`](crate::store::CrashPolicy) decides whether the operation is executed again, or
//! repeats are told that its outcome is unknown. A server that was merely stopped, and comes back
//! after another took over, finds its completion rejected; and [`Execution`] has a token with which
//! a handler can guard its own writes.
//!
//! A handler that hangs keeps its lease for
//! [`max_execution`](IdempotencyBuilder::max_execution), 15 minutes by default, and then counts as one
//! that died. A server that is stopped in good order waits for what still runs with [`Drain`].
//!
//! An operation whose outcome is unknown waits for a person, or for a job that asks the bank:
//! [`UnknownOutcomes`] lists such operations, resolves one with the reply that repeats get from then
//! on, or as without effect, and releases its key. So does the program: `reprise keys list`.
//!
//! # When the store is down
//!
//! Requests are rejected with 503. The end of an execution is kept in memory, up to
//! [`unsettled_limit`](IdempotencyBuilder::unsettled_limit), and written when the store is back, while
//! its lease is renewed. Past that limit replies are dropped first: repeats are then told that the
//! request was executed. The gauge `idempotency_unsettled` counts what waits.
//!
//! # Where it goes
//!
//! The layer belongs inside of authentication, and outside of what shall be executed once. It needs
//! a tokio runtime. Below a nested axum router the whole path counts (with the `axum` feature); below
//! other routers that strip a prefix, give each layer a
//! [`namespace`](IdempotencyBuilder::namespace). A handler keeps the tracing span of its caller, but
//! not task-locals.
//!
//! [`events`] is the same for consumers of events. With the `forrst` feature, a layer can speak
//! [another dialect](IdempotencyBuilder::with_dialect) than plain HTTP: `forrst::Forrst`.
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | of requests with one key, owner and operation one is executed, on all servers that share the store | exactly once after a crash: the [`CrashPolicy`](crate::store::CrashPolicy) decides, or a [transaction](crate::guide::promises) of your own |
//! | repeats get the first reply, byte for byte, for at least 24 hours | that a reply beyond the limit is kept: repeats are then told that it was executed |
//! | another owner's key, and another request with the same key, never get that reply | anything for requests without a key |
//! | a handler goes on when its client hangs up | that a handler past `max_execution` is stopped: its key is left to the crash policy |
//! | with the store down nothing is executed, unless told otherwise | that an outcome which waits for the store survives the end of the process: [`Drain`] waits for it |
//!
//! # What goes wrong
//!
//! | mistake | what happens | instead |
//! | --- | --- | --- |
//! | one scope for all callers of a public API | one caller's key can meet another's | scope by the principal that authentication found |
//! | a timeout layer below this one | its 408 says nothing about the handler: outcome unknown | timeouts above this layer |
//! | a memory store behind several servers, or across deployments | each server executes once | SQLite, PostgreSQL or Redis: see [`promises`](crate::guide::promises) |
//! | [`CrashPolicy::Reexecute`](crate::store::CrashPolicy) for a handler whose effect is not in one transaction | a crash halfway is followed by a second half | `Unknown` and a person, or [one transaction](crate::guide::transactions) |
//! | clients that draw a new key for each attempt | nothing is recognised | one key for each operation: see [`idempotency_key`](crate::client::idempotency_key) |

pub mod events;

mod builder;
mod drain;
mod engine;
mod execute;
mod execution;
mod future;
mod keyed_request;
mod layer;
mod limits;
mod outcome;
mod service;
mod settings;
mod settlement;
mod timer;
mod unknown;

pub use self::{
    builder::{IdempotencyBuilder, Missing},
    drain::{Drain, Drained},
    execution::Execution,
    future::IdempotencyFuture,
    layer::IdempotencyLayer,
    outcome::{HandlerOutcome, ServerErrors},
    service::Idempotency,
    unknown::UnknownOutcomes,
};
#[cfg(feature = "delivery")]
pub(crate) use self::{
    future::{AnswerFuture, ReplyResult},
    layer::Abandon,
};
