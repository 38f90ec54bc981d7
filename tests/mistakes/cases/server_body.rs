use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Full, channel::Channel};
use tower::{Layer, Service, service_fn};
use tower_reprise::{
    IdempotencyLayer,
    error::BoxError,
    server::dialect::Scope,
    store::{CrashPolicy, MemoryStore},
};

fn serves(_: impl Service<Request<Channel<Bytes>>>) {}

fn main() {
    let handler = service_fn(|_: Request<Channel<Bytes>>| async {
        Ok::<_, BoxError>(Response::new(Full::<Bytes>::default()))
    });
    let layer = IdempotencyLayer::builder(MemoryStore::new())
        .scope(Scope::anonymous("everybody"))
        .crash_policy(CrashPolicy::Reexecute)
        .build()
        .unwrap();
    serves(layer.layer(handler));
}
