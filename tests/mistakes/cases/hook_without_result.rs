use http::{Request, Response};
use tower::{Layer, Service, service_fn};
use tower_reprise::{Dependencies, Policy, RetryLayer, call::Attempt, error::BoxError};

fn calls(_: impl Service<Request<String>>) {}

async fn renew(request: Request<String>, _: Attempt) -> Request<String> {
    request
}

fn main() {
    let http = service_fn(|_: Request<String>| async { Ok::<_, BoxError>(Response::new(())) });
    let deps = Dependencies::new(Policy::http().build().unwrap());
    calls(RetryLayer::new(deps).with_refresh(renew).layer(http));
}
