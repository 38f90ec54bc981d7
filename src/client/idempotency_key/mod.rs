//! One key per operation, the same on every attempt.
//!
//! A POST whose reply was lost may or may not have been done. With an `Idempotency-Key` the
//! server can tell the second attempt from a second order, so that it is safe to send again, and
//! [`RetryLayer`](crate::client::retry::RetryLayer) repeats a POST or PATCH only with one. [`IdempotencyKeyLayer`]
//! stamps a random UUID on each POST and PATCH that has none. It belongs above the retry loop:
//! stamped once, every attempt shares the key.
//!
//! A key makes a request safe to repeat only if the server honours it. Leave this layer out for
//! servers that do not: then a POST is repeated only if it surely was never processed.
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
//! With [`IdempotencyKeyLayer::with_persist`] the key is stored before the first attempt goes
//! out, so that even a process that dies in between can finish the same operation later.

mod future;
mod layer;
mod make;
mod persist;
mod service;

pub use self::{
    future::IdempotencyKeyFuture,
    layer::IdempotencyKeyLayer,
    make::{MakeKey, UuidV4},
    persist::PersistKey,
    service::IdempotencyKeyService,
};
