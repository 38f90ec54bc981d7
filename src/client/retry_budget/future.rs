use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

use crate::{
    classify::Classify,
    dependency::{Accounted, Dependency},
    error::{BoxError, Refused},
};

pin_project! {
    /// The future of a [`RetryBudget`](super::RetryBudget) service.
    #[must_use = "futures do nothing unless polled"]
    pub struct RetryBudgetFuture<F, C, Req> {
        #[pin]
        state: State<F, C>,
        request: PhantomData<fn(Req)>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, C> {
        // The call is out.
        Called { #[pin] future: F, counted: Option<Counted<C>> },
        // A repeat over the budget is not called.
        Refused { refused: Refused },
    }
}

/// A request that this layer counted or charged.
pub(super) struct Counted<C> {
    pub(super) entry: Accounted,
    pub(super) dependency: Arc<Dependency>,
    pub(super) classifier: C,
}

impl<F, C, Req> RetryBudgetFuture<F, C, Req> {
    #[inline(always)]
    pub(super) fn called(future: F, counted: Option<Counted<C>>) -> Self {
        Self {
            state: State::Called { future, counted },
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

impl<F, C, Req, T, E> Future for RetryBudgetFuture<F, C, Req>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
    C: Classify<Req, T>,
{
    type Output = Result<T, BoxError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Called { future, counted } => {
                let mut polled = future.poll(cx).map_err(Into::into);
                if let Poll::Ready(result) = &mut polled
                    && let Some(counted) = counted.take()
                {
                    counted.end(result);
                }
                polled
            }
            StateProj::Refused { refused } => Poll::Ready(Err(refused.clone().into())),
        }
    }
}

impl<C> Counted<C> {
    /// Takes the entry back if the request was refused below. A success earns a part of a retry.
    fn end<Req, T>(self, result: &mut Result<T, BoxError>)
    where
        C: Classify<Req, T>,
    {
        let verdict = self.dependency.classify(&self.classifier, result.as_mut());
        if verdict.is_success() {
            self.dependency.earn();
            if let Accounted::Repeat(charge) = self.entry {
                charge.succeeded();
            }
        } else if verdict.refusal().is_some() {
            self.entry.take_back(&self.dependency);
        }
    }
}

opaque_debug! { RetryBudgetFuture<F, C, Req> }
