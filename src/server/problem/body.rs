use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use pin_project_lite::pin_project;

use crate::http::buffered::into_bytes;

pin_project! {
    /// The body of a response: the service's, or a problem document.
    #[derive(Debug)]
    pub struct ProblemBody<B> {
        #[pin]
        inner: Inner<B>,
    }
}

pin_project! {
    #[project = InnerProj]
    #[derive(Debug)]
    enum Inner<B> {
        Reply { #[pin] body: B },
        Problem { #[pin] body: Full<Bytes> },
    }
}

impl<B> ProblemBody<B> {
    pub(crate) fn reply(body: B) -> Self {
        let inner = Inner::Reply { body };
        Self { inner }
    }
}

impl<B> From<Bytes> for ProblemBody<B> {
    fn from(document: Bytes) -> Self {
        let body = Full::new(document);
        let inner = Inner::Problem { body };
        Self { inner }
    }
}

/// An empty body, whatever the service's is: layers of tower-http answer with one.
impl<B> Default for ProblemBody<B> {
    fn default() -> Self {
        Self::from(Bytes::new())
    }
}

impl<B: Body> Body for ProblemBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().inner.project() {
            InnerProj::Reply { body } => body.poll_frame(cx).map(|frame| frame.map(into_bytes)),
            InnerProj::Problem { body } => {
                let frame = body.poll_frame(cx);
                frame.map(|frame| frame.map(|frame| frame.map_err(|never| match never {})))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Reply { body } => body.is_end_stream(),
            Inner::Problem { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Reply { body } => body.size_hint(),
            Inner::Problem { body } => body.size_hint(),
        }
    }
}
