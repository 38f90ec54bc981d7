use std::error::Error;

use tower::{Layer, Service, service_fn};
use tower_reprise::{
    Dependencies, Policy, RetryLayer,
    call::{Cause, Verdict},
    error::BoxError,
};

#[derive(Clone)]
struct OrderPlaced;

fn consume(_: impl Service<OrderPlaced>) {}

fn judge(outcome: Result<&(), &(dyn Error + 'static)>) -> Verdict {
    match outcome {
        Ok(()) => Verdict::SUCCESS,
        Err(_) => Verdict::transient(Cause::Unknown),
    }
}

fn main() {
    let orders = service_fn(|_: OrderPlaced| async { Ok::<_, BoxError>(()) });
    let deps = Dependencies::builder(Policy::events().build().unwrap())
        .with_classifier(judge)
        .build();
    consume(RetryLayer::new(deps).cloning().layer(orders));
}
