//! What several test files need.

use http::Response;
use tower::{Service, ServiceExt};
use tower_reprise::{RetryOutcome, call::StopReason, error::BoxError};

/// Makes a client ready and calls it.
pub(crate) async fn call<S, Req>(client: &mut S, request: Req) -> Result<S::Response, S::Error>
where
    S: Service<Req>,
{
    client.ready().await?.call(request).await
}

/// Attempts made and why there were no more, wherever it is told.
pub(crate) fn outcome<B>(
    result: &Result<Response<B>, BoxError>,
) -> Option<(u32, Option<StopReason>)> {
    let outcome = match result {
        Ok(response) => RetryOutcome::of(response),
        Err(error) => RetryOutcome::of_error(&**error),
    };
    outcome.map(|outcome| (outcome.attempts(), outcome.stop_reason()))
}
