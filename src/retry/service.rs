use std::{
    sync::Arc,
    task::{Context, Poll},
};

use tokio::time::Instant;
use tower::Service;

use super::{
    Http, PrepareAttempt, Protocol, RetryFuture,
    attempt::Bounds,
    future::{Call, State},
};
use crate::{
    classify::{Classify, Standard},
    dependency::{ByAuthority, Locate, Lookup},
    error::BoxError,
};

/// The service of a [`RetryLayer`](super::RetryLayer).
///
/// # Clone
///
/// All state is in the registry, so clones retry out of the same budget.
#[derive(Debug, Clone)]
pub struct Retry<S, C = Standard, L = ByAuthority, P = Http, H = ()> {
    pub(super) inner: S,
    pub(super) lookup: Lookup<C, L>,
    pub(super) protocol: P,
    pub(super) prepare: H,
}

impl<S, C, L, P, H, Req> Service<Req> for Retry<S, C, L, P, H>
where
    S: Service<Req> + Clone,
    S::Error: Into<BoxError>,
    C: Classify<Req, S::Response> + Clone,
    L: Locate<Req>,
    P: Protocol<Req, S::Response>,
    H: PrepareAttempt<Req> + Clone,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = RetryFuture<S, C, P, H, Req>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Req) -> Self::Future {
        let dependency = Arc::clone(self.lookup.find(&request));
        let deps = &self.lookup.deps;
        let policy = dependency.policy();
        let bounds = Bounds::of(policy, self.protocol.wish(&request));
        let now = Instant::now();
        if self.protocol.is_original(&request) {
            dependency.count_original(now);
            if deps.must_mark() {
                self.protocol.mark_counted(&mut request);
            }
        }
        let repeatable = deps.classifier.repeatable(policy.rules(), &request);
        let snapshot = match bounds.max_retries {
            0 => None,
            _ => self.protocol.snapshot(&mut request, policy.replay_limit()),
        };
        // The service that was readied makes the first attempt; its clone, which was not, is
        // readied before each of the others.
        let service = self.inner.clone();
        let future = self.inner.call(request);
        let call = Call {
            service,
            classifier: deps.classifier.clone(),
            protocol: self.protocol.clone(),
            prepare: self.prepare.clone(),
            snapshot,
            repeatable,
            bounds,
            deadline: now + bounds.total,
            attempt_until: now
                + policy
                    .attempt_timeout()
                    .unwrap_or(bounds.total)
                    .min(bounds.total),
            attempts: 1,
            retries: 0,
            limited: 0,
            refreshed: false,
            previous_wait: std::time::Duration::ZERO,
            charge: None,
            last: None,
            dependency,
        };
        RetryFuture::new(call, State::Calling { future })
    }
}
