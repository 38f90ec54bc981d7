//! What an outcome means: one policy that every layer shares.
//!
//! Whether a call failed is not one question. May it be repeated, and how often? Does it say that
//! the dependency is ill, or only busy? When does the dependency want to be called again? Was the
//! request processed at all? A [`Verdict`] answers each on its own, and the retry loop, the
//! breaker and the Retry-After gate read the part that is theirs.
//!
//! [`Standard`] reads HTTP and gRPC statuses by the tables in a policy's [`Rules`], and finds the
//! cause of an error by the real types in its chain (io, hyper, h2, rustls, timeouts). A
//! classifier of your own is a closure or an implementation of [`Classify`]:
//!
//! ```
//! use std::error::Error;
//! use http::{Request, Response, StatusCode};
//! use tower_reprise::classify::{Cause, Classify, Health, Retryable, Rules, Standard, Verdict};
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

pub(crate) mod codes;
mod effect;
mod grpc;
pub(crate) mod http;
pub(crate) mod network;
mod rules;
mod trace;
mod verdict;

use std::error::Error;

pub use self::{
    codes::Codes,
    grpc::GrpcCode,
    http::Standard,
    rules::Rules,
    trace::{TraceClassifier, TraceEos},
    verdict::{Cause, Health, Retryable, Verdict},
};
pub(crate) use self::{
    codes::{Advice, CodeRule},
    effect::Effect,
    grpc::{grpc_timeout, is_grpc},
    http::worth_keeping,
    rules::{IDEMPOTENCY_KEY, is_one_of},
};
use crate::{
    dependency::Dependency,
    error::{BoxError, Refused},
};

/// Judges outcomes for every layer that shares a registry.
///
/// Closures `Fn(Result<&Response, &(dyn Error + 'static)>) -> Verdict` implement it for requests
/// that are all safe to repeat.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot classify calls of `{Request}` that return `{Response}`",
    note = "`Standard` classifies `http::Request<_>` and `http::Response<_>`; for other services \
            give the registry a classifier: `Dependencies::builder(policy).with_classifier(|outcome| …)`"
)]
pub trait Classify<Request, Response> {
    /// Whether sending this request twice has the effect of sending it once.
    fn repeatable(&self, rules: &Rules, request: &Request) -> bool;

    /// What this outcome of an attempt means.
    fn classify(
        &self,
        rules: &Rules,
        outcome: Result<&Response, &(dyn Error + 'static)>,
    ) -> Verdict;
}

impl<F, Request, Response> Classify<Request, Response> for F
where
    F: Fn(Result<&Response, &(dyn Error + 'static)>) -> Verdict,
{
    fn repeatable(&self, _rules: &Rules, _request: &Request) -> bool {
        true
    }

    fn classify(
        &self,
        _rules: &Rules,
        outcome: Result<&Response, &(dyn Error + 'static)>,
    ) -> Verdict {
        self(outcome)
    }
}

/// The verdict on the result of a call to a dependency. A refusal by a layer of ours is known as
/// such, whoever classifies.
#[inline]
pub(crate) fn judge<C, Request, Response>(
    classifier: &C,
    dependency: &Dependency,
    result: &Result<Response, BoxError>,
) -> Verdict
where
    C: Classify<Request, Response>,
{
    match result {
        Ok(response) => classifier.classify(dependency.policy().rules(), Ok(response)),
        Err(error) => judge_error(classifier, dependency, &**error),
    }
}

#[cold]
fn judge_error<C, Request, Response>(
    classifier: &C,
    dependency: &Dependency,
    error: &(dyn Error + 'static),
) -> Verdict
where
    C: Classify<Request, Response>,
{
    match Refused::find(error) {
        // What calls others in turn may fail because they are not called: it was called.
        Some(refused) if refused.dependency() == dependency.name() => {
            Verdict::refused(refused.kind())
        }
        _ => classifier.classify(dependency.policy().rules(), Err(error)),
    }
}
