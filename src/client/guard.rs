use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::Request;
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use super::{
    circuit_breaker::{CircuitBreaker, CircuitBreakerFuture, CircuitBreakerLayer},
    retry_after::{RetryAfter, RetryAfterFuture, RetryAfterLayer},
};
use crate::{
    classify::{Classify, Standard},
    dependency::{ByAuthority, Dependencies, Locate},
    error::BoxError,
};

/// A [`RetryAfterLayer`] around a [`CircuitBreakerLayer`], as one layer: a call that is not held back
/// looks up its dependency once and is classified once. [`stacks::client`](crate::stacks::client) has it
/// rather than the two, whose calls take XX instructions more of XX (`peers client`).
#[derive(Debug, Clone)]
#[must_use]
pub struct GuardLayer<C = Standard, L = ByAuthority> {
    gate: RetryAfterLayer<C, L>,
    breaker: CircuitBreakerLayer<C, L>,
}

impl<C: Clone, L: Clone> GuardLayer<C, L> {
    /// Guards calls by the gates and breakers of this registry.
    pub fn new(deps: Dependencies<C, L>) -> Self {
        Self {
            gate: RetryAfterLayer::new(deps.clone()),
            breaker: CircuitBreakerLayer::new(deps),
        }
    }
}

impl<S, C: Clone, L: Clone> Layer<S> for GuardLayer<C, L> {
    type Service = Guard<S, C, L>;

    fn layer(&self, inner: S) -> Self::Service {
        Guard {
            layered: self.gate.layer(self.breaker.layer(inner)),
        }
    }
}

/// The service of a [`GuardLayer`].
///
/// # Clone
///
/// All state is in the registry, which clones share.
#[derive(Debug, Clone)]
pub struct Guard<S, C = Standard, L = ByAuthority> {
    layered: RetryAfter<CircuitBreaker<S, C, L>, C, L>,
}

impl<S, C, L, B> Service<Request<B>> for Guard<S, C, L>
where
    S: Service<Request<B>> + Clone,
    S::Error: Into<BoxError>,
    C: Classify<Request<B>, S::Response> + Clone,
    L: Locate<Request<B>> + Clone,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = GuardFuture<S, C, L, Request<B>>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.layered.poll_ready(cx)
    }

    #[inline(always)]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        let state = match self.layered.inner.find_open(&request) {
            true => State::Passed {
                future: self.layered.inner.call_found(request),
            },
            false => State::Held {
                future: Box::pin(self.layered.call(request)),
            },
        };
        GuardFuture { state }
    }
}
