use super::{ClientBuilder, ClientLayers};
use crate::{
    client::{
        GuardLayer,
        attempt_span::AttemptSpanLayer,
        hedge::HedgeLayer,
        idempotency_key::PolicyKeyLayer,
        peek::PeekLayer,
        retry::{HttpRequests, RetryLayer},
    },
    dependency::Dependencies,
};

/// Returns the layers of [`client`](super::client()), and a client span for each attempt right below
/// those that may refuse a call. `propagator` writes the span's context into the attempt's headers, a
/// fresh `traceparent`; `()` writes nothing. See [`attempt_span`](crate::client::attempt_span).
///
/// Around a tonic `Channel`, put `stacks::tonic::StatusLayer` above them.
pub fn traced<C: Clone, L: Clone, T>(
    deps: Dependencies<C, L>,
    propagator: T,
) -> TracedLayers<C, L, T> {
    ClientBuilder::new(deps).build_traced(propagator)
}

impl<C: Clone, L: Clone, P, H> ClientBuilder<C, L, P, H> {
    /// Returns all client layers, with a client span for each attempt: see [`traced`].
    pub fn build_traced<T>(self, propagator: T) -> TracedLayers<C, L, T, P, H> {
        let spans = AttemptSpanLayer::new(self.deps.clone()).with_propagator(propagator);
        let layers: ClientLayers<C, L, P, H> = self.build();
        let (key, retry, guard, hedge, peek) = layers;
        // Below the hedge, since each of its attempts is one.
        (key, retry, guard, hedge, spans, peek)
    }
}

/// The layers of [`traced`] and [`ClientBuilder::build_traced`], outermost first.
pub type TracedLayers<C, L, T, P = (), H = ()> = (
    PolicyKeyLayer<C, L, P>,
    RetryLayer<C, L, HttpRequests, H>,
    GuardLayer<C, L>,
    HedgeLayer<C, L>,
    AttemptSpanLayer<C, L, T>,
    PeekLayer<C, L>,
);
