use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::Request;
use tokio::time::{Instant, sleep_until};
use tower::Service;

use super::{
    RetryAfterFuture,
    future::{Held, HeldState, State, refused, wake_at},
};
use crate::{
    call::{CallDeadline, CallerContext, RetryOverride, hop::refresh_deadline, release},
    classify::{Classify, Standard},
    dependency::{ByAuthority, Dependency, DependencyCache, Hold, Locate},
    error::{BoxError, Refusal},
    http::grpc::{grpc_timeout, is_grpc},
    policy::CallLimits,
};

/// The service of a [`RetryAfterLayer`](super::RetryAfterLayer).
///
/// # Clone
///
/// All state is in the registry, so clones share what a dependency asked for.
#[derive(Debug, Clone)]
pub struct RetryAfter<S, C = Standard, L = ByAuthority> {
    pub(crate) inner: S,
    pub(super) cache: DependencyCache<C, L>,
}

impl<S, C, L, B> Service<Request<B>> for RetryAfter<S, C, L>
where
    S: Service<Request<B>> + Clone,
    S::Error: Into<BoxError>,
    C: Classify<Request<B>, S::Response> + Clone,
    L: Locate<Request<B>>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = RetryAfterFuture<S, C, Request<B>>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline(always)]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (deps, dependency) = self.cache.find(&request);
        let (dependency, classifier) = (Arc::clone(dependency), deps.classifier.clone());
        if let Some(hold) = dependency.hold() {
            let state = self.hold(request, &dependency, hold);
            return RetryAfterFuture::new(state, dependency, classifier);
        }
        let future = self.inner.call(request);
        RetryAfterFuture::new(State::Called { future }, dependency, classifier)
    }
}

impl<S: Clone, C, L> RetryAfter<S, C, L> {
    /// Holds a call back, or refuses it.
    #[cold]
    fn hold<B>(
        &mut self,
        request: Request<B>,
        dependency: &Arc<Dependency>,
        hold: Hold,
    ) -> State<S, Request<B>>
    where
        S: Service<Request<B>>,
    {
        release(&mut self.inner);
        let deadline = deadline(dependency, &request);
        let place = dependency.place();
        let at = match place {
            Some(_) => wake_at(dependency, hold, deadline),
            None => Err(refused(dependency, Refusal::RetryAfter, hold)),
        };
        match at {
            Ok(at) => State::Held {
                held: Box::new(Held {
                    wait: Some(Box::pin(sleep_until(at))),
                    place,
                    deadline,
                    state: HeldState::Waits {
                        service: self.inner.clone(),
                        request,
                    },
                    refresh: refresh_deadline,
                }),
            },
            Err(refused) => State::Refused { refused },
        }
    }
}

/// Returns the end of the call's time: the one that a retry loop above set, or else by overrides,
/// headers and policy.
fn deadline<B>(dependency: &Dependency, request: &Request<B>) -> Instant {
    let extensions = request.extensions();
    CallDeadline::of(extensions).unwrap_or_else(|| {
        let overrides = extensions.get::<RetryOverride>();
        let total = CallLimits::of(dependency.policy(), overrides).total;
        let headers = request.headers();
        let timeout = headers.get("grpc-timeout").filter(|_| is_grpc(headers));
        let timeout = timeout.and_then(|value| grpc_timeout(value.as_bytes()));
        let deadline = Instant::now() + timeout.unwrap_or(total).min(total);
        let caller = CallerContext::of(Some(extensions)).and_then(|caller| caller.deadline());
        caller.map_or(deadline, |caller| deadline.min(caller))
    })
}
