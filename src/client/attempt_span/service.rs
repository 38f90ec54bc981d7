use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::Request;
use tower::Service;

use super::{AttemptSpanFuture, Propagate, span::OpenSpan};
use crate::{
    classify::{Classify, Standard},
    client::located::CallLocated,
    dependency::{ByAuthority, Dependency, DependencyCache, Locate},
    error::BoxError,
    http::ResponseHead,
};

/// The service of an [`AttemptSpanLayer`](super::AttemptSpanLayer).
///
/// # Clone
///
/// There is no state.
#[derive(Debug, Clone)]
pub struct AttemptSpan<S, C = Standard, L = ByAuthority, P = ()> {
    pub(super) inner: S,
    pub(super) cache: DependencyCache<C, L>,
    pub(super) propagator: P,
}

impl<S, C, L, P, B> Service<Request<B>> for AttemptSpan<S, C, L, P>
where
    S: Service<Request<B>>,
    S::Response: ResponseHead,
    S::Error: Into<BoxError>,
    C: Classify<Request<B>, S::Response> + Clone,
    L: Locate<Request<B>>,
    P: Propagate,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = AttemptSpanFuture<S::Future, C, Request<B>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let dependency = Arc::clone(self.cache.find(&request).1);
        self.call_located(request, &dependency)
    }
}

impl<S, C, L, P, B> CallLocated<Request<B>> for AttemptSpan<S, C, L, P>
where
    S: Service<Request<B>>,
    S::Response: ResponseHead,
    S::Error: Into<BoxError>,
    C: Classify<Request<B>, S::Response> + Clone,
    L: Locate<Request<B>>,
    P: Propagate,
{
    fn call_located(
        &mut self,
        mut request: Request<B>,
        dependency: &Arc<Dependency>,
    ) -> Self::Future {
        let classifier = self.cache.deps.classifier.clone();
        let open = OpenSpan::of(&request, dependency.name());
        self.propagator
            .propagate(open.span(), request.headers_mut());
        let future = open.span().in_scope(|| self.inner.call(request));
        AttemptSpanFuture::new(future, open, Arc::clone(dependency), classifier)
    }
}
