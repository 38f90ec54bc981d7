//! A service that is readied and called once, as by tower's feature `util`, which brings futures-util.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tower::Service;

pin_project! {
    /// The call of a service as soon as it is ready.
    pub(crate) struct Oneshot<S: Service<Req>, Req> {
        service: S,
        // There until the service is called.
        request: Option<Req>,
        #[pin]
        future: Option<S::Future>,
    }
}

impl<S: Service<Req>, Req> Oneshot<S, Req> {
    pub(crate) fn new(service: S, request: Req) -> Self {
        Self {
            service,
            request: Some(request),
            future: None,
        }
    }
}

impl<S: Service<Req>, Req> Future for Oneshot<S, Req> {
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if this.request.is_some() {
            ready!(this.service.poll_ready(cx))?;
        }
        if let Some(request) = this.request.take() {
            this.future.set(Some(this.service.call(request)));
        }
        match this.future.as_pin_mut() {
            Some(future) => future.poll(cx),
            None => unreachable!("it is set when the request is taken"),
        }
    }
}
