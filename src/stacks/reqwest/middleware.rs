use std::{
    error, fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Mutex,
    task::{Context, Poll},
};

use http::{Extensions, Request};
use reqwest::{Body, Response};
use reqwest_middleware::{Error, Middleware, Next};
use tower::{Layer, Service};

use super::exchange::{CallSlot, ChainService};
use crate::{call::Attempt, error::BoxError};

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Layers as a middleware, beside others in a reqwest-middleware chain.
///
/// Takes one layer, or several as a tuple, outermost first. They must call in the task they are
/// called in, one attempt at a time, as all layers of this crate do but a
/// [`HedgeLayer`](crate::HedgeLayer): a chain is lent to one attempt, so a second one is not sent while
/// the first is out. Put the layers around an [`HttpClient`](super::HttpClient) to hedge. Extensions that a request was
/// given, such as a [`RetryOverride`](crate::call::RetryOverride), are on the request that the layers
/// see; middlewares that come after see the [`Attempt`] among theirs, if it is another one. An
/// error that a layer made or wrapped is an `Error::Middleware`, with the original in its chain.
#[derive(Debug)]
#[must_use]
pub struct TowerMiddleware<S> {
    service: S,
    /// A clone for the next call, so that most need not make one.
    spare: Mutex<Option<Box<S>>>,
}

impl<S> TowerMiddleware<S> {
    /// Puts these layers around whatever comes next in the chain.
    #[allow(clippy::needless_pass_by_value)] // as `ServiceBuilder::layer` takes it
    pub fn new<L>(layers: L) -> Self
    where
        L: Layer<ChainService, Service = S>,
    {
        Self {
            service: layers.layer(ChainService::new()),
            spare: Mutex::new(None),
        }
    }
}

impl<S: Clone> TowerMiddleware<S> {
    fn take(&self) -> Box<S> {
        let spare = self
            .spare
            .try_lock()
            .ok()
            .and_then(|mut spare| spare.take());
        spare.unwrap_or_else(|| Box::new(self.service.clone()))
    }

    /// Keeps a service for the next call.
    fn give_back(&self, service: Box<S>) {
        if let Ok(mut spare) = self.spare.try_lock() {
            spare.get_or_insert(service);
        }
    }
}

impl<S: Clone> Clone for TowerMiddleware<S> {
    fn clone(&self) -> Self {
        Self {
            service: self.service.clone(),
            spare: Mutex::new(None),
        }
    }
}

impl<S> Middleware for TowerMiddleware<S>
where
    S: Service<Request<Body>, Response = Response> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
{
    // As `async_trait` would have it, but the request is not in the future, which stays small.
    fn handle<'s, 'e, 'n, 'f>(
        &'s self,
        request: reqwest::Request,
        extensions: &'e mut Extensions,
        next: Next<'n>,
    ) -> BoxFuture<'f, Result<Response, Error>>
    where
        's: 'f,
        'e: 'f,
        'n: 'f,
    {
        let mut slot = CallSlot::new(request);
        // Into the box at once: to move a future costs more than to make it.
        let future = Box::write(Box::new_uninit(), async move {
            if !slot.leads_anywhere() {
                // The end of the chain will say so.
                return match slot.take() {
                    Some(request) => next.run(request, extensions).await,
                    None => Err(gone()),
                };
            }
            let mut service = self.take();
            let readied = poll_fn(|cx| service.poll_ready(cx)).await;
            readied.map_err(|error| outer(error.into()))?;
            let mut stack = pin!(slot.call(&mut *service, extensions));
            self.give_back(service);
            let lent = Lent::new(extensions);
            // The layers say what is to be sent, and the chain sends it. It is lent to this call
            // only, so that they can't hold it: they hold a port, and the attempts are driven
            // here.
            loop {
                if let Some(attempt) = slot.attempt() {
                    lent.extensions.insert(attempt);
                }
                let wanted = slot.take_wanted();
                let mut attempt = wanted.map(|request| next.clone().run(request, lent.extensions));
                let driven = poll_fn(|cx| drive(stack.as_mut(), &mut slot, &mut attempt, cx));
                if let Some(result) = driven.await {
                    return result;
                }
            }
        });
        Box::into_pin(future)
    }
}

/// The extensions of a call, for its attempts. Whoever comes before may run the chain again, and as
/// that is another call, they don't keep which attempt it was.
struct Lent<'a> {
    extensions: &'a mut Extensions,
    given: Option<Attempt>,
}

impl<'a> Lent<'a> {
    fn new(extensions: &'a mut Extensions) -> Self {
        let given = extensions.get().copied();
        Self { extensions, given }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        match self.given {
            Some(given) => self.extensions.insert(given),
            None => self.extensions.remove(),
        };
    }
}

/// Drives the layers and what they called last, until they are done or want to call again.
#[inline]
fn drive<F, E>(
    stack: Pin<&mut F>,
    slot: &mut CallSlot,
    attempt: &mut Option<BoxFuture<'_, Result<Response, Error>>>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Response, Error>>>
where
    F: Future<Output = Result<Response, E>>,
    E: Into<BoxError>,
{
    if let Some(sent) = attempt
        && slot.answer_with(|| sent.as_mut().poll(cx))
    {
        *attempt = None;
        // The layers are asked right below, so that only another task has to be woken.
        let waker = slot.take_waker();
        if let Some(waker) = waker.filter(|waker| !waker.will_wake(cx.waker())) {
            waker.wake();
        }
    }
    let entered = slot.enter();
    let polled = stack.poll(cx);
    drop(entered);
    if let Poll::Ready(result) = polled {
        return Poll::Ready(Some(result.map_err(|error| outer(error.into()))));
    }
    if slot.wants() {
        return Poll::Ready(None);
    }
    if !slot.is_open() {
        *attempt = None;
    }
    Poll::Pending
}

#[cold]
fn gone() -> Error {
    outer("the request is gone".into())
}

/// An error of the chain, as the layers see it.
#[cold]
pub(super) fn inner(error: Error) -> BoxError {
    match error {
        Error::Reqwest(error) => error.into(),
        error => ChainError(error).into(),
    }
}

/// An error of the layers, as the chain sees it.
#[cold]
fn outer(error: BoxError) -> Error {
    let error = match error.downcast::<reqwest::Error>() {
        Ok(error) => return Error::Reqwest(*error),
        Err(error) => error,
    };
    match error.downcast::<ChainError>() {
        Ok(error) => error.0,
        Err(error) => Error::middleware(StackedError(error)),
    }
}

/// An error that a middleware made. What is in it can be told by its type, which the error of the
/// chain does not show.
#[derive(Debug)]
struct ChainError(Error);

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl error::Error for ChainError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match &self.0 {
            Error::Middleware(error) => Some(&**error),
            Error::Reqwest(error) => Some(error),
        }
    }
}

/// Keeps the error in the chain: `Error::Middleware` shows the sources of what it holds only.
#[derive(Debug)]
struct StackedError(BoxError);

impl fmt::Display for StackedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl error::Error for StackedError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&*self.0)
    }
}
