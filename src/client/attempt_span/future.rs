use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

use super::span::OpenSpan;
use crate::{classify::Classify, dependency::Dependency, error::BoxError, http::ResponseHead};

pin_project! {
    /// The future of an [`AttemptSpan`](super::AttemptSpan) service.
    #[must_use = "futures do nothing unless polled"]
    pub struct AttemptSpanFuture<F, C, Req> {
        #[pin]
        future: F,
        // The span, until it has ended.
        open: Option<OpenSpan>,
        dependency: Arc<Dependency>,
        classifier: C,
        request: PhantomData<fn(Req)>,
    }
}

impl<F, C, Req> AttemptSpanFuture<F, C, Req> {
    pub(super) fn new(
        future: F,
        open: OpenSpan,
        dependency: Arc<Dependency>,
        classifier: C,
    ) -> Self {
        Self {
            future,
            open: Some(open),
            dependency,
            classifier,
            request: PhantomData,
        }
    }
}

impl<F, C, Req, T, E> Future for AttemptSpanFuture<F, C, Req>
where
    F: Future<Output = Result<T, E>>,
    T: ResponseHead,
    E: Into<BoxError>,
    C: Classify<Req, T>,
{
    type Output = Result<T, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Some(open) = this.open.as_ref().filter(|open| !open.is_disabled()) else {
            return this.future.poll(cx).map_err(Into::into);
        };
        let future = this.future;
        let mut polled = open.span().in_scope(|| future.poll(cx)).map_err(Into::into);
        if let Poll::Ready(result) = &mut polled
            && let Some(mut open) = this.open.take()
        {
            let verdict = this
                .dependency
                .classify_for_all(this.classifier, result.as_mut());
            open.end(result.as_ref().ok(), &verdict);
        }
        polled
    }
}

opaque_debug! { AttemptSpanFuture<F, C, Req> }
