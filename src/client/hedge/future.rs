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
use crate::{
    call::Verdict, classify::Classify, client::retry::ReplayBody, error::BoxError,
    http::ResponseHead,
};

pin_project! {
    /// The future of a [`Hedge`](super::Hedge) service.
    #[must_use = "futures do nothing unless polled"]
    pub struct HedgeFuture<S, C, B>
    where
        S: Service<Request<B>>,
        B: ReplayBody,
    {
        // The first attempt, until it failed.
        #[pin]
        first: Option<S::Future>,
        // Present if the call is measured, and hedged when it is late.
        call: Option<Call<S, C, B>>,
    }
}

impl<S, C, B> HedgeFuture<S, C, B>
where
    S: Service<Request<B>>,
    B: ReplayBody,
{
    #[inline(always)]
    pub(super) fn new(first: S::Future, call: Option<Call<S, C, B>>) -> Self {
        Self {
            first: Some(first),
            call,
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
        let mut this = self.project();
        let mut polled = match this.first.as_mut().as_pin_mut() {
            Some(future) => future.poll(cx),
            None => Poll::Pending,
        };
        let Some(call) = this.call else {
            return polled.map_err(Into::into);
        };
        // A response that ends the call is classified where it is, and moved once.
        let mut verdict = None;
        if let Poll::Ready(Ok(response)) = &mut polled {
            verdict = call.first_ended(Ok(response));
            if verdict.is_none() {
                return polled.map_err(Into::into);
            }
        }
        race(this.first, call, polled.map_err(Into::into), verdict, cx)
    }
}

/// Goes on with a call that no response of the first attempt has just ended: with what that returned,
/// and its verdict if it was classified.
#[inline(never)]
fn race<S, C, B>(
    mut first: Pin<&mut Option<S::Future>>,
    call: &mut Call<S, C, B>,
    polled: Poll<Result<S::Response, BoxError>>,
    mut verdict: Option<Verdict>,
    cx: &mut Context<'_>,
) -> Poll<Result<S::Response, BoxError>>
where
    S: Service<Request<B>> + Clone,
    S::Response: ResponseHead,
    S::Error: Into<BoxError>,
    C: Classify<Request<B>, S::Response>,
    B: ReplayBody,
{
    if let Poll::Ready(mut result) = polled {
        if let Err(error) = &mut result {
            verdict = call.first_ended(Err(error));
        }
        let Some(verdict) = verdict else {
            return Poll::Ready(result);
        };
        // The other attempt may wait for its connection, or for its place in a limit below.
        first.set(None);
        if let Some(result) = call.failed(result, verdict, call.is_hedged()) {
            return Poll::Ready(result);
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
        if let Some(call) = &self.call {
            shown.field("call", call);
        }
        shown.finish_non_exhaustive()
    }
}
