use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::Request;
use tokio::time::Instant;
use tower::Service;

use super::{
    HedgeFuture,
    call::{Call, HedgeLimits, Plan, Watched},
};
use crate::{
    call::{
        Attempt, CallDeadline, CallerContext, RetryOverride,
        attempt_headers::{Origin, origin_of},
        budget_mark::{BudgetMark, ExtensionsKind},
        hop::Hop,
    },
    classify::{Classify, Standard},
    client::{
        located::CallLocated,
        pool::Pooled,
        retry::{HttpRequests, HttpSnapshot, ReplayBody, ReplayLimits, snapshot},
    },
    dependency::{ByAuthority, Dependency, DependencyCache, LastSlot, Locate, Route},
    error::BoxError,
    http::{ResponseHead, grpc::is_grpc},
    policy::CallLimits,
    telemetry::Unhedged,
};

/// The service of a [`HedgeLayer`](super::HedgeLayer).
///
/// # Clone
///
/// All state is in the registry, so clones share latencies and budget.
#[derive(Debug, Clone)]
pub struct Hedge<S, C = Standard, L = ByAuthority> {
    pub(super) inner: S,
    pub(super) cache: DependencyCache<C, L, Route<S>>,
    pub(super) slot: LastSlot,
    pub(super) requests: HttpRequests,
    /// No layer above counts originals, or their marks tell.
    pub(super) counts: bool,
}

impl<S, C, L, B> Service<Request<B>> for Hedge<S, C, L>
where
    S: Service<Request<B>> + Clone,
    S::Response: ResponseHead,
    S::Error: Into<BoxError>,
    C: Classify<Request<B>, S::Response> + Clone,
    L: Locate<Request<B>>,
    B: ReplayBody,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = HedgeFuture<S, C, B>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline(always)]
    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        // Most registries hedge nothing, and their calls pay for this look alone.
        let call = match self.cache.deps.hedges() {
            true => self.watch(&mut request, None),
            false => None,
        };
        HedgeFuture::new(self.inner.call(request), call)
    }
}

impl<S, C, L, B> CallLocated<Request<B>> for Hedge<S, C, L>
where
    S: CallLocated<Request<B>> + Clone,
    S::Response: ResponseHead,
    S::Error: Into<BoxError>,
    C: Classify<Request<B>, S::Response> + Clone,
    L: Locate<Request<B>>,
    B: ReplayBody,
{
    #[inline(always)]
    fn call_located(&mut self, request: Request<B>, dependency: &Arc<Dependency>) -> Self::Future {
        // A request that is not looked at is moved once less.
        if !self.cache.deps.hedges() {
            return HedgeFuture::new(self.inner.call_located(request, dependency), None);
        }
        self.call_watched(request, dependency)
    }
}

impl<S, C, L> Hedge<S, C, L> {
    /// Inlined, as the future of several layers that a function returns is moved as a whole: 90
    /// instructions more for a call through `stacks::client` (callgrind).
    #[inline(always)]
    fn call_watched<B>(
        &mut self,
        mut request: Request<B>,
        dependency: &Arc<Dependency>,
    ) -> HedgeFuture<S, C, B>
    where
        S: CallLocated<Request<B>> + Clone,
        S::Response: ResponseHead,
        C: Classify<Request<B>, S::Response> + Clone,
        L: Locate<Request<B>>,
        B: ReplayBody,
    {
        let call = self.watch(&mut request, Some(dependency));
        HedgeFuture::new(self.inner.call_located(request, dependency), call)
    }

    /// Prepares a call whose latency is measured, unless its policy does not hedge, or it is a hedge
    /// itself. Looks its dependency up unless a layer above has found it.
    #[inline(never)]
    fn watch<B>(
        &mut self,
        request: &mut Request<B>,
        found: Option<&Arc<Dependency>>,
    ) -> Option<Call<S, C, B>>
    where
        S: Service<Request<B>> + Clone,
        S::Response: ResponseHead,
        C: Classify<Request<B>, S::Response> + Clone,
        L: Locate<Request<B>>,
        B: ReplayBody,
    {
        let Self { inner, cache, .. } = self;
        let to = |dependency, before| Route::to(dependency, before, inner);
        let (deps, route) = match found {
            Some(dependency) => cache.of(dependency, to),
            None => cache.find_or(request, to),
        };
        let dependency = &route.dependency;
        let latency = dependency.latency()?;
        let kind = ExtensionsKind::of(request.extensions());
        let attempt = match kind {
            ExtensionsKind::Other => request.extensions().get::<Attempt>(),
            _ => None,
        };
        if attempt.is_some_and(Attempt::is_hedge) {
            return None;
        }
        let rules = dependency.policy().rules();
        let repeatable = rules.repeatable(request, self.requests.keys)
            && deps.classifier.repeatable(rules, request);
        let caller = CallerContext::of(match kind {
            ExtensionsKind::Other => Some(request.extensions()),
            _ => None,
        });
        let serves_retry = caller.as_ref().is_some_and(CallerContext::serves_retry);
        let mut watched = Pooled::<Watched>::take();
        watched.begin(latency.delay());
        let plan = match watched.delay {
            None => Plan::Done,
            Some(_) if !repeatable => Plan::Never(Unhedged::NotIdempotent),
            Some(_) => plan(request, kind, caller, dependency, &mut watched.limits),
        };
        let previous = match &plan {
            Plan::Hedge(snapshot) => Some(snapshot.attempt().previous),
            _ => None,
        };
        let is_original =
            || origin_of(request, dependency.registry(), kind, previous) == Origin::Original;
        if self.counts && !serves_retry && is_original() {
            watched.counted = Some(dependency.count_original(Instant::now(), &mut self.slot));
            if deps.marks_originals() {
                request
                    .extensions_mut()
                    .insert(BudgetMark(dependency.registry()));
            }
        }
        let (route, classifier) = (Arc::clone(route), deps.classifier.clone());
        Some(Call::new(route, classifier, self.requests, plan, watched))
    }
}

/// Makes a copy of a request for its hedge, and finds the limits of that.
fn plan<B: ReplayBody>(
    request: &mut Request<B>,
    kind: ExtensionsKind,
    caller: Option<CallerContext>,
    dependency: &Arc<Dependency>,
    hedge: &mut HedgeLimits,
) -> Plan<HttpSnapshot<B::Recording>> {
    let (mut overrides, mut previous, mut deadline) = (None, None, None);
    let mut hop = Hop::default();
    let extensions = (kind == ExtensionsKind::Other).then(|| request.extensions());
    if let Some(extensions) = extensions {
        overrides = extensions.get::<RetryOverride>();
        previous = extensions.get::<Attempt>().copied();
        deadline = CallDeadline::of(extensions);
        let of_first = || extensions.get().map(|call: &CallDeadline| call.hop);
        hop = previous
            .map(|attempt: Attempt| attempt.hop)
            .or_else(of_first)
            .unwrap_or_default();
    }
    let mut limits = CallLimits::of(dependency.policy(), overrides);
    // A retry loop above that told the end of the call's time kept it within its caller's.
    if deadline.is_none()
        && let Some(caller) = caller
    {
        let policy = dependency.policy();
        if limits.keep_within(policy, &caller, Instant::now()).is_err() {
            return Plan::Never(Unhedged::Deadline);
        }
        limits.hop.is_cut = limits.total < policy.total_timeout();
        (deadline, hop) = (caller.deadline(), limits.hop);
    }
    let off = overrides.is_some_and(|overrides| overrides.max_retries == Some(0));
    let counted = dependency
        .policy()
        .hedge()
        .is_some_and(|hedge| hedge.counted);
    let last = previous.map_or(0, |attempt| attempt.previous()) >= limits.max_retries;
    if off || hop.chain_stop || (counted && last) {
        return Plan::Never(Unhedged::Off);
    }
    let Some(snapshot) = snapshot(request, kind, &ReplayLimits::of(dependency)) else {
        return Plan::Never(Unhedged::NotReplayable);
    };
    let timeout = snapshot
        .attempt()
        .timeout
        .filter(|_| is_grpc(request.headers()));
    let total = limits.total;
    *hedge = HedgeLimits {
        total: timeout.map_or(total, |timeout| timeout.min(total)),
        previous,
        deadline,
        hop,
    };
    Plan::Hedge(snapshot)
}
