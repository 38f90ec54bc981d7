use std::{
    collections::VecDeque,
    fmt, mem,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// The body of a response that was looked into: what was read of it, and then the rest.
pub struct PeekBody<B: Body> {
    frames: VecDeque<Frame<Bytes>>,
    rest: Rest<B>,
}

/// What comes after the frames that were read.
enum Rest<B: Body> {
    Body(B),
    Failed(B::Error),
    Nothing,
}

/// An error is never pinned.
impl<B: Body + Unpin> Unpin for PeekBody<B> {}

impl<B: Body> PeekBody<B> {
    pub(crate) fn untouched(body: B) -> Self {
        Self {
            frames: VecDeque::new(),
            rest: Rest::Body(body),
        }
    }

    /// What was read so far.
    pub(super) fn frames(&self) -> &VecDeque<Frame<Bytes>> {
        &self.frames
    }
}

impl<B> PeekBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    /// Reads one more frame, if there is one.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Option<&Frame<Bytes>>> {
        let Rest::Body(body) = &mut self.rest else {
            return Poll::Ready(None);
        };
        match Pin::new(body).poll_frame(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Ok(frame))) => self.frames.push_back(frame),
            Poll::Ready(Some(Err(error))) => {
                self.rest = Rest::Failed(error);
                return Poll::Ready(None);
            }
            Poll::Ready(None) => {
                self.rest = Rest::Nothing;
                return Poll::Ready(None);
            }
        }
        Poll::Ready(self.frames.back())
    }

    /// Lets go of a body that has come to its end, and so of its connection.
    pub(super) fn settle(&mut self) {
        if matches!(&self.rest, Rest::Body(body) if body.is_end_stream()) {
            self.rest = Rest::Nothing;
        }
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
        if let Some(frame) = this.frames.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        match &mut this.rest {
            Rest::Body(body) => Pin::new(body).poll_frame(cx),
            rest => match mem::replace(rest, Rest::Nothing) {
                Rest::Failed(error) => Poll::Ready(Some(Err(error))),
                _ => Poll::Ready(None),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty()
            && match &self.rest {
                Rest::Body(body) => body.is_end_stream(),
                Rest::Failed(_) => false,
                Rest::Nothing => true,
            }
    }

    fn size_hint(&self) -> SizeHint {
        let data = self.frames.iter().filter_map(Frame::data_ref);
        let read: u64 = data.map(|data| data.len() as u64).sum();
        let rest = match &self.rest {
            Rest::Body(body) => body.size_hint(),
            Rest::Failed(_) => SizeHint::new(),
            Rest::Nothing => SizeHint::with_exact(0),
        };
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(read));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(read)) {
            hint.set_upper(upper);
        }
        hint
    }
}

impl<B> fmt::Debug for PeekBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeekBody")
            .field("frames", &self.frames.len())
            .finish_non_exhaustive()
    }
}
