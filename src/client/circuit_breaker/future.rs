use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

use crate::{
    classify::Classify,
    dependency::Permit,
    error::{BoxError, Refused},
};

pin_project! {
    /// The future of a [`CircuitBreaker`](super::CircuitBreaker) service.
    #[must_use = "futures do nothing unless polled"]
    pub struct CircuitBreakerFuture<F, C, Req> {
        #[pin]
        state: State<F, C>,
        request: PhantomData<fn(Req)>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, C> {
        // The call is out.
        Called { #[pin] future: F, permit: Permit, classifier: C },
        // The breaker is open, or the throttle kept the call back.
        Refused { refused: Refused },
    }
}

impl<F, C, Req> CircuitBreakerFuture<F, C, Req> {
    #[inline(always)]
    pub(super) fn called(future: F, permit: Permit, classifier: C) -> Self {
        Self {
            state: State::Called {
                future,
                permit,
                classifier,
            },
            request: PhantomData,
        }
    }

    #[inline(always)]
    pub(super) fn refused(refused: Refused) -> Self {
        Self {
            state: State::Refused { refused },
            request: PhantomData,
        }
    }
}

impl<F, C, Req, T, E> Future for CircuitBreakerFuture<F, C, Req>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
    C: Classify<Req, T>,
{
    type Output = Result<T, BoxError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Called {
                future,
                permit,
                classifier,
            } => {
                // Classified in place: moving a response costs more.
                let mut polled = future.poll(cx).map_err(Into::into);
                match &mut polled {
                    Poll::Pending => permit.pending(),
                    Poll::Ready(result) => {
                        let dependency = permit.dependency();
                        let verdict = dependency.classify_for_all(classifier, result.as_mut());
                        permit.report(&verdict);
                    }
                }
                polled
            }
            StateProj::Refused { refused } => Poll::Ready(Err(refused.clone().into())),
        }
    }
}

opaque_debug! { CircuitBreakerFuture<F, C, Req> }
