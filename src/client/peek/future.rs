use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;

use super::{
    PeekResponse,
    reading::{Look, Reading},
};
use crate::{dependency::Dependency, error::BoxError};

pin_project! {
    /// The future of a [`Peek`](super::Peek) service.
    #[must_use = "futures do nothing unless polled"]
    pub struct PeekFuture<F, R: PeekResponse> {
        #[pin]
        state: State<F, R>,
        dependency: Arc<Dependency>,
        unary: bool,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, R: PeekResponse> {
        // The call is out.
        Called { #[pin] future: F },
        // More of the body is waited for. Boxed, so that other calls are small.
        Reading { reading: Option<Box<Reading<R>>> },
    }
}

impl<F, R: PeekResponse> PeekFuture<F, R> {
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
    R: PeekResponse,
{
    type Output = Result<R::Peeked, BoxError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        match this.state.as_mut().project() {
            StateProj::Called { future } => {
                let reply = ready!(future.poll(cx)).map_err(Into::into)?;
                let look = Look::at(this.dependency.policy().rules(), &reply);
                if look == Look::Nothing {
                    return Poll::Ready(Ok(reply.untouched()));
                }
                match read(Reading::new(reply, look, *this.unary), this.dependency, cx) {
                    Ok(reply) => Poll::Ready(Ok(reply)),
                    Err(reading) => {
                        let reading = Some(reading);
                        this.state.set(State::Reading { reading });
                        Poll::Pending
                    }
                }
            }
            StateProj::Reading { reading } => {
                let Some(mut reply) = reading.take() else {
                    unreachable!("a future is not polled after it was ready");
                };
                match reply.poll(this.dependency, cx) {
                    Poll::Ready(()) => {
                        let rules = this.dependency.policy().rules();
                        Poll::Ready(Ok(reply.finish(rules)))
                    }
                    Poll::Pending => {
                        *reading = Some(reply);
                        Poll::Pending
                    }
                }
            }
        }
    }
}

/// Reads the body of a reply as far as it is at hand. A reply that has to wait is boxed.
#[inline(never)]
fn read<R: PeekResponse>(
    mut reading: Reading<R>,
    dependency: &Dependency,
    cx: &mut Context<'_>,
) -> Result<R::Peeked, Box<Reading<R>>> {
    match reading.poll(dependency, cx) {
        Poll::Ready(()) => Ok(reading.finish(dependency.policy().rules())),
        Poll::Pending => Err(Box::new(reading)),
    }
}

opaque_debug! { PeekFuture<F, R: PeekResponse>, self, dependency = self.dependency.name() }
