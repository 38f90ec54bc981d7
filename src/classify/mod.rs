//! Classification of outcomes, shared by every layer.
//!
//! A [`Verdict`] has several independent parts: the cause, whether and how often to retry, what the
//! outcome says about the dependency's health, when it wants to be called again, and whether the
//! request may have had an effect. The retry loop, the breaker and the Retry-After gate each read
//! their part.
//!
//! [`Standard`] reads HTTP and gRPC statuses by the tables in a policy's [`Rules`], and finds the
//! cause of an error by the types in its chain (io, hyper, h2, rustls, timeouts). A classifier of
//! your own is a closure or an implementation of [`Classify`]:
//!
//! ```
//! use std::error::Error;
//! use http::{Request, Response, StatusCode};
//! use tower_reprise::{call::{Cause, Health, Retryable, Verdict}, classify::{Classify, Rules, Standard}};
//!
//! let rules = Rules::standard();
//! let busy = Response::builder().status(429).header("retry-after", "7").body(()).unwrap();
//! let verdict = Classify::<Request<()>, _>::classify(&Standard, &rules, Ok(&busy));
//! assert_eq!(verdict.cause, Cause::Status(StatusCode::TOO_MANY_REQUESTS));
//! assert_eq!(verdict.retry, Retryable::Yes);
//! assert_eq!(verdict.health, Health::Neutral); // busy, not ill
//!
//! // An event consumer: every failure is transient, except poison.
//! let events = |outcome: Result<&(), &(dyn Error + 'static)>| match outcome {
//!     Ok(()) => Verdict::SUCCESS,
//!     Err(e) if e.is::<std::fmt::Error>() => Verdict::terminal(Cause::Other("poison")),
//!     Err(_) => Verdict::transient(Cause::Unknown),
//! };
//! let verdict = Classify::<String, ()>::classify(&events, &rules, Err(&std::fmt::Error));
//! assert_eq!(verdict.retry, Retryable::Never);
//! ```

mod body_signal;
mod boxed;
pub(crate) mod codes;
pub(crate) mod http;
pub(crate) mod network;
pub mod retry_after;
mod rules;
mod trace;

use std::error::Error;

use ::http::Extensions;

#[cfg(feature = "forrst")]
pub(crate) use self::codes::EnvelopeReader;
#[cfg(feature = "codes")]
pub(crate) use self::codes::is_plain_json;
pub(crate) use self::{
    body_signal::BodySignal,
    codes::{Advice, CodeRule},
    http::worth_keeping,
    rules::KeysHonoured,
};
pub use self::{
    boxed::BoxClassify,
    codes::Codes,
    http::Standard,
    rules::Rules,
    trace::{TraceClassifier, TraceEos},
};
use crate::{call::Verdict, http::ResponseHead};

/// A classifier of outcomes, for every layer that shares a registry.
///
/// Closures and functions `Fn(Result<&Response, &(dyn Error + 'static)>) -> Verdict` implement it. A
/// classifier
/// changes verdicts, never whether a POST or a PATCH may be repeated: that takes a key, a
/// declaration, or [`PolicyBuilder::retry_without_key`], which the audit reports.
///
/// [`PolicyBuilder::retry_without_key`]: crate::policy::PolicyBuilder::retry_without_key
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot classify calls of `{Request}` that return `{Response}`",
    note = "`Standard` classifies `http::Request<_>` and `http::Response<_>`; for other services \
            give the registry a classifier: `Dependencies::builder(policy).with_classifier(|outcome| …)`"
)]
pub trait Classify<Request, Response> {
    /// Returns whether this classifier lets a request be repeated that is safe to repeat by its
    /// method, its key or a declaration. It can only forbid.
    ///
    /// Requests of [`ClonedRequests`](crate::client::retry::ClonedRequests) that are not HTTP's have
    /// no such rules, and this decides alone.
    fn repeatable(&self, _rules: &Rules, _request: &Request) -> bool {
        true
    }

    /// Classifies the outcome of an attempt.
    fn classify(
        &self,
        rules: &Rules,
        outcome: Result<&Response, &(dyn Error + 'static)>,
    ) -> Verdict;

    /// Returns the extensions of a request, if requests have any. A breaker finds the deadline of
    /// a call there; without them it goes by the limits of the policy.
    fn request_extensions<'a>(&self, _request: &'a Request) -> Option<&'a Extensions> {
        None
    }

    /// Returns the head of a response, if responses have one. The innermost layer leaves its
    /// verdict on a failure there for the others; without it each layer classifies the response.
    fn response_head<'a>(&self, _response: &'a mut Response) -> Option<&'a mut dyn ResponseHead> {
        None
    }
}

// One lifetime for both: a function with a lifetime for each has one for both, too.
impl<F, Request, Response> Classify<Request, Response> for F
where
    F: for<'a> Fn(Result<&'a Response, &'a (dyn Error + 'static)>) -> Verdict,
{
    fn classify(
        &self,
        _rules: &Rules,
        outcome: Result<&Response, &(dyn Error + 'static)>,
    ) -> Verdict {
        self(outcome)
    }
}
