//! Tower layers in a reqwest-middleware chain.
//!
//! Layers own their inner service, but the rest of a chain is lent to one call. So the innermost
//! service leaves each attempt at the call's [exchange](super::exchange), and [`TowerMiddleware`] sends it down
//! the chain and brings back the reply. The request's body carries the exchange, so that it comes
//! through layers, retries and tasks alike.

use std::{
    error, fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    task::Poll,
};

use http::{Extensions, Request};
use reqwest::Response;
use reqwest_middleware::{Error, Middleware, Next};
use tower::{Layer, Service};

use super::exchange::{CallExchange, ChainBody, ChainError, ChainService, Stage};
use crate::{call::Attempt, error::BoxError};

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Layers as a middleware, beside others in a reqwest-middleware chain.
///
/// Takes one layer, or several as a tuple, outermost first. Layers see the extensions that the
/// request was given, such as a [`RetryOverride`](crate::call::RetryOverride). Middlewares that
/// come after see the [`Attempt`] among theirs from the second attempt on. An error that a layer
/// made or wrapped is an `Error::Middleware`, with the original in its chain.
///
/// A call has one attempt in the chain at a time. A layer that sends another body, or a request
/// of its own, makes it with [`ChainBody::with`].
#[derive(Debug)]
#[must_use]
pub struct TowerMiddleware<S> {
    service: S,
    /// Stacks that no call uses, so that most calls need not make one.
    idle: Mutex<Vec<Box<Stack<S>>>>,
}

/// A clone of the layers, and the exchange of the call that uses them.
#[derive(Debug)]
struct Stack<S> {
    service: S,
    exchange: CallExchange,
}

impl<S> TowerMiddleware<S> {
    /// Puts these layers around the rest of the chain.
    #[allow(clippy::needless_pass_by_value)] // as `ServiceBuilder::layer` takes it
    pub fn new<L>(layers: L) -> Self
    where
        L: Layer<ChainService, Service = S>,
    {
        Self {
            service: layers.layer(ChainService::new()),
            idle: Mutex::default(),
        }
    }

    /// Returns a stack that no call uses, or a new one.
    fn check_out(&self) -> Box<Stack<S>>
    where
        S: Clone,
    {
        let idle = self.idle.try_lock().ok().and_then(|mut idle| idle.pop());
        idle.unwrap_or_else(|| {
            Box::new(Stack {
                service: self.service.clone(),
                exchange: CallExchange::default(),
            })
        })
    }

    /// Keeps a stack for another call, unless a future of this call has outlived it.
    fn check_in(&self, mut stack: Box<Stack<S>>) {
        const MOST: usize = 64;
        if let Some(exchange) = Arc::get_mut(&mut stack.exchange.0)
            && let Ok(mut idle) = self.idle.try_lock()
            && idle.len() < MOST
        {
            exchange.state_mut().clear();
            idle.push(stack);
        }
    }
}

impl<S: Clone> Clone for TowerMiddleware<S> {
    fn clone(&self) -> Self {
        Self {
            service: self.service.clone(),
            idle: Mutex::default(),
        }
    }
}

impl<S> Middleware for TowerMiddleware<S>
where
    S: Service<Request<ChainBody>, Response = Response> + Clone + Send + Sync + 'static,
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
        let mut stack = self.check_out();
        if let Err(request) = stack.exchange.state_mut().open(request) {
            // reqwest reports it at the end of the chain.
            return next.run(*request, extensions);
        }
        // Written to the heap at once: moving the future there costs more than making it.
        let future = Box::write(Box::new_uninit(), async move {
            let readied = poll_fn(|cx| stack.service.poll_ready(cx)).await;
            readied.map_err(|error| outer(error.into()))?;
            let request = stack.exchange.first(extensions);
            let result = {
                let mut layers = pin!(stack.service.call(request));
                let lent = Lent::new(extensions);
                loop {
                    // Layers may have sent the first attempt already. It goes out before they are
                    // polled, so that a reply that is there at once sets no timer.
                    let request = {
                        let mut state = stack.exchange.lock();
                        if let Some(number) = state.take_number() {
                            lent.extensions.insert::<Attempt>(number);
                        }
                        state.take_request()
                    };
                    let mut attempt =
                        request.map(|request| next.clone().run(request, lent.extensions));
                    let done = poll_fn(|cx| {
                        if let Some(sent) = &mut attempt
                            && let Poll::Ready(result) = sent.as_mut().poll(cx)
                        {
                            attempt = None;
                            stack.exchange.answer(result, cx);
                        }
                        if let Poll::Ready(result) = layers.as_mut().poll(cx) {
                            return Poll::Ready(Some(result));
                        }
                        match stack.exchange.stage(cx) {
                            Stage::Requested => return Poll::Ready(None),
                            // The layers gave the attempt up.
                            Stage::Idle => attempt = None,
                            Stage::Sent | Stage::Answered | Stage::Closed => {}
                        }
                        Poll::Pending
                    });
                    if let Some(result) = done.await {
                        break result;
                    }
                }
            };
            self.check_in(stack);
            result.map_err(|error| outer(error.into()))
        });
        Box::into_pin(future)
    }
}

/// The extensions of a call, for its attempts. A middleware before this one may run the chain
/// again, which is another call, so the [`Attempt`] is put back as it was.
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

/// An error of the layers, as the chain sees it.
fn outer(error: BoxError) -> Error {
    let error = match error.downcast::<reqwest::Error>() {
        Ok(error) => return Error::Reqwest(*error),
        Err(error) => error,
    };
    match error.downcast::<ChainError>() {
        Ok(error) => error.0,
        Err(error) => Error::middleware(LayerError(error)),
    }
}

/// An error that a layer made. `Error::Middleware` shows only the sources of the error in it.
#[derive(Debug)]
struct LayerError(BoxError);

impl fmt::Display for LayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl error::Error for LayerError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&*self.0)
    }
}
