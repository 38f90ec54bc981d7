use std::{
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use tokio::time::Instant;
use tower::Service;

use super::{
    Http, PrepareAttempt, Protocol, ReplayLimits, RetryFuture,
    call::{Call, Route},
    future::State,
};
use crate::policy::CallLimits;
use crate::{
    classify::{Classify, Standard},
    dependency::{ByAuthority, DependencyCache, LastSlot, Locate},
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
    pub(super) cache: DependencyCache<C, L, Route<S>>,
    pub(super) slot: LastSlot,
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

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline(never)]
    fn call(&mut self, mut request: Req) -> Self::Future {
        let Self { inner, cache, .. } = self;
        let (deps, route) = cache.find_or(&request, |dependency, before| match before {
            Some(route) => Route::to(dependency, route),
            None => {
                let spare = Arc::new(Mutex::new(inner.clone()));
                Arc::new(Route { dependency, spare })
            }
        });
        let dependency = &route.dependency;
        let policy = dependency.policy();
        let marks = self.protocol.marks(&request);
        let mut bounds = CallLimits::of(policy, self.protocol.wish(&request, marks));
        let repeatable = deps.classifier.repeatable(policy.rules(), &request);
        let snapshot = match bounds.max_retries {
            0 => None,
            _ => self
                .protocol
                .snapshot(&mut request, marks, &ReplayLimits::of(dependency)),
        };
        if let Some(limit) = self.protocol.limit(&request, snapshot.as_ref()) {
            bounds.total = bounds.total.min(limit);
        }
        let mut began = None;
        if self
            .protocol
            .is_original(&request, marks, snapshot.as_ref())
        {
            let now = Instant::now();
            began = Some(now);
            dependency.count_original(now, &mut self.slot);
            if deps.marks_originals() {
                self.protocol.mark_counted(&mut request);
            }
        }
        let route = Arc::clone(route);
        // The service that was readied makes the first attempt. One that was not is readied before
        // each of the others.
        let future = inner.call(request);
        RetryFuture {
            state: State::Calling { future },
            timer: None,
            call: Call {
                route,
                classifier: deps.classifier.clone(),
                protocol: self.protocol.clone(),
                prepare: self.prepare.clone(),
                snapshot,
                repeatable,
                bounds,
                began,
                attempt_until: None,
                past: None,
            },
        }
    }
}
