use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;

use super::{
    PeekReply,
    reading::{Look, Reading},
};
use crate::{dependency::Dependency, error::BoxError};

pin_project! {
    /// The future of a [`Peek`](super::Peek) service.
    #[must_use = "futures do nothing unless polled"]
    pub struct PeekFuture<F, R: PeekReply> {
        #[pin]
        state: State<F, R>,
        dependency: Arc<Dependency>,
        unary: bool,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, R: PeekReply> {
        // The call is out.
        Called { #[pin] future: F },
        // The body is read. It is boxed, so that calls without are small.
        Reading { reading: Option<Box<Reading<R>>> },
    }
}

impl<F, R: PeekReply> PeekFuture<F, R> {
    #[inline(always)]
    pub(super) fn new(future: F, dependency: Arc<Dependency>, unary: bool) -> Self {
        Self {
            state: State::Called { future },
            dependency,
            unary,
        }
    }
}

impl<F, R, E> Future for PeekFuture<F, R>
where
    F: Future<Output = Result<R, E>>,
    E: Into<BoxError>,
    R: PeekReply,
{
    type Output = Result<R::Peeked, BoxError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let rules = this.dependency.policy().rules();
        loop {
            match this.state.as_mut().project() {
                StateProj::Called { future } => {
                    let reply = ready!(future.poll(cx)).map_err(Into::into)?;
                    let look = Look::at(rules, &reply);
                    if look == Look::Nothing {
                        return Poll::Ready(Ok(reply.untouched()));
                    }
                    let reading = Some(Box::new(Reading::new(reply, look, *this.unary)));
                    this.state.set(State::Reading { reading });
                }
                StateProj::Reading { reading } => {
                    match reading.as_mut() {
                        Some(reading) => ready!(reading.poll(rules, cx)),
                        None => return Poll::Pending,
                    }
                    if let Some(reading) = reading.take() {
                        return Poll::Ready(Ok(reading.finish(rules)));
                    }
                }
            }
        }
    }
}

impl<F, R: PeekReply> fmt::Debug for PeekFuture<F, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeekFuture")
            .field("dependency", &self.dependency.name())
            .finish_non_exhaustive()
    }
}
