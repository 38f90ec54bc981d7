use std::time::Duration;

use http::{Request, Response};
use tower::{
    ServiceBuilder,
    retry::{
        Policy, RetryLayer,
        backoff::{Backoff, ExponentialBackoff, ExponentialBackoffMaker, MakeBackoff},
    },
    util::rng::HasherRng,
};

#[derive(Clone)]
struct Retries {
    left: usize,
    backoff: ExponentialBackoff,
}

impl<E> Policy<Request<String>, Response<String>, E> for Retries {
    type Future = tokio::time::Sleep;

    fn retry(
        &mut self,
        request: &mut Request<String>,
        result: &mut Result<Response<String>, E>,
    ) -> Option<Self::Future> {
        let failed = !matches!(result, Ok(response) if !response.status().is_server_error());
        let again = failed && self.left > 0 && request.method().is_idempotent();
        again.then(|| {
            self.left -= 1;
            self.backoff.next_backoff()
        })
    }

    fn clone_request(&mut self, request: &Request<String>) -> Option<Request<String>> {
        Some(request.clone())
    }
}

fn client<S>(http: S) -> tower::retry::Retry<Retries, S> {
    let (base, cap) = (Duration::from_secs(1), Duration::from_secs(30));
    let backoff = ExponentialBackoffMaker::new(base, cap, 0.99, HasherRng::default())
        .expect("in range")
        .make_backoff();
    ServiceBuilder::new()
        .layer(RetryLayer::new(Retries { left: 3, backoff }))
        .service(http)
}
