use std::time::Duration;

use http::{Request, Response};
use tower::{Layer, Service};
use tower_reprise::error::BoxError;
use tower_resilience_retry::{ExponentialRandomBackoff, Retry, RetryBudgetBuilder, RetryLayer};

fn client<S>(http: S) -> Retry<S, Request<String>, Response<String>, BoxError>
where
    S: Service<Request<String>, Response = Response<String>, Error = BoxError>,
{
    let budget = RetryBudgetBuilder::new().token_bucket().build();
    let backoff = ExponentialRandomBackoff::new(Duration::from_secs(1), 0.5);
    RetryLayer::builder()
        .max_attempts_fn(|request: &Request<String>| {
            if request.method().is_idempotent() {
                4
            } else {
                1
            }
        })
        .backoff(backoff.expect("in range"))
        .retry_on_response(|response: &Response<String>| response.status().is_server_error())
        .budget(budget.expect("in range"))
        .build()
        .layer(http)
}
