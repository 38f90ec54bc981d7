use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep};
use tower::{Service, util::Oneshot};

use crate::{
    classify::Classify,
    dependency::{BreakerState, Dependency, Hold},
    error::{BoxError, Refusal, Refused},
    policy::RetryAfterMode,
    telemetry,
};

/// When a held call is made, unless it is refused.
pub(super) fn wake_at(
    dependency: &Dependency,
    hold: Hold,
    deadline: Instant,
) -> Result<Instant, Refused> {
    let at = Instant::now() + dependency.spread(hold.left, hold.asked);
    let holds = dependency.policy().retry_after().mode == RetryAfterMode::Hold;
    let by = match holds && at < deadline {
        // Nobody is held for a call that the breaker is sure to refuse.
        true if dependency.refuses_at(at) => Refusal::Breaker,
        true => return Ok(at),
        false => Refusal::RetryAfter,
    };
    telemetry::refused(dependency.target(), by.as_str());
    let left = match (by, dependency.status().breaker) {
        (Refusal::Breaker, BreakerState::Open(cooldown)) => cooldown,
        _ => hold.left,
    };
    Err(dependency.refused(by, Some(left)))
}

pin_project! {
    /// The future of a [`RetryAfter`](super::RetryAfter) service.
    #[must_use = "futures do nothing unless polled"]
    pub struct RetryAfterFuture<S, C, Req>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S, Req>,
        dependency: Arc<Dependency>,
        classifier: C,
    }
}

pin_project! {
    #[project = StateProj]
    pub(super) enum State<S, Req>
    where
        S: Service<Req>,
    {
        // The call is out.
        Called { #[pin] future: S::Future },
        // The dependency wants to be left alone for a while.
        Holding { held: Box<Held<S, Req>> },
        // The while is over; the service is made ready and called.
        Late { future: Pin<Box<Oneshot<S, Req>>> },
        // The while is longer than the call can wait.
        Refused { refused: Option<Refused> },
    }
}

/// A call that waits. It is boxed, so that calls that do not wait are small.
pub(super) struct Held<S: Service<Req>, Req> {
    pub(super) sleep: Pin<Box<Sleep>>,
    pub(super) deadline: Instant,
    pub(super) late: Option<Pin<Box<Oneshot<S, Req>>>>,
}

impl<S: Service<Req>, C, Req> RetryAfterFuture<S, C, Req> {
    #[inline(always)]
    pub(super) fn new(state: State<S, Req>, dependency: Arc<Dependency>, classifier: C) -> Self {
        Self {
            state,
            dependency,
            classifier,
        }
    }
}

impl<S, C, Req> Future for RetryAfterFuture<S, C, Req>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
    C: Classify<Req, S::Response>,
{
    type Output = Result<S::Response, BoxError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        // Looked at where it lies, and not moved once more.
        let polled = match this.state.as_mut().project() {
            StateProj::Called { future } => future.poll(cx).map_err(Into::into),
            _ => poll_held(this.state, this.dependency, cx),
        };
        if let Poll::Ready(result) = &polled
            && let Some(asked) = this
                .dependency
                .classify(this.classifier, result)
                .not_before()
        {
            this.dependency.stay_away(asked);
        }
        polled
    }
}

/// Polls a call that was held back, or that is refused.
#[cold]
#[inline(never)]
fn poll_held<S, Req>(
    mut state: Pin<&mut State<S, Req>>,
    dependency: &Dependency,
    cx: &mut Context<'_>,
) -> Poll<Result<S::Response, BoxError>>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
{
    loop {
        match state.as_mut().project() {
            StateProj::Holding { held } => {
                ready!(held.sleep.as_mut().poll(cx));
                // Another response may have asked for more in the meantime.
                match dependency.hold() {
                    Some(hold) => match wake_at(dependency, hold, held.deadline) {
                        Ok(at) => held.sleep.as_mut().reset(at),
                        Err(refused) => return Poll::Ready(Err(refused.into())),
                    },
                    None => {
                        let Some(future) = held.late.take() else {
                            return Poll::Pending;
                        };
                        state.set(State::Late { future });
                    }
                }
            }
            StateProj::Late { future } => return future.as_mut().poll(cx).map_err(Into::into),
            StateProj::Refused { refused } => match refused.take() {
                Some(refused) => return Poll::Ready(Err(refused.into())),
                None => return Poll::Pending,
            },
            StateProj::Called { .. } => return Poll::Pending,
        }
    }
}

impl<S: Service<Req>, C, Req> fmt::Debug for RetryAfterFuture<S, C, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryAfterFuture")
            .field("dependency", &self.dependency.name())
            .finish_non_exhaustive()
    }
}
