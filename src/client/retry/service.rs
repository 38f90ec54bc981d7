use std::{
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use tokio::time::Instant;
use tower::Service;

use super::{
    HttpRequests, PrepareAttempt, ReplayLimits, ReplayRequests, RetryFuture,
    call::{Call, Counted},
    future::State,
    requests::{FirstAttempt, Opened},
};
use crate::{
    call::{attempt_headers::Origin, release},
    classify::{Classify, Standard},
    dependency::{ByAuthority, CacheEntry, Dependency, DependencyCache, LastSlot, Locate},
    error::BoxError,
};

/// The service of a [`RetryLayer`](super::RetryLayer).
///
/// # Clone
///
/// All state is in the registry, so clones retry out of the same budget.
#[derive(Debug, Clone)]
pub struct Retry<S, C = Standard, L = ByAuthority, P = HttpRequests, H = ()> {
    pub(super) inner: S,
    pub(super) cache: DependencyCache<C, L, Route<S>>,
    pub(super) slot: LastSlot,
    pub(super) requests: P,
    pub(super) prepare: H,
}

/// State that the calls of one service to one dependency share.
#[derive(Debug)]
pub(super) struct Route<S> {
    pub(super) dependency: Arc<Dependency>,
    /// Cloned by calls that are retried, so that others need not clone the service.
    pub(super) spare: Arc<Mutex<S>>,
}

impl<S> Route<S> {
    /// Turns a route to another dependency, in place if no call is on it.
    fn to(dependency: Arc<Dependency>, mut route: Arc<Self>) -> Arc<Self> {
        match Arc::get_mut(&mut route) {
            Some(route) => route.dependency = dependency,
            None => {
                let spare = Arc::clone(&route.spare);
                route = Arc::new(Self { dependency, spare });
            }
        }
        route
    }
}

impl<S> CacheEntry for Route<S> {
    fn dependency(&self) -> &Dependency {
        &self.dependency
    }
}

impl<S, C, L, P, H, Req> Service<Req> for Retry<S, C, L, P, H>
where
    S: Service<Req> + Clone,
    S::Error: Into<BoxError>,
    C: Classify<Req, S::Response> + Clone,
    L: Locate<Req>,
    P: ReplayRequests<Req, S::Response>,
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
        let rules = policy.rules();
        let repeatable = self.requests.repeatable(&request, rules)
            && deps.locate.repeatable(rules, &request)
            && deps.classifier.repeatable(rules, &request);
        let Opened {
            mut limits,
            snapshot,
            origin,
            caller,
        } = self
            .requests
            .open(&mut request, policy, &ReplayLimits::of(dependency));
        let mut began = caller.began;
        let mut counted = Counted::Elsewhere;
        // A call that passes a retry of the caller's on is no original.
        if origin == Origin::Original && limits.hop.previous == 0 && !caller.is_late {
            counted = Counted::In(dependency.count_original(Instant::now(), &mut self.slot));
            if deps.marks_originals() {
                self.requests.mark_counted(&mut request);
            }
        }
        let is_other = limits.total != policy.total_timeout();
        if is_other || limits.hop.passes_on {
            limits.hop.is_cut = limits.total < policy.total_timeout();
            let now = began.unwrap_or_else(Instant::now);
            let limited = !limits.is_unlimited();
            if is_other && limited {
                began = Some(now);
            }
            let first = FirstAttempt {
                deadline: limited.then(|| now + limits.total),
                hop: limits.hop,
            };
            self.requests.mark_first(&mut request, first, rules);
        }
        let route = Arc::clone(route);
        let state = match caller.is_late {
            true => {
                release(inner);
                State::Late
            }
            // The service that was readied makes the first attempt. One that was not is readied
            // before each of the others.
            false => State::Calling {
                future: inner.call(request),
            },
        };
        RetryFuture {
            state,
            timer: None,
            call: Call {
                route,
                classifier: deps.classifier.clone(),
                requests: self.requests.clone(),
                prepare: self.prepare.clone(),
                snapshot,
                repeatable,
                counted,
                limits,
                began,
                nested: caller.nested,
                attempt_limit: None,
                held: false,
                retried: None,
            },
        }
    }
}
