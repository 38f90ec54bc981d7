//! The second attempt of a call.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower::Service;

use crate::{
    dependency::{Charge, Dependency},
    telemetry::{self, Hedged, Unhedged},
};

pin_project! {
    /// A hedge: its service becomes ready, and then its request goes out, if it still may.
    pub(super) struct Second<S: Service<Req>, Req> {
        service: S,
        request: Option<Req>,
        deadline: Instant,
        sent: Option<Sent>,
        #[pin]
        future: Option<S::Future>,
    }
}

type Answer<S, Req> = Result<<S as Service<Req>>::Response, <S as Service<Req>>::Error>;

impl<S: Service<Req>, Req> Second<S, Req> {
    pub(super) fn new(service: S, request: Req, deadline: Instant) -> Self {
        Self {
            service,
            request: Some(request),
            deadline,
            sent: None,
            future: None,
        }
    }

    pub(super) fn is_sent(&self) -> bool {
        self.sent.is_some()
    }

    /// Returns the hedge that was sent, to note its result.
    pub(super) fn sent(self: Pin<&mut Self>) -> &mut Option<Sent> {
        self.project().sent
    }

    /// Polls for the result. `admit` is asked once, when the service is ready, and brings the request
    /// up to date.
    pub(super) fn poll(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        admit: impl FnOnce(&mut Req, Instant) -> Result<Sent, Unhedged>,
    ) -> Poll<Result<Answer<S, Req>, Unhedged>> {
        let mut this = self.project();
        if let Some(mut request) = this.request.take_if(|_| this.sent.is_none()) {
            match this.service.poll_ready(cx) {
                Poll::Ready(Ok(())) => *this.sent = Some(admit(&mut request, *this.deadline)?),
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Unhedged::NotReady)),
                Poll::Pending => {
                    *this.request = Some(request);
                    return Poll::Pending;
                }
            }
            this.future.set(Some(this.service.call(request)));
        }
        match this.future.as_pin_mut() {
            Some(future) => Poll::Ready(Ok(ready!(future.poll(cx)))),
            None => unreachable!("it was set when the request was taken"),
        }
    }
}

/// A hedge that went out. Dropped before its result is noted, it was called off.
#[derive(Debug)]
pub(super) struct Sent {
    dependency: Arc<Dependency>,
    charge: Option<Charge>,
    result: Hedged,
}

impl Sent {
    pub(super) fn new(dependency: Arc<Dependency>, charge: Charge) -> Self {
        Self {
            dependency,
            charge: Some(charge),
            result: Hedged::Cancelled,
        }
    }

    pub(super) fn ended(&mut self, result: Hedged) {
        self.result = result;
        if let (Hedged::Won, Some(charge)) = (result, &mut self.charge) {
            charge.give_tokens();
        }
    }

    /// Takes back the charge of a hedge that a layer below refused.
    pub(super) fn refused(&mut self) {
        if let Some(charge) = self.charge.take() {
            charge.take_back();
        }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let target = self.dependency.target();
        match self.charge {
            Some(_) => telemetry::hedge_ended(target, self.result),
            None => telemetry::not_hedged(target, Unhedged::Refused),
        }
    }
}
