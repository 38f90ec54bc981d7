use tower::{Layer, Service, service_fn};
use tower_reprise::{Dependencies, Policy, RetryLayer, error::BoxError};

#[derive(Clone)]
struct OrderPlaced;

fn consume(_: impl Service<OrderPlaced>) {}

fn main() {
    let orders = service_fn(|_: OrderPlaced| async { Ok::<_, BoxError>(()) });
    let deps = Dependencies::new(Policy::events().build().unwrap());
    consume(RetryLayer::new(deps).layer(orders));
}
