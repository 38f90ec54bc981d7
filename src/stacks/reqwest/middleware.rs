use std::{
    error, fmt,
    future::{Future, poll_fn, ready},
    pin::{Pin, pin},
    sync::Mutex,
    task::{Context, Poll},
};

use http::{Extensions, Request};
use reqwest::{Body, Response};
use reqwest_middleware::{Error, Middleware, Next};
use tower::{Layer, Service};

use super::port::{Hop, Port};
use crate::{error::BoxError, retry::Attempt};

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Layers as a middleware, beside others in a reqwest-middleware chain.
///
/// Takes one layer, or several as a tuple, outermost first. They must call in the task they are
/// called in, one attempt at a time, as all layers of this crate do. Extensions that a request was
/// given, such as a [`RetryOverride`](crate::RetryOverride), are on the request that the layers
/// see; middlewares that come after see the [`Attempt`] among theirs, if it is another one. An
/// error that a layer made or wrapped is an `Error::Middleware`, with the original in its chain.
#[derive(Debug)]
#[must_use]
pub struct Stacked<S> {
    service: S,
    /// A clone for the next call, so that most need not make one.
    spare: Mutex<Option<Box<S>>>,
}

impl<S> Stacked<S> {
    /// Puts these layers around whatever comes next in the chain.
    #[allow(clippy::needless_pass_by_value)] // as `ServiceBuilder::layer` takes it
    pub fn new<L>(layers: L) -> Self
    where
        L: Layer<Hop, Service = S>,
    {
        Self {
            service: layers.layer(Hop::new()),
            spare: Mutex::new(None),
        }
    }
}

impl<S: Clone> Stacked<S> {
    fn take(&self) -> Box<S> {
        let spare = self
            .spare
            .try_lock()
            .ok()
            .and_then(|mut spare| spare.take());
        spare.unwrap_or_else(|| Box::new(self.service.clone()))
    }

    /// What was called may be called again.
    fn give_back(&self, service: Box<S>) {
        if let Ok(mut spare) = self.spare.try_lock() {
            spare.get_or_insert(service);
        }
    }
}

impl<S: Clone> Clone for Stacked<S> {
    fn clone(&self) -> Self {
        Self {
            service: self.service.clone(),
            spare: Mutex::new(None),
        }
    }
}

impl<S> Middleware for Stacked<S>
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
        let mut port = Port::new(request);
        let Some(uri) = port.uri() else {
            // Nothing that could be called, as the end of the chain will say.
            return match port.take() {
                Some(request) => next.run(request, extensions),
                None => Box::pin(ready(Err(outer("the request is gone".into())))),
            };
        };
        let mut service = self.take();
        Box::pin(async move {
            let readied = poll_fn(|cx| service.poll_ready(cx)).await;
            readied.map_err(|error| outer(error.into()))?;
            let given = extensions.get::<Attempt>().copied();
            let mut stack = pin!(port.call(&mut *service, uri, extensions));
            self.give_back(service);
            // The layers say what is to be sent, and the chain sends it. It is lent to this call
            // only, so that they can't hold it: they hold a port, and the attempts are driven
            // here.
            let result = loop {
                if let Some(attempt) = port.attempt() {
                    extensions.insert(attempt);
                }
                let wanted = port.take_wanted();
                let mut attempt = wanted.map(|request| next.clone().run(request, extensions));
                let driven = poll_fn(|cx| drive(stack.as_mut(), &mut port, &mut attempt, cx));
                if let Some(result) = driven.await {
                    break result;
                }
            };
            // Whoever comes before may run the chain again, and that is another call.
            match given {
                Some(given) => extensions.insert(given),
                None => extensions.remove::<Attempt>(),
            };
            result.map_err(|error| outer(error.into()))
        })
    }
}

/// Drives the layers and what they called last, until they are done or want to call again.
fn drive<F: Future>(
    stack: Pin<&mut F>,
    port: &mut Port,
    attempt: &mut Option<BoxFuture<'_, Result<Response, Error>>>,
    cx: &mut Context<'_>,
) -> Poll<Option<F::Output>> {
    let polled = attempt.as_mut().map(|attempt| attempt.as_mut().poll(cx));
    if let Some(Poll::Ready(result)) = polled {
        *attempt = None;
        // The layers are asked right below, so that only another task has to be woken.
        let waker = port.answer(result.map_err(inner));
        if let Some(waker) = waker.filter(|waker| !waker.will_wake(cx.waker())) {
            waker.wake();
        }
    }
    let entered = port.enter();
    let polled = stack.poll(cx);
    drop(entered);
    if let Poll::Ready(result) = polled {
        return Poll::Ready(Some(result));
    }
    if port.wants() {
        return Poll::Ready(None);
    }
    if !port.is_open() {
        *attempt = None;
    }
    Poll::Pending
}

/// An error of the chain, as the layers see it.
fn inner(error: Error) -> BoxError {
    match error {
        Error::Reqwest(error) => error.into(),
        error => ChainError(error).into(),
    }
}

/// An error of the layers, as the chain sees it.
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
