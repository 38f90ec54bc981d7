use crate::http::size_hint::size_after;
use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

/// The body of a response that was looked into: the frames that were read, and then the rest.
pub struct PeekBody<B: Body> {
    /// The data of the first frame, which often is the only one that is read.
    first: Option<Bytes>,
    /// Those after it.
    frames: VecDeque<Frame<Bytes>>,
    rest: Rest<B>,
}

/// The part after the frames that were read.
enum Rest<B: Body> {
    Body(B),
    /// Nothing, or an error. The size that the body announced last stays: how a proxy frames a
    /// response depends on it.
    Ended(SizeHint, Option<B::Error>),
}

/// An error is never pinned.
impl<B: Body + Unpin> Unpin for PeekBody<B> {}

impl<B: Body> PeekBody<B> {
    pub(crate) fn untouched(body: B) -> Self {
        Self {
            first: None,
            frames: VecDeque::new(),
            rest: Rest::Body(body),
        }
    }

    /// Returns the data that was read so far.
    pub(super) fn data(&self) -> impl Iterator<Item = &Bytes> {
        let more = self.frames.iter().filter_map(Frame::data_ref);
        self.first.iter().chain(more)
    }

    /// Returns the trailers, if they were read.
    pub(super) fn trailers(&self) -> Option<&HeaderMap> {
        self.frames.back()?.trailers_ref()
    }
}

impl<B> PeekBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    /// Reads one more frame, if there is one, and returns the size of its data.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Option<Option<usize>>> {
        let Rest::Body(body) = &mut self.rest else {
            return Poll::Ready(None);
        };
        let error = match ready!(Pin::new(&mut *body).poll_frame(cx)) {
            Some(Ok(frame)) => {
                let length = frame.data_ref().map(Bytes::len);
                match frame.into_data() {
                    Ok(data) if self.first.is_none() && self.frames.is_empty() => {
                        self.first = Some(data);
                    }
                    Ok(data) => self.frames.push_back(Frame::data(data)),
                    Err(frame) => self.frames.push_back(frame),
                }
                return Poll::Ready(Some(length));
            }
            Some(Err(error)) => Some(error),
            None => None,
        };
        self.rest = Rest::Ended(body.size_hint(), error);
        Poll::Ready(None)
    }
}

/// For layers that rewrite a body.
#[cfg(feature = "forrst")]
impl<B: Body> PeekBody<B> {
    /// Returns all data, if it was read to a good end.
    pub(crate) fn whole(&self) -> Option<Bytes> {
        let Rest::Ended(_, None) = self.rest else {
            return None;
        };
        let mut data = self.data();
        Some(match (data.next(), data.next()) {
            (None, _) => Bytes::new(),
            (Some(only), None) => only.clone(),
            _ => self.data().flatten().copied().collect(),
        })
    }

    /// Replaces the data. Trailers stay.
    pub(crate) fn replace(&mut self, data: Bytes) {
        self.frames.retain(Frame::is_trailers);
        self.first = Some(data);
        self.rest = Rest::Ended(SizeHint::with_exact(0), None);
    }
}

impl<B> Body for PeekBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        if let Some(data) = this.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if let Some(frame) = this.frames.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        match &mut this.rest {
            Rest::Body(body) => Pin::new(body).poll_frame(cx),
            Rest::Ended(_, error) => Poll::Ready(error.take().map(Err)),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none()
            && self.frames.is_empty()
            && match &self.rest {
                Rest::Body(body) => body.is_end_stream(),
                Rest::Ended(_, error) => error.is_none(),
            }
    }

    fn size_hint(&self) -> SizeHint {
        let read: u64 = self.data().map(|data| data.len() as u64).sum();
        let rest = match &self.rest {
            Rest::Body(body) => body.size_hint(),
            Rest::Ended(hint, _) => *hint,
        };
        size_after(read, rest)
    }
}

impl<B> fmt::Debug for PeekBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeekBody")
            .field("read", &self.data().map(Bytes::len).sum::<usize>())
            .finish_non_exhaustive()
    }
}
