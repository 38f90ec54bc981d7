use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::{AnyBody, ReplayBuffer, recorded_frames::Replay};

/// The body of one attempt: what was recorded when it began, and then the rest of the original, whose
/// frames it leaves in the buffer.
///
/// Until the recorded frames were sent it announces the size that the original did: how a request
/// is framed depends on it, and a transport that knows the exact size may have no place for trailers.
pub(crate) struct RecordingBody<B: Body> {
    buffer: Arc<ReplayBuffer<B>>,
    replay: Replay,
    /// The size of the replay and the rest.
    hint: SizeHint,
    /// The turn in which it reads the rest. There is none if all of the body was recorded.
    turn: Option<u32>,
}

impl<B: Body> RecordingBody<B> {
    pub(super) fn new(buffer: &Arc<ReplayBuffer<B>>, replay: Replay, turn: Option<u32>) -> Self {
        Self {
            buffer: Arc::clone(buffer),
            replay,
            hint: buffer.hint,
            turn,
        }
    }
}

impl<B: AnyBody> Body for RecordingBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        if let Some(frame) = this.replay.next() {
            let sent = frame.data_ref().map_or(0, Bytes::len);
            this.hint = without(this.hint, sent as u64);
            return Poll::Ready(Some(Ok(frame)));
        }
        let Some(turn) = this.turn else {
            return Poll::Ready(None);
        };
        let mut state = this.buffer.lock();
        if state.turn != turn {
            return match B::superseded() {
                Some(error) => Poll::Ready(Some(Err(error))),
                None => Poll::Pending,
            };
        }
        let polled = state.poll_next(this.buffer.limit, cx);
        if polled.is_pending() && state.recorded.is_partial() {
            state.waiting = Some(cx.waker().clone());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let Some(turn) = self.turn else {
            return self.replay.is_over();
        };
        if !self.replay.is_over() {
            return false;
        }
        let state = self.buffer.lock();
        state.turn == turn && state.is_at_end()
    }

    fn size_hint(&self) -> SizeHint {
        if !self.replay.is_over() {
            return self.hint;
        }
        let Some(turn) = self.turn else {
            return SizeHint::with_exact(0);
        };
        let state = self.buffer.lock();
        match state.turn == turn {
            true => state.size_hint(),
            false => SizeHint::new(),
        }
    }
}

/// Returns what remains of an announced size.
fn without(hint: SizeHint, sent: u64) -> SizeHint {
    let mut rest = SizeHint::new();
    rest.set_lower(hint.lower().saturating_sub(sent));
    if let Some(upper) = hint.upper() {
        rest.set_upper(upper.saturating_sub(sent));
    }
    rest
}

impl<B: Body> Drop for RecordingBody<B> {
    fn drop(&mut self) {
        let Some(turn) = self.turn else {
            return;
        };
        let mut state = self.buffer.lock();
        // The rest belongs to the attempt whose turn it is.
        if state.turn != turn {
            return;
        }
        state.sending = false;
        let waiting = state.waiting.take();
        // A retry may still need the rest.
        let rest = (!state.recorded.is_partial()).then(|| state.take_rest());
        drop(state);
        drop((waiting, rest));
    }
}
