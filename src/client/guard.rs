use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
};

use http::Request;
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use super::{
    circuit_breaker::{CircuitBreaker, CircuitBreakerLayer, admit},
    located::CallLocated,
    retry_after::{RetryAfter, RetryAfterFuture, RetryAfterLayer},
};
use crate::{
    call::release,
    classify::{Classify, Standard},
    dependency::{ByAuthority, Dependencies, Locate, Permit},
    error::{BoxError, Refused},
};

/// A [`RetryAfterLayer`] around a [`CircuitBreakerLayer`], as one layer: a call that is not held back
/// looks up its dependency once and is classified once. [`stacks::client`](crate::stacks::client) has it
/// rather than the two, with which its calls take 190 instructions more than 2,400 (callgrind).
///
/// It tells the layers below which dependency it found, so those have to be [`CallLocated`]: it goes
/// around a [`HedgeLayer`](crate::HedgeLayer) or a [`PeekLayer`](crate::PeekLayer).
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
    S: CallLocated<Request<B>> + Clone,
    S::Error: Into<BoxError>,
    C: Classify<Request<B>, S::Response> + Clone,
    L: Locate<Request<B>> + Clone,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = GuardFuture<
        S::Future,
        RetryAfterFuture<CircuitBreaker<S, C, L>, C, Request<B>>,
        C,
        Request<B>,
    >;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.layered.poll_ready(cx)
    }

    #[inline(always)]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        let CircuitBreaker { inner, cache, .. } = &mut self.layered.inner;
        let (deps, dependency) = cache.find(&request);
        if dependency.hold().is_some() {
            let future = Box::pin(self.layered.call(request));
            return GuardFuture {
                state: State::Held { future },
                request: PhantomData,
            };
        }
        let permit = match admit::<_, _, _, S::Response>(deps, dependency, &request) {
            Ok(permit) => permit,
            Err(refused) => {
                release(inner);
                return GuardFuture {
                    state: State::Refused { refused },
                    request: PhantomData,
                };
            }
        };
        let classifier = deps.classifier.clone();
        let future = inner.call_located(request, dependency);
        GuardFuture {
            state: State::Passed {
                future,
                permit,
                classifier,
            },
            request: PhantomData,
        }
    }
}

pin_project! {
    /// The future of a [`Guard`] service: `F` of a call that passes, `G` of one that is held back.
    #[must_use = "futures do nothing unless polled"]
    pub struct GuardFuture<F, G, C, Req> {
        #[pin]
        state: State<F, G, C>,
        request: PhantomData<fn(Req)>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, G, C> {
        Passed { #[pin] future: F, permit: Permit, classifier: C },
        // Boxed, so that other calls are small.
        Held { future: Pin<Box<G>> },
        // The breaker is open, or the throttle kept the call back.
        Refused { refused: Refused },
    }
}

impl<F, G, C, Req, T, E> Future for GuardFuture<F, G, C, Req>
where
    F: Future<Output = Result<T, E>>,
    G: Future<Output = Result<T, BoxError>>,
    C: Classify<Req, T>,
    E: Into<BoxError>,
{
    type Output = Result<T, BoxError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Passed {
                future,
                permit,
                classifier,
            } => {
                let mut polled = future.poll(cx);
                let mut end = |result: Result<&mut T, &mut BoxError>| {
                    let verdict = permit.dependency().classify_for_all(classifier, result);
                    permit.report(&verdict);
                    if let Some(asked) = verdict.not_before() {
                        permit.dependency().stay_away(asked);
                    }
                };
                // Classified in place: moving a response costs more.
                if let Poll::Ready(Ok(response)) = &mut polled {
                    end(Ok(response));
                    return polled.map_err(Into::into);
                }
                match polled {
                    Poll::Ready(Err(error)) => {
                        let mut error = error.into();
                        end(Err(&mut error));
                        Poll::Ready(Err(error))
                    }
                    _ => {
                        permit.pending();
                        Poll::Pending
                    }
                }
            }
            StateProj::Held { future } => future.as_mut().poll(cx),
            StateProj::Refused { refused } => Poll::Ready(Err(refused.clone().into())),
        }
    }
}

opaque_debug! { GuardFuture<F, G, C, Req> }
