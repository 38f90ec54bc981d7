use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::HeaderName;
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep};
use tower::Service;

use crate::{
    call::oneshot::Oneshot,
    classify::Classify,
    dependency::{BreakerState, Dependency, Hold, Place},
    error::{BoxError, Refusal, Refused},
    policy::RetryAfterMode,
};

/// Returns when a held call goes out, unless it is refused.
pub(super) fn wake_at(
    dependency: &Dependency,
    hold: Hold,
    deadline: Instant,
) -> Result<Instant, Refused> {
    let holds = dependency.policy().retry_after().mode == RetryAfterMode::Hold;
    let at = match holds {
        true => dependency.release_at(hold, deadline),
        false => None,
    };
    let by = match at {
        // Waiting for a call that the breaker is sure to refuse is of no use.
        Some(at) if dependency.refuses_at(at) => Refusal::Breaker,
        Some(at) => return Ok(at),
        None => Refusal::RetryAfter,
    };
    Err(refused(dependency, by, hold))
}

/// Refuses a call that is not held back.
pub(super) fn refused(dependency: &Dependency, by: Refusal, hold: Hold) -> Refused {
    dependency.tell_refused(by);
    let left = match (by, dependency.status().breaker) {
        (Refusal::Breaker, BreakerState::Open(cooldown)) => cooldown,
        _ => hold.left,
    };
    dependency.refused(by, Some(left))
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
        // The call waits for the dependency, and then for its service.
        Held { held: Box<Held<S, Req>> },
        // The dependency asks for more time than the call has.
        Refused { refused: Refused },
    }
}

/// A call that is held back. Boxed, so that other calls are small.
pub(super) struct Held<S: Service<Req>, Req> {
    /// The wait, until it is over.
    pub(super) wait: Option<Pin<Box<Sleep>>>,
    /// The call's place among those that wait.
    pub(super) place: Option<Place>,
    pub(super) deadline: Instant,
    pub(super) state: HeldState<S, Req>,
    /// Tells the next hop how much time is left after the wait.
    pub(super) refresh: fn(&mut Req, &HeaderName),
}

pub(super) enum HeldState<S: Service<Req>, Req> {
    Waits {
        service: S,
        request: Req,
    },
    Called {
        future: Pin<Box<Oneshot<S, Req>>>,
    },
    /// Between the two.
    Turning,
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
        // Classified in place: moving a response costs more.
        let mut polled = match this.state.as_mut().project() {
            StateProj::Called { future } => future.poll(cx).map_err(Into::into),
            StateProj::Held { held } => held.poll(this.dependency, cx),
            StateProj::Refused { refused } => Poll::Ready(Err(refused.clone().into())),
        };
        if let Poll::Ready(result) = &mut polled {
            let verdict = this
                .dependency
                .classify_for_all(this.classifier, result.as_mut());
            if let Some(asked) = verdict.not_before() {
                this.dependency.stay_away(asked);
            }
        }
        polled
    }
}

impl<S, Req> Held<S, Req>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
{
    #[cold]
    #[inline(never)]
    fn poll(
        &mut self,
        dependency: &Dependency,
        cx: &mut Context<'_>,
    ) -> Poll<Result<S::Response, BoxError>> {
        while let Some(wait) = &mut self.wait {
            ready!(wait.as_mut().poll(cx));
            // Another response may have asked for more in the meantime.
            match dependency.hold() {
                Some(hold) => match wake_at(dependency, hold, self.deadline) {
                    Ok(at) => wait.as_mut().reset(at),
                    Err(refused) => {
                        self.place = None;
                        return Poll::Ready(Err(refused.into()));
                    }
                },
                None => (self.wait, self.place) = (None, None),
            }
        }
        self.state = match mem::replace(&mut self.state, HeldState::Turning) {
            HeldState::Waits {
                service,
                mut request,
            } => {
                (self.refresh)(&mut request, &dependency.policy().rules().deadline_header);
                let future = Box::pin(Oneshot::new(service, request));
                HeldState::Called { future }
            }
            state => state,
        };
        match &mut self.state {
            HeldState::Called { future } => future.as_mut().poll(cx).map_err(Into::into),
            HeldState::Waits { .. } | HeldState::Turning => unreachable!("it was turned above"),
        }
    }
}

opaque_debug! {
    RetryAfterFuture<S: Service<Req>, C, Req>, self, dependency = self.dependency.name()
}
