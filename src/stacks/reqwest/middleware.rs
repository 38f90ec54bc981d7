use std::{
    error, fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
};

use async_trait::async_trait;
use http::{Extensions, Request};
use reqwest::{Body, Response};
use reqwest_middleware::{Error, Middleware, Next};
use tower::{Layer, Service, ServiceExt};

use super::port::{Hop, Port};
use crate::{error::BoxError, retry::Attempt};

/// Layers as a middleware, beside others in a reqwest-middleware chain.
///
/// Takes one layer, or several as a tuple, outermost first. They must call in the task they are
/// called in, one attempt at a time, as all layers of this crate do. Extensions that a request was
/// given, such as a [`RetryOverride`](crate::RetryOverride), are on the request that the layers
/// see. An error that a layer made or wrapped is an `Error::Middleware`, with the original in its
/// chain.
#[derive(Debug, Clone)]
#[must_use]
pub struct Stacked<S> {
    service: S,
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
        }
    }
}

#[async_trait]
impl<S> Middleware for Stacked<S>
where
    S: Service<Request<Body>, Response = Response> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
{
    async fn handle(
        &self,
        request: reqwest::Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let port = Arc::new(Port::new(request.url().clone()));
        let mut request = Request::<Body>::try_from(request)?;
        if !extensions.is_empty() {
            request.extensions_mut().extend(extensions.clone());
        }
        let call = self.service.clone().oneshot(request);
        let mut stack = pin!(Port::scope(Arc::clone(&port), call));
        // The layers say what is to be sent, and the chain sends it. It is lent to this call
        // only, so that they can't hold it: they hold a port, and the attempts are driven here.
        loop {
            let attempt = match port.wanted() {
                None => None,
                Some(request) => {
                    if let Some(attempt) = request.extensions().get::<Attempt>() {
                        extensions.insert(*attempt);
                    }
                    Some(next.clone().run(port.to_reqwest(request)?, extensions))
                }
            };
            if let Some(result) = drive(stack.as_mut(), &port, attempt).await {
                return result.map_err(|error| outer(error.into()));
            }
        }
    }
}

/// Drives the layers and what they called last, until they are done or want to call again.
async fn drive<F, A, T, E>(
    mut stack: Pin<&mut F>,
    port: &Port,
    mut attempt: Option<A>,
) -> Option<Result<T, E>>
where
    F: Future<Output = Result<T, E>>,
    A: Future<Output = reqwest_middleware::Result<Response>> + Unpin,
{
    poll_fn(|cx| {
        loop {
            if let Poll::Ready(result) = stack.as_mut().poll(cx) {
                return Poll::Ready(Some(result));
            }
            if port.wants() {
                return Poll::Ready(None);
            }
            if !port.is_open() {
                attempt = None;
            }
            match attempt.as_mut().map(|attempt| Pin::new(attempt).poll(cx)) {
                Some(Poll::Ready(result)) => port.answer(result.map_err(inner)),
                Some(Poll::Pending) | None => return Poll::Pending,
            }
            attempt = None;
        }
    })
    .await
}

/// An error of the chain, as the layers see it.
fn inner(error: Error) -> BoxError {
    match error {
        Error::Reqwest(error) => error.into(),
        Error::Middleware(error) => error.into(),
    }
}

/// An error of the layers, as the chain sees it.
fn outer(error: BoxError) -> Error {
    match error.downcast::<reqwest::Error>() {
        Ok(error) => Error::Reqwest(*error),
        Err(error) => Error::middleware(StackedError(error)),
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
