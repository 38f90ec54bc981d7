//! Read the start of a reply's body for the error code or status that its head does not have.
//!
//! The head of a response is not the whole story. A gRPC status may come in trailers after an
//! empty body. An API's own error code is in the body, and says better than a 500 whether another
//! call is worth it. And a reply that a retry throws away leaves its connection unusable if its
//! body was never read.
//!
//! [`PeekLayer`] is the innermost layer of a client's stack. It reads the start of such a body,
//! leaves a note for the layers above, which all judge by it, and hands on a response that is still
//! whole: every frame, the trailers, the size. Other bodies stay untouched.
//!
//! # When to use it
//!
//! As the innermost layer, in clients of gRPC services and of APIs whose bodies say more than their
//! status; it is part of [`stacks::client`](crate::stacks::client).
//!
//! Not where nothing above it classifies: no one would read its note.
//!
//! # Defaults
//!
//! There are no settings of its own. What is read depends on the reply and on the policy's
//! [`codes`](crate::policy::PolicyBuilder::codes), 64 KiB and 250 ms unless these say otherwise:
//!
//! | reply | what is read |
//! | --- | --- |
//! | gRPC, no status in its head | the first frame, if it is there already; of a unary method it is waited for |
//! | a failure that may be retried | up to 64 KiB within 250 ms, so that the connection is free for the retry |
//! | the same with a JSON body | the same, for members such as `retry_after` ([`GuidanceTable`]) |
//! | a failure with a JSON body, where [`Codes`] say more than the status | the same, for its code |
//! | a success of a content type that [`Codes::content_type`] names | the same |
//! | anything else | nothing |
//!
//! ```
//! use std::convert::Infallible;
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::{BodyExt, Full};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{Dependencies, PeekLayer, Policy, RetryLayer, RetryOutcome};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), tower_reprise::error::BoxError> {
//! // The bank's table does not retry on INTERNAL, whatever the status is.
//! let deps = Dependencies::new(Policy::bank().build()?);
//! let bank = service_fn(|_: Request<Full<Bytes>>| async {
//!     let body = Full::new(Bytes::from_static(br#"{"code":"INTERNAL","record":"er_17"}"#));
//!     let response = Response::builder().status(503).header("content-type", "application/json");
//!     Ok::<_, Infallible>(response.body(body).unwrap())
//! });
//! let mut client = ServiceBuilder::new()
//!     .layer(RetryLayer::new(deps.clone()))
//!     .layer(PeekLayer::new(deps))
//!     .service(bank);
//!
//! let request = Request::get("http://bank.example/wallets").body(Full::default())?;
//! let response = client.ready().await?.call(request).await?;
//! # #[cfg(feature = "codes")]
//! assert_eq!(RetryOutcome::of(&response).map(|o| o.attempts()), Some(1));
//! let body = response.into_body().collect().await?.to_bytes();
//! assert_eq!(&body[..], br#"{"code":"INTERNAL","record":"er_17"}"#);
//! # Ok(())
//! # }
//! ```
//!
//! Codes are read with the `codes` feature.
//!
//! # Unary methods
//!
//! Waiting for the first frame delays a stream, and holds up a call in which both sides wait for each
//! other. So it is waited for only where replies are single messages: in every method under
//! [`Policy::grpc_unary`], or in those that [`unary_methods`] name if there are any. A stream under a
//! policy for unary calls is a call with [`RetryOverride::off`].
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | the response is passed on whole: every frame, trailers, size hints | that a code beyond the limit, past the time or in a compressed body is found |
//! | at most the limit is read, and waited for no longer than the time | anything about the bodies of other successes: they stay untouched |
//!
//! # What goes wrong
//!
//! | mistake | what happens | instead |
//! | --- | --- | --- |
//! | the layer above the retry loop | the loop has decided before anything was read | innermost |
//! | a compressing client below it, whose replies are not decompressed | the code is not found, and the status decides | tower-http's `DecompressionLayer` below it |
//! | server-streaming methods under [`Policy::grpc_unary`] | the head waits for the first message | [`unary_methods`], or [`RetryOverride::off`] for the call |
//!
//! [`Policy::grpc_unary`]: crate::Policy::grpc_unary
//! [`RetryOverride::off`]: crate::RetryOverride::off
//! [`unary_methods`]: crate::policy::PolicyBuilder::unary_methods
//! [`Codes`]: crate::classify::Codes
//! [`GuidanceTable`]: crate::classify::retry_after::GuidanceTable
//! [`Codes::content_type`]: crate::classify::Codes::content_type

#[cfg(feature = "codes")]
mod codes;
mod future;
mod layer;
mod reading;
mod response;
mod service;

/// Without the feature no document can be read.
#[cfg(not(feature = "codes"))]
mod codes {
    use std::borrow::Cow;

    use http::HeaderMap;

    use crate::{
        call::ErrorRecord,
        classify::{Advice, Codes, Rules},
    };

    pub(super) enum Document {}

    impl Document {
        pub(super) fn read<T>(_frames: &T, _limit: usize) -> Option<Self> {
            None
        }

        pub(super) fn text_at(&self, _pointer: &str) -> Option<Cow<'_, str>> {
            match *self {}
        }

        pub(super) fn may_guide(_rules: &Rules, _headers: &HeaderMap) -> bool {
            false
        }

        pub(super) fn guided(&self, _advice: Advice, _rules: &Rules) -> Advice {
            match *self {}
        }

        pub(super) fn advice(&self, _codes: &Codes) -> Advice {
            match *self {}
        }

        pub(super) fn is_replayed_failure(&self, _codes: &Codes) -> bool {
            match *self {}
        }

        pub(super) fn error_record(&self) -> Option<ErrorRecord> {
            match *self {}
        }
    }
}

pub use self::{future::PeekFuture, layer::PeekLayer, response::PeekResponse, service::Peek};
