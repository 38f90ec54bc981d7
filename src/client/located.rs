use std::sync::Arc;

use tower::Service;

use crate::dependency::Dependency;

/// A service below a [`GuardLayer`](super::GuardLayer), which tells it the dependency of each request,
/// so that one look-up does for all layers of an attempt. With a look-up by each layer a call through
/// [`stacks::client`](crate::stacks::client) takes 130 instructions more than 2,200 (callgrind), and
/// moves its request two times more.
///
/// The services of [`HedgeLayer`](crate::HedgeLayer), `AttemptSpanLayer` and
/// [`PeekLayer`](crate::PeekLayer) are such services.
#[diagnostic::on_unimplemented(
    message = "a `GuardLayer` can't be around `{Self}`",
    note = "it goes around a `HedgeLayer` or a `PeekLayer`; around any other service put a \
            `RetryAfterLayer` and a `CircuitBreakerLayer`"
)]
pub trait CallLocated<Request>: Service<Request> {
    /// Makes a call to a dependency that a layer above has found.
    fn call_located(&mut self, request: Request, dependency: &Arc<Dependency>) -> Self::Future;
}
