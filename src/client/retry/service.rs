use std::{
    sync::Arc,
    task::{Context, Poll},
};

use tokio::time::Instant;
use tower::Service;

use super::{
    HttpRequests, PrepareAttempt, ReplayLimits, ReplayRequests, RetryFuture,
    call::{Call, Counted, Retried},
    future::State,
    requests::{FirstAttempt, Opened},
};
use crate::{
    call::{attempt_headers::Origin, release},
    classify::{Classify, Standard},
    client::timer::Timer,
    dependency::{ByAuthority, DependencyCache, LastSlot, Locate, Route},
    error::{BoxError, Refused},
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
    /// No layer above charges repeats of other loops.
    pub(super) charges_repeats: bool,
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
        let charges_repeats = self.charges_repeats;
        let Self { inner, cache, .. } = self;
        let (deps, route) = cache.find_or(&request, |dependency, before| {
            Route::to(dependency, before, inner)
        });
        let dependency = &route.dependency;
        let policy = dependency.policy();
        let rules = policy.rules();
        let located = || deps.locate.repeatable(rules, &request);
        let repeatable = self.requests.repeatable(&request, rules, located)
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
                self.requests.mark_counted(&mut request, dependency);
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
        let begun = |state, retried| RetryFuture {
            call: Call {
                route: Arc::clone(route),
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
                retried,
            },
            state,
            timer: Timer::default(),
        };
        let repeat = match origin {
            Origin::Repeated(previous) if charges_repeats => Some(previous),
            _ => None,
        };
        let is_late = caller.is_late;
        if is_late || repeat.is_some() {
            let charge = |previous| {
                let charge = dependency.charge_repeat()?;
                self.requests
                    .mark_charged(&mut request, dependency, previous);
                Ok(Box::new(Retried::charged(charge)))
            };
            let charged = repeat.map(charge).transpose();
            let (state, retried) = begin_other(inner, request, charged, is_late);
            return begun(state, retried);
        }
        // The service that was readied makes the first attempt. One that was not is readied before
        // each of the others.
        let future = inner.call(request);
        begun(State::Calling { future }, None)
    }
}

/// Begins a call whose time is over, or one that is a repeat of a loop above.
#[cold]
#[inline(never)]
#[allow(clippy::type_complexity, reason = "the parts of one future")]
fn begin_other<S, G, Req>(
    inner: &mut S,
    request: Req,
    charged: Result<Option<Box<Retried<S, S::Response>>>, Refused>,
    is_late: bool,
) -> (
    State<S::Future, G, Req>,
    Option<Box<Retried<S, S::Response>>>,
)
where
    S: Service<Req> + Clone,
{
    let (state, retried) = match charged {
        Ok(retried) if !is_late => {
            let future = inner.call(request);
            return (State::Calling { future }, retried);
        }
        Ok(retried) => (State::Late, retried),
        Err(refused) => {
            let refused = Box::new(refused);
            (State::Refused { refused }, None)
        }
    };
    release(inner);
    (state, retried)
}
