//! Answer with a problem document where a layer would fail.
//!
//! Client layers return errors; a server must return responses. [`ProblemLayer`] turns each error into
//! a response, so that the error type is `Infallible` and an axum router takes the stack as it is.
//!
//! # When to use it
//!
//! On top of a client stack that serves requests, as in a proxy or gateway.
//!
//! Not where a caller handles the errors: the response tells less than they do.
//!
//! # Defaults
//!
//! There are no settings.
//!
//! | error | response |
//! | --- | --- |
//! | a refusal by a breaker, a budget, or a dependency that asked for patience | 503, with `Retry-After` where it is known |
//! | a call or an attempt that ran out of time | 504 |
//! | any other | 502 |
//!
//! The document is RFC 9457's and names the dependency of a refusal, nothing more: details of errors
//! are for the log of the layers below.
//!
//! ```
//! use std::convert::Infallible;
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{ProblemLayer, error::{BoxError, Refusal, Refused}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let refusing = service_fn(|_: Request<()>| async {
//!     Err::<Response<Full<Bytes>>, BoxError>(Refused::new(Refusal::Breaker, "stock", None).into())
//! });
//! let mut service = ServiceBuilder::new().layer(ProblemLayer::new()).service(refusing);
//!
//! let response: Result<_, Infallible> = service.ready().await.unwrap().call(Request::new(())).await;
//! assert_eq!(response.unwrap().status(), 503);
//! # }
//! ```
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | every error of the service becomes a response, and the error type is `Infallible` | the cause in the response: that is for logs |
//! | a refusal keeps its `Retry-After`, and says whether anything was executed to layers above | that an error after the head was sent is seen |
//!
//! # What goes wrong
//!
//! | mistake | what happens | instead |
//! | --- | --- | --- |
//! | the layer below a `RetryLayer` | refusals become responses, and are retried as 503s | on top of the stack |
//! | an error that nothing logs | the response hides its cause, and so nobody knows it | features `tracing` or `metrics`, or a `map_err` that logs below it |

mod body;
mod layer;

pub use self::{
    body::ProblemBody,
    layer::{Problem, ProblemFuture, ProblemLayer},
};
