use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Sleep, sleep};
use tower::Service;

use super::CircuitBreakerFuture;
use crate::{
    call::{Attempt, CallDeadline, release},
    classify::{Classify, Standard},
    dependency::{
        BreakerState, ByAuthority, Dependencies, Dependency, DependencyCache, Locate, Permit,
    },
    error::{BoxError, Refused},
};

/// The longest that a service is not ready before it looks at its breaker again, which a person may
/// have closed.
const LONGEST_WAIT: Duration = Duration::from_millis(250);

/// The service of a [`CircuitBreakerLayer`](super::CircuitBreakerLayer).
///
/// # Clone
///
/// All state is in the registry, so clones share the breaker.
#[derive(Debug, Clone)]
pub struct CircuitBreaker<S, C = Standard, L = ByAuthority> {
    pub(crate) inner: S,
    pub(crate) cache: DependencyCache<C, L>,
    pub(super) endpoint: Option<Endpoint>,
}

/// The one dependency of a breaker that is seen in `poll_ready`.
#[derive(Debug)]
pub(super) struct Endpoint {
    name: Arc<str>,
    /// The wait for the next probe.
    wait: Option<Pin<Box<Sleep>>>,
}

impl Endpoint {
    pub(super) fn new(name: Arc<str>) -> Self {
        Self { name, wait: None }
    }

    /// Waits until the breaker may admit a call.
    fn poll(&mut self, dependency: &Dependency, cx: &mut Context<'_>) -> Poll<()> {
        while let BreakerState::Open(left) = dependency.status().breaker
            && !left.is_zero()
        {
            let left = left.min(LONGEST_WAIT);
            let wait = self.wait.get_or_insert_with(|| Box::pin(sleep(left)));
            ready!(wait.as_mut().poll(cx));
            self.wait = None;
        }
        self.wait = None;
        Poll::Ready(())
    }
}

impl Clone for Endpoint {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.name))
    }
}

impl<S, C, L, Req> Service<Req> for CircuitBreaker<S, C, L>
where
    S: Service<Req> + Clone,
    S::Error: Into<BoxError>,
    C: Classify<Req, S::Response> + Clone,
    L: Locate<Req>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = CircuitBreakerFuture<S::Future, C, Req>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if let Some(endpoint) = &mut self.endpoint {
            let dependency = self.cache.deps.get(&endpoint.name);
            ready!(endpoint.poll(&dependency, cx));
        }
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline(always)]
    fn call(&mut self, request: Req) -> Self::Future {
        let (deps, dependency) = self.cache.find(&request);
        match admit::<_, _, _, S::Response>(deps, dependency, &request) {
            Ok(permit) => {
                let classifier = deps.classifier.clone();
                CircuitBreakerFuture::called(self.inner.call(request), permit, classifier)
            }
            Err(refused) => {
                release(&mut self.inner);
                CircuitBreakerFuture::refused(refused)
            }
        }
    }
}

/// Admits a call, or refuses it.
#[inline(always)]
pub(crate) fn admit<C, L, Req, Res>(
    deps: &Dependencies<C, L>,
    dependency: &Arc<Dependency>,
    request: &Req,
) -> Result<Permit, Refused>
where
    C: Classify<Req, Res>,
{
    let extensions = || deps.classifier.request_extensions(request);
    let is_retry = || extensions().is_some_and(|it| it.get::<Attempt>().is_some());
    let permit = dependency.admit(is_retry);
    let permit = permit.inspect_err(|refused| dependency.tell_refused(refused.kind()))?;
    Ok(permit.cut(extensions().is_some_and(CallDeadline::is_cut)))
}
