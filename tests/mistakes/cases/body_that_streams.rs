use bytes::Bytes;
use http::{Request, Response};
use http_body_util::channel::Channel;
use tower::{Layer, Service, service_fn};
use tower_reprise::{Dependencies, Policy, RetryLayer, error::BoxError};

fn uploads(_: impl Service<Request<Channel<Bytes>>>) {}

fn main() {
    let http = service_fn(|_: Request<Channel<Bytes>>| async {
        Ok::<_, BoxError>(Response::new(()))
    });
    let deps = Dependencies::new(Policy::http().build().unwrap());
    uploads(RetryLayer::new(deps).layer(http));
}
