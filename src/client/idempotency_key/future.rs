use std::{
    future::{Future, Ready},
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tower::Service;

use crate::{call::oneshot::Oneshot, error::BoxError};

pin_project! {
    /// The future of an [`IdempotencyKeyService`](super::IdempotencyKeyService).
    #[must_use = "futures do nothing unless polled"]
    pub struct IdempotencyKeyFuture<S, P, Req>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S, P, Req>,
    }
}

pin_project! {
    #[project = StateProj]
    pub(super) enum State<S, P, Req>
    where
        S: Service<Req>,
    {
        Called { #[pin] future: S::Future },
        // The key is stored before the request is sent.
        Persisting { #[pin] future: P, late: Option<Pin<Box<Oneshot<S, Req>>>> },
        // The service is made ready again, and called.
        Late { future: Pin<Box<Oneshot<S, Req>>> },
        // The caller's key can't be sent.
        Failed { error: Ready<BoxError> },
    }
}

impl<S: Service<Req>, P, Req> IdempotencyKeyFuture<S, P, Req> {
    #[inline(always)]
    pub(super) fn called(future: S::Future) -> Self {
        Self::new(State::Called { future })
    }

    #[inline(always)]
    pub(super) fn new(state: State<S, P, Req>) -> Self {
        Self { state }
    }
}

impl<S, P, Req> Future for IdempotencyKeyFuture<S, P, Req>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
    P: Future<Output = Result<(), BoxError>>,
{
    type Output = Result<S::Response, BoxError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        match state.as_mut().project() {
            StateProj::Called { future } => future.poll(cx).map_err(Into::into),
            _ => poll_late(state, cx),
        }
    }
}

/// Polls a call whose key is stored first, or can't be sent.
#[cold]
#[inline(never)]
fn poll_late<S, P, Req>(
    mut state: Pin<&mut State<S, P, Req>>,
    cx: &mut Context<'_>,
) -> Poll<Result<S::Response, BoxError>>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
    P: Future<Output = Result<(), BoxError>>,
{
    loop {
        match state.as_mut().project() {
            StateProj::Late { future } => return future.as_mut().poll(cx).map_err(Into::into),
            StateProj::Persisting { future, late } => {
                ready!(future.poll(cx))?;
                let Some(future) = late.take() else {
                    unreachable!("the state changes when this is taken");
                };
                state.set(State::Late { future });
            }
            StateProj::Failed { error } => return Pin::new(error).poll(cx).map(Err),
            StateProj::Called { .. } => unreachable!("`poll` handles calls, and none becomes one"),
        }
    }
}

opaque_debug! { IdempotencyKeyFuture<S: Service<Req>, P, Req> }
