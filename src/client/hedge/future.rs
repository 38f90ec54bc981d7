//! The race of two attempts. What their results mean is decided in [`decide`](super::decide).

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Request;
use pin_project_lite::pin_project;
use tower::Service;

use super::call::Call;
use crate::{classify::Classify, client::retry::ReplayBody, error::BoxError, http::ResponseHead};

pin_project! {
    /// The future of a [`Hedge`](super::Hedge) service.
    #[must_use = "futures do nothing unless polled"]
    pub struct HedgeFuture<S, C, B>
    where
        S: Service<Request<B>>,
        B: ReplayBody,
    {
        #[pin]
        state: State<S, C, B>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, C, B>
    where
        S: Service<Request<B>>,
        B: ReplayBody,
    {
        // A call that is not hedged.
        Passed { #[pin] future: S::Future },
        // A call that is measured, and hedged when it is late. The first attempt is there until it
        // failed.
        Watched { #[pin] first: Option<S::Future>, call: Call<S, C, B> },
    }
}

impl<S, C, B> HedgeFuture<S, C, B>
where
    S: Service<Request<B>>,
    B: ReplayBody,
{
    #[inline(always)]
    pub(super) fn passed(future: S::Future) -> Self {
        Self {
            state: State::Passed { future },
        }
    }

    #[inline(always)]
    pub(super) fn watched(future: S::Future, call: Call<S, C, B>) -> Self {
        Self {
            state: State::Watched {
                first: Some(future),
                call,
            },
        }
    }
}

impl<S, C, B> Future for HedgeFuture<S, C, B>
where
    S: Service<Request<B>> + Clone,
    S::Response: ResponseHead,
    S::Error: Into<BoxError>,
    C: Classify<Request<B>, S::Response>,
    B: ReplayBody,
{
    type Output = Result<S::Response, BoxError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Passed { future } => future.poll(cx).map_err(Into::into),
            StateProj::Watched { first, call } => watch(first, call, cx),
        }
    }
}

fn watch<S, C, B>(
    mut first: Pin<&mut Option<S::Future>>,
    call: &mut Call<S, C, B>,
    cx: &mut Context<'_>,
) -> Poll<Result<S::Response, BoxError>>
where
    S: Service<Request<B>> + Clone,
    S::Response: ResponseHead,
    S::Error: Into<BoxError>,
    C: Classify<Request<B>, S::Response>,
    B: ReplayBody,
{
    if let Some(future) = first.as_mut().as_pin_mut() {
        // Classified in place: moving a response costs more.
        let mut polled = future.poll(cx).map_err(Into::into);
        if let Poll::Ready(result) = &mut polled {
            let Some(verdict) = call.first_ended(result) else {
                return polled;
            };
            let result = ready!(polled);
            // The other attempt may wait for its connection, or for its place in a limit below.
            first.set(None);
            if let Some(result) = call.failed(result, verdict, call.is_hedged()) {
                return Poll::Ready(result);
            }
        }
    }
    if !call.has_second() {
        ready!(call.poll_late(cx));
        call.begin_second();
    }
    match ready!(call.poll_second(first.is_some(), cx)) {
        Some(result) => {
            // This future may be kept for longer.
            first.set(None);
            Poll::Ready(result)
        }
        // The first attempt was polled above, and wakes the task.
        None => Poll::Pending,
    }
}

impl<S, C, B> fmt::Debug for HedgeFuture<S, C, B>
where
    S: Service<Request<B>>,
    B: ReplayBody,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("HedgeFuture");
        if let State::Watched { call, .. } = &self.state {
            shown.field("call", call);
        }
        shown.finish_non_exhaustive()
    }
}
