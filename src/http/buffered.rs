use std::{
    collections::VecDeque,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

/// Boxed, since most bodies have none.
#[cfg(feature = "server")]
pub(crate) type Trailers = Option<Box<HeaderMap>>;

pin_project! {
    /// The frames that a layer has read of a body, and then the rest of it: untouched, partly
    /// read, whole, or broken off.
    ///
    /// Layers that read replies return it, and layers that read requests pass it on, so that they fit
    /// above and below layers that have bodies of their own. Data, trailers, errors and the size come
    /// out as they went in.
    pub struct BufferedBody<B: Body> {
        // The data of the first frame, which often is the only one that is read.
        first: Option<Bytes>,
        more: More,
        #[pin]
        rest: Rest<B>,
    }
}

pin_project! {
    #[project = RestProj]
    enum Rest<B: Body> {
        Body { #[pin] body: B },
        Boxed { body: Pin<Box<B>> },
        // The size that the body announced last stays: a proxy frames its response by it.
        Ended { size: SizeHint, error: Option<B::Error> },
    }
}

/// The frames after the first one. Boxed, since most bodies have none: without it a call through
/// [`stacks::client`](crate::stacks::client) takes 60 instructions more (callgrind).
type More = Option<Box<VecDeque<Frame<Bytes>>>>;

/// On the extensions of a response whose body was not read to its end, so that it keeps its
/// connection until it is dropped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnreadBody;

impl<B: Body> BufferedBody<B> {
    /// Returns whether the body was read to its end and let go.
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.rest, Rest::Ended { .. })
    }

    /// Wraps a body of which nothing was read.
    #[must_use]
    pub fn new(body: B) -> Self {
        Self {
            first: None,
            more: None,
            rest: Rest::Body { body },
        }
    }

    /// Returns the data that was read and not yet passed on.
    pub(crate) fn data(&self) -> impl Iterator<Item = &Bytes> {
        let more = self.more.iter().flat_map(|more| more.iter());
        let more = more.filter_map(Frame::data_ref);
        self.first.iter().chain(more)
    }

    /// Returns the trailers, if they were read.
    pub(crate) fn trailers(&self) -> Option<&HeaderMap> {
        self.more.as_ref()?.back()?.trailers_ref()
    }
}

#[cfg(feature = "server")]
impl<B: Body> BufferedBody<B> {
    pub(crate) fn whole(data: Bytes, trailers: Trailers) -> Self {
        Self {
            more: boxed(trailers.map(|map| Frame::trailers(*map))),
            ..data.into()
        }
    }

    /// Puts the data that was read in front of the rest.
    pub(crate) fn partial(read: impl Iterator<Item = Bytes>, body: Pin<Box<B>>) -> Self {
        Self {
            first: None,
            more: boxed(read.map(Frame::data)),
            rest: Rest::Boxed { body },
        }
    }

    /// Puts the data that was read in front of an error.
    pub(crate) fn broken(read: impl Iterator<Item = Bytes>, error: B::Error) -> Self {
        Self {
            first: None,
            more: boxed(read.map(Frame::data)),
            rest: Rest::Ended {
                size: SizeHint::new(),
                error: Some(error),
            },
        }
    }
}

impl<B: Body> BufferedBody<B> {
    /// Reads one more frame, if there is one, and returns the length of its data.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Option<Option<usize>>> {
        let ended = Rest::Ended {
            size: SizeHint::new(),
            error: None,
        };
        // A body that was read is passed on, and one that is not `Unpin` can't be moved then.
        let mut body = match mem::replace(&mut self.rest, ended) {
            Rest::Body { body } => Box::pin(body),
            Rest::Boxed { body } => body,
            ended @ Rest::Ended { .. } => {
                self.rest = ended;
                return Poll::Ready(None);
            }
        };
        let frame = body.as_mut().poll_frame(cx);
        let size = body.size_hint();
        if !matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.rest = Rest::Boxed { body };
        }
        let error = match ready!(frame).map(into_bytes) {
            Some(Ok(frame)) => {
                let length = frame.data_ref().map(Bytes::len);
                match frame.into_data() {
                    Ok(data) if self.first.is_none() && self.more.is_none() => {
                        self.first = Some(data);
                    }
                    Ok(data) => self.push(Frame::data(data)),
                    Err(frame) => self.push(frame),
                }
                return Poll::Ready(Some(length));
            }
            Some(Err(error)) => Some(error),
            None => None,
        };
        self.rest = Rest::Ended { size, error };
        Poll::Ready(None)
    }

    fn push(&mut self, frame: Frame<Bytes>) {
        self.more.get_or_insert_default().push_back(frame);
    }
}

#[cfg(feature = "server")]
fn boxed(frames: impl IntoIterator<Item = Frame<Bytes>>) -> More {
    let frames: VecDeque<_> = frames.into_iter().collect();
    (!frames.is_empty()).then(|| Box::new(frames))
}

#[cfg(feature = "forrst")]
impl<B: Body> BufferedBody<B> {
    /// Returns all data, if the body was read to its end.
    pub(crate) fn complete(&self) -> Option<Bytes> {
        let Rest::Ended { error: None, .. } = self.rest else {
            return None;
        };
        let mut data = self.data();
        Some(match (data.next(), data.next()) {
            (None, _) => Bytes::new(),
            (Some(only), None) => only.clone(),
            _ => self.data().flatten().copied().collect(),
        })
    }

    /// Replaces the data of a complete body. Trailers stay.
    pub(crate) fn replace(self, data: Bytes) -> Self {
        let mut more = self.more;
        if let Some(more) = &mut more {
            more.retain(Frame::is_trailers);
        }
        Self {
            more,
            ..data.into()
        }
    }
}

/// A whole body without trailers.
impl<B: Body> From<Bytes> for BufferedBody<B> {
    fn from(data: Bytes) -> Self {
        Self {
            first: Some(data).filter(|data| !data.is_empty()),
            more: None,
            rest: Rest::Ended {
                size: SizeHint::with_exact(0),
                error: None,
            },
        }
    }
}

/// An empty body, whatever the wrapped one is: layers of tower-http answer with one.
impl<B: Body> Default for BufferedBody<B> {
    fn default() -> Self {
        Self::from(Bytes::new())
    }
}

impl<B: Body> Body for BufferedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        if let Some(data) = this.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if let Some(frame) = this.more.as_mut().and_then(|more| more.pop_front()) {
            return Poll::Ready(Some(Ok(frame)));
        }
        Poll::Ready(match this.rest.project() {
            RestProj::Body { body } => ready!(body.poll_frame(cx)).map(into_bytes),
            RestProj::Boxed { body } => ready!(body.as_mut().poll_frame(cx)).map(into_bytes),
            RestProj::Ended { error, .. } => error.take().map(Err),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none()
            && self.more.as_ref().is_none_or(|more| more.is_empty())
            && match &self.rest {
                Rest::Body { body } => body.is_end_stream(),
                Rest::Boxed { body } => body.is_end_stream(),
                Rest::Ended { error, .. } => error.is_none(),
            }
    }

    fn size_hint(&self) -> SizeHint {
        let read: u64 = self.data().map(|data| data.len() as u64).sum();
        let rest = match &self.rest {
            Rest::Body { body } => body.size_hint(),
            Rest::Boxed { body } => body.size_hint(),
            Rest::Ended { size, .. } => *size,
        };
        size_after(read, rest)
    }
}

/// Returns the size of a body of which `read` bytes come before the rest.
pub(crate) fn size_after(read: u64, rest: SizeHint) -> SizeHint {
    let mut hint = SizeHint::new();
    hint.set_lower(rest.lower().saturating_add(read));
    if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(read)) {
        hint.set_upper(upper);
    }
    hint
}

opaque_debug! { BufferedBody<B: Body>, self, read = self.data().map(Bytes::len).sum::<usize>() }

pub(crate) fn into_bytes<D: Buf, E>(frame: Result<Frame<D>, E>) -> Result<Frame<Bytes>, E> {
    frame.map(|frame| frame.map_data(|mut data| data.copy_to_bytes(data.remaining())))
}

#[cfg(all(test, feature = "server"))]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    /// Servers make a length header of it.
    #[tokio::test]
    async fn i_8_a_body_knows_its_size_and_its_end() {
        let body = BufferedBody::<Full<Bytes>>::from(Bytes::from("four"));
        assert_eq!(body.size_hint().exact(), Some(4));
        assert!(!body.is_end_stream());
        for empty in [
            BufferedBody::from(Bytes::new()),
            BufferedBody::<Full<Bytes>>::default(),
        ] {
            let size = empty.size_hint().exact();
            assert_eq!((size, empty.is_end_stream()), (Some(0), true));
        }
        let inner = BufferedBody::new(Full::<Bytes>::from("four"));
        assert_eq!(
            (inner.size_hint().exact(), inner.is_end_stream()),
            (Some(4), false)
        );
        let trailers = Some(Box::default());
        let mut trailing = BufferedBody::<Full<Bytes>>::whole(Bytes::new(), trailers);
        assert!(!trailing.is_end_stream(), "there are trailers");
        let frame = trailing.frame().await.unwrap().unwrap();
        assert!(frame.is_trailers());
        assert!(trailing.is_end_stream());
    }
}
