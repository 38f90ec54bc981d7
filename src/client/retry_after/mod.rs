//! Do not call before you are asked to, and do not all come back together.
//!
//! `Retry-After: 30` is meant for all calls to that server, but usually only the call that received
//! it obeys. [`RetryAfterLayer`] remembers it for the whole
//! dependency: later calls wait, if the wait fits in their deadline, or are refused at once, and
//! those that waited wake spread out. It understands `Retry-After` in seconds and in all three
//! date forms, exhausted `RateLimit` and `X-RateLimit-*` fields, and gRPC's pushback; see
//! [`classify::retry_after`](crate::classify::retry_after).
//!
//! ```
//! use std::time::Duration;
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{Dependencies, Policy, RetryAfterLayer, error::{BoxError, Refused}};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! let deps = Dependencies::new(Policy::synchronous().build()?);
//! let mut client = ServiceBuilder::new()
//!     .layer(RetryAfterLayer::new(deps))
//!     .service(service_fn(|_: Request<()>| async {
//!         let busy = Response::builder().status(503).header("retry-after", "3600");
//!         Ok::<_, BoxError>(busy.body(()).unwrap())
//!     }));
//! let request = || Request::get("http://stock.example/").body(()).unwrap();
//! assert_eq!(client.ready().await?.call(request()).await?.status(), 503);
//!
//! // An hour does not fit in a call's 30 s: the next call is refused without being sent.
//! let error = client.ready().await?.call(request()).await.unwrap_err();
//! let refused = Refused::find(&*error).expect("refused");
//! assert!(refused.retry_after() > Some(Duration::from_secs(3500)));
//! # Ok(())
//! # }
//! ```

mod future;
mod layer;
mod service;

pub use self::{future::RetryAfterFuture, layer::RetryAfterLayer, service::RetryAfter};
