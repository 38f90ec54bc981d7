//! One key per operation, the same on every attempt.
//!
//! A POST whose reply was lost may or may not have been processed. With an `Idempotency-Key` the
//! server can tell the second attempt from a second order, so that it is safe to send again, and
//! [`RetryLayer`](crate::client::retry::RetryLayer) repeats a POST or PATCH only with one.
//! [`IdempotencyKeyLayer`] stamps a key on each POST and PATCH that has none.
//!
//! # When to use it
//!
//! Above the retry loop, so that all attempts share the key, for servers that honour keys.
//!
//! Not for others: without it a POST is repeated only if it surely was never processed.
//!
//! # Defaults
//!
//! | setting | default |
//! | --- | --- |
//! | key | a random UUID (version 4); a key in the request's header or extensions is kept |
//! | [`header`](IdempotencyKeyLayer::header) | `Idempotency-Key` |
//! | [`quoted`](IdempotencyKeyLayer::quoted) | bare |
//! | [`max_key_len`](IdempotencyKeyLayer::max_key_len) | 64 characters |
//!
//! ```
//! use http::{Method, Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{IdempotencyKey, IdempotencyKeyLayer, error::BoxError};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let echo = service_fn(|request: Request<()>| async move {
//!     let key = request.headers().get("idempotency-key").cloned();
//!     Ok::<_, BoxError>(Response::new(key))
//! });
//! let mut client = ServiceBuilder::new().layer(IdempotencyKeyLayer::new()).service(echo);
//!
//! let stamped = client.ready().await?.call(Request::post("/pay").body(())?).await?;
//! assert_eq!(stamped.into_body().map(|key| key.len()), Some(36));
//!
//! // A key that you choose, and keep with the order it is for:
//! let mut request = Request::post("/pay").body(())?;
//! request.extensions_mut().insert(IdempotencyKey::new("order-42")?);
//! let chosen = client.ready().await?.call(request).await?;
//! assert_eq!(chosen.into_body().unwrap(), "order-42");
//! # Ok(())
//! # }
//! ```
//!
//! With [`IdempotencyKeyLayer::with_persist`] the key is stored before the first attempt is sent,
//! next to the order that the request is for, so that even after a crash the same operation can be
//! finished later.
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | all attempts of a call carry one key, from a CSPRNG or the caller's own | that the server honours it |
//! | with [`with_persist`](IdempotencyKeyLayer::with_persist) nothing is sent before the key is stored | that two calls for one order share a key: set it yourself |
//!
//! # What goes wrong
//!
//! | mistake | what happens | instead |
//! | --- | --- | --- |
//! | the layer below the retry loop | each attempt gets a key of its own, and the server executes each | above it, as in [`stacks::client`](crate::stacks::client) |
//! | a server that ignores keys | it executes each attempt: the layer is your word that keys are honoured | ask first; [`stacks::client`](crate::stacks::client) takes the word from the policy ([`honours_keys`](crate::policy::PolicyBuilder::honours_keys)) |
//! | streaming gRPC methods | a server that honours keys reads the whole request first, which never ends | name them in [`idempotent_methods`](IdempotencyKeyLayer::idempotent_methods), or leave the layer out |
//! | a new call for the same order, after a crash | it gets a new key, and the order is placed twice | keep the key with the order ([`with_persist`](IdempotencyKeyLayer::with_persist)), and set it |

mod by_policy;
mod future;
mod layer;
mod persist;
mod service;

pub use self::{
    by_policy::{PolicyKeyLayer, PolicyKeyService},
    future::IdempotencyKeyFuture,
    layer::IdempotencyKeyLayer,
    persist::PersistKey,
    service::IdempotencyKeyService,
};
