use std::{
    future::{Future, Ready, ready},
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

use crate::error::{BoxError, Refused};

pin_project! {
    /// The future of a [`RetryBudget`](super::RetryBudget) service.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct RetryBudgetFuture<F> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[project = StateProj]
    #[derive(Debug)]
    enum State<F> {
        // The call is out.
        Called { #[pin] future: F },
        // A repeat over the budget is not called.
        Refused { refused: Ready<Refused> },
    }
}

impl<F> RetryBudgetFuture<F> {
    #[inline(always)]
    pub(super) fn called(future: F) -> Self {
        Self {
            state: State::Called { future },
        }
    }

    #[inline(always)]
    pub(super) fn refused(refused: Refused) -> Self {
        let refused = ready(refused);
        Self {
            state: State::Refused { refused },
        }
    }
}

impl<F, T, E> Future for RetryBudgetFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, BoxError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Called { future } => future.poll(cx).map_err(Into::into),
            StateProj::Refused { refused } => {
                let refused = Pin::new(refused).poll(cx);
                refused.map(|refused| Err(refused.into()))
            }
        }
    }
}
