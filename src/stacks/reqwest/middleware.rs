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

use super::exchange::{CallSlot, ChainService, Wanted};
use crate::{call::Attempt, error::BoxError};

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Layers as a middleware, beside others in a reqwest-middleware chain.
///
/// Takes one layer, or several as a tuple, outermost first. They must call in the task they are
/// called in, as all layers of this crate do. Extensions that a request was given, such as a
/// [`RetryOverride`](crate::call::RetryOverride), are on the request that the layers see; middlewares
/// that come after see the [`Attempt`] among theirs, if it is another one. An attempt sent while
/// another is out, such as a [`HedgeLayer`](crate::HedgeLayer)'s, has extensions of its own, which
/// become the call's if its response does. An error that a layer made or wrapped is an
/// `Error::Middleware`, with the original in its chain.
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
            // An attempt that is sent while the call's extensions are lent to another starts with these.
            let given = (!extensions.is_empty()).then(|| extensions.clone());
            let lent = Lent::new(extensions);
            let mut beside = Vec::new();
            // The layers say what is to be sent, and the chain sends it. It is lent to this call
            // only, so that they can't hold it: the attempts are driven here.
            loop {
                let mut first = None;
                if let Some(request) = slot.take_first() {
                    let (number, attempt) = slot.first();
                    if let Some(attempt) = attempt {
                        lent.extensions.insert(attempt);
                    }
                    let future = next.clone().run(request, lent.extensions);
                    first = number.map(|number| Sent { number, future });
                }
                let hedge = |wanted| send_beside(next.clone(), wanted, given.clone());
                let driven = poll_fn(|cx| {
                    drive(
                        stack.as_mut(),
                        &mut slot,
                        &mut first,
                        &mut beside,
                        hedge,
                        cx,
                    )
                });
                let Some(result) = driven.await else {
                    continue;
                };
                drop(first);
                // Most calls have no second attempt.
                if beside.capacity() == 0 {
                    return result;
                }
                return result.map(|mut response| {
                    if let Some(Own(extensions)) = response.extensions_mut().remove() {
                        *lent.extensions = extensions;
                    }
                    response
                });
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

/// An attempt that is out.
struct Sent<'a> {
    number: u64,
    future: BoxFuture<'a, Result<Response, Error>>,
}

impl Sent<'_> {
    /// Leaves the answer for the layers, if there is one. Returns whether the attempt is over.
    #[inline]
    fn poll(&mut self, slot: &mut CallSlot, cx: &mut Context<'_>) -> bool {
        let answered = slot.answer_with(self.number, || self.future.as_mut().poll(cx));
        let Poll::Ready(waker) = answered else {
            return false;
        };
        // The layers are asked right after, so that only another task has to be woken.
        if let Some(waker) = waker.filter(|waker| !waker.will_wake(cx.waker())) {
            waker.wake();
        }
        true
    }
}

/// The extensions of an attempt that had its own, on its response.
#[derive(Clone)]
struct Own(Extensions);

/// Sends an attempt while the extensions of the call are lent to another.
#[cold]
fn send_beside(next: Next<'_>, wanted: Wanted, given: Option<Extensions>) -> Sent<'_> {
    let mut extensions = given.unwrap_or_default();
    if let Some(attempt) = wanted.attempt {
        extensions.insert(attempt);
    }
    let future = Box::pin(async move {
        let mut response = next.run(wanted.request, &mut extensions).await?;
        response.extensions_mut().insert(Own(extensions));
        Ok(response)
    });
    Sent {
        number: wanted.number,
        future,
    }
}

/// Drives the layers and the attempts that are out, until the layers are done or want to send an
/// attempt that has the extensions of the call.
#[inline]
fn drive<'n, F, E>(
    mut stack: Pin<&mut F>,
    slot: &mut CallSlot,
    first: &mut Option<Sent<'_>>,
    beside: &mut Vec<Sent<'n>>,
    hedge: impl Fn(Wanted) -> Sent<'n>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Response, Error>>>
where
    F: Future<Output = Result<Response, E>>,
    E: Into<BoxError>,
{
    loop {
        first.take_if(|sent| sent.poll(slot, cx));
        beside.retain_mut(|sent| !sent.poll(slot, cx));
        let entered = slot.enter();
        let polled = stack.as_mut().poll(cx);
        drop(entered);
        if let Poll::Ready(result) = polled {
            return Poll::Ready(Some(result.map_err(|error| outer(error.into()))));
        }
        // The layers may have let go of some.
        first.take_if(|sent| !slot.is_open(sent.number));
        beside.retain(|sent| slot.is_open(sent.number));
        if slot.wants_first() {
            return Poll::Ready(None);
        }
        match slot.take_beside() {
            Some(wanted) => beside.push(hedge(wanted)),
            None => return Poll::Pending,
        }
    }
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
