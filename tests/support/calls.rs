//! Calls, and what their results tell.

use std::error::Error;

use http::{Request, Response};
use tower::{Service, ServiceExt};
use tower_reprise::{
    RetryOutcome,
    call::{StopReason, Verdict},
    classify::{Classify, Rules, Standard},
    error::{BoxError, Refusal, Refused},
};

/// Makes a client ready and calls it.
pub(crate) async fn call<S, Req>(client: &mut S, request: Req) -> Result<S::Response, S::Error>
where
    S: Service<Req>,
{
    client.ready().await?.call(request).await
}

/// The attempts made and why there were no more, from the response or the error. `None` for a call
/// that succeeded at once.
pub(crate) fn outcome<B>(
    result: &Result<Response<B>, BoxError>,
) -> Option<(u32, Option<StopReason>)> {
    let outcome = match result {
        Ok(response) => RetryOutcome::of(response),
        Err(error) => RetryOutcome::of_error(&**error),
    };
    outcome.map(|outcome| (outcome.attempts(), outcome.stop_reason()))
}

/// The outcome of a call that failed.
pub(crate) fn outcome_of(error: &BoxError) -> (u32, Option<StopReason>) {
    let outcome = RetryOutcome::of_error(&**error).expect("an outcome in the chain");
    (outcome.attempts(), outcome.stop_reason())
}

pub(crate) fn stop_reason<B>(result: &Result<Response<B>, BoxError>) -> Option<StopReason> {
    outcome(result)?.1
}

/// The status of a call that got a response.
pub(crate) fn code<B>(result: &Result<Response<B>, BoxError>) -> u16 {
    result.as_ref().unwrap().status().as_u16()
}

/// The layer that refused a call, if one did.
pub(crate) fn refusal<B>(result: &Result<Response<B>, BoxError>) -> Option<Refusal> {
    let error = result.as_ref().err()?;
    Refused::find(&**error).map(Refused::kind)
}

/// The first error of that type in a chain of sources.
pub(crate) fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut chain = std::iter::successors(Some(error), |error| (*error).source());
    chain.find_map(|error| error.downcast_ref())
}

/// The standard rules' verdict on an error.
pub(crate) fn verdict(error: &BoxError) -> Verdict {
    let rules = Rules::standard();
    Classify::<Request<()>, Response<()>>::classify(&Standard, &rules, Err(&**error))
}
