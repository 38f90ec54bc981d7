//! Bodies that stream, recorded as they pass.
//!
//! The body that is sent leaves its frames in a buffer, up to a limit. Nothing is held back, and
//! nothing is read ahead while an attempt may still succeed. When an attempt failed before all of
//! the body had passed, the rest is read at once if it is at hand: a transport takes a frame before
//! it has room to send it, and a server that refuses a call answers before it reads. The buffer
//! belongs to the call: once that is over, or can't be retried any more, the buffer is emptied and
//! the body streams on by itself.

mod recorded_frames;

use std::{
    collections::VecDeque,
    fmt,
    marker::PhantomData,
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{
    BodyExt,
    combinators::{BoxBody, UnsyncBoxBody},
};

use self::recorded_frames::{Frames, RecordedFrames, TakenRoom, size_of_frame};
use super::body::ReplayLimits;
use crate::http::buffered::size_after;

/// The most frames that are read of the rest of a body, so that one of endless empty frames comes
/// to an end.
const MOST_FRAMES: usize = 1024;

/// The recording of a body that streams.
pub struct Recording<B: Body>(Option<Arc<ReplayBuffer<B>>>);

struct ReplayBuffer<B: Body> {
    state: Mutex<BufferState<B>>,
    limit: usize,
    /// The size that the body announced.
    hint: SizeHint,
}

struct BufferState<B: Body> {
    /// The body, until it has ended or is of no use any more.
    body: Option<B>,
    /// Frames that were read before the sender asked for them, and the room that they take.
    ahead: VecDeque<Result<Frame<Bytes>, B::Error>>,
    ahead_room: Option<TakenRoom>,
    /// The sender, if it waits for more of the body.
    waiting: Option<Waker>,
    /// The body is being sent.
    sending: bool,
    /// Something of the body was read.
    read: bool,
    recorded: RecordedFrames,
}

impl<B: Body> ReplayBuffer<B> {
    fn lock(&self) -> MutexGuard<'_, BufferState<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Body<Data = Bytes> + Unpin> BufferState<B> {
    /// Polls the body for a frame and records it.
    fn poll_body(
        &mut self,
        limit: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Some(body) = self.body.as_mut() else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        self.read = true;
        // A sender that reads to the announced end does not ask for a frame after it.
        let ended = frame.is_none() || body.is_end_stream();
        self.recorded.record(frame.as_ref(), ended, limit);
        if frame.is_none() {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    /// Reads the rest of the body, as far as it is at hand, and keeps it for the sender too.
    fn read_on(&mut self, limit: usize) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut room = self.recorded.more_room().filter(|_| self.sending);
        for _ in 0..MOST_FRAMES {
            if !self.recorded.is_partial() {
                break;
            }
            let frame = match self.poll_body(limit, &mut cx) {
                Poll::Ready(Some(frame)) => frame,
                Poll::Ready(None) | Poll::Pending => break,
            };
            if let Some(room) = &mut room {
                let size = frame.as_ref().map_or(0, size_of_frame);
                if !room.take(size, limit) {
                    self.recorded = RecordedFrames::Lost;
                }
                self.ahead.push_back(frame);
            }
        }
        if room.is_some() && !self.ahead.is_empty() {
            self.ahead_room = room;
        }
    }

    /// Returns whether the body can be sent as it is, since nothing of it was read.
    fn is_untouched(&self) -> bool {
        !self.sending && !self.read && self.body.is_some()
    }
}

impl<B: Body> fmt::Debug for Recording<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording").finish_non_exhaustive()
    }
}

impl<B: Body> Drop for Recording<B> {
    fn drop(&mut self) {
        let Some(buffer) = &self.0 else {
            return;
        };
        let mut state = buffer.lock();
        let unused = mem::replace(&mut state.recorded, RecordedFrames::Lost);
        let sending = state.sending;
        let body = state.body.take_if(|_| !sending);
        drop(state);
        drop((unused, body));
    }
}

/// A body on its way out that leaves its frames in the buffer.
pub(crate) struct RecordingBody<B: Body>(Arc<ReplayBuffer<B>>);

impl<B: Body> RecordingBody<B> {
    fn new(buffer: &Arc<ReplayBuffer<B>>) -> Self {
        Self(Arc::clone(buffer))
    }
}

impl<B> Body for RecordingBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut state = self.0.lock();
        if let Some(frame) = state.ahead.pop_front() {
            if state.ahead.is_empty() {
                state.ahead_room = None;
            }
            return Poll::Ready(Some(frame));
        }
        let polled = state.poll_body(self.0.limit, cx);
        if polled.is_pending() && state.recorded.is_partial() {
            state.waiting = Some(cx.waker().clone());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let state = self.0.lock();
        state.ahead.is_empty() && state.body.as_ref().is_none_or(B::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.0.lock();
        let frames = state.ahead.iter().flatten();
        let ahead = frames
            .filter_map(Frame::data_ref)
            .map(Bytes::len)
            .sum::<usize>() as u64;
        let rest = state.body.as_ref().map(B::size_hint);
        size_after(ahead, rest.unwrap_or_else(|| SizeHint::with_exact(0)))
    }
}

impl<B: Body> Drop for RecordingBody<B> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.sending = false;
        let waiting = state.waiting.take();
        let ahead = (mem::take(&mut state.ahead), state.ahead_room.take());
        // A retry may still need the rest.
        let wanted = state.recorded.is_partial();
        let body = state.body.take_if(|_| !wanted);
        drop(state);
        drop((waiting, ahead, body));
    }
}

/// A body out of the buffer. It announces the size that the original did: how a request is framed
/// depends on it, and a transport that knows the exact size may have no place for trailers.
#[derive(Debug)]
pub(crate) struct Replayed<E> {
    frames: Arc<Frames>,
    /// The frames of data that were sent, and whether the trailers were.
    sent: usize,
    ended: bool,
    hint: SizeHint,
    error: PhantomData<fn() -> E>,
}

impl<E> Body for Replayed<E> {
    type Data = Bytes;
    type Error = E;

    fn poll_frame(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, E>>> {
        let this = self.get_mut();
        if let Some(data) = this.frames.data.get(this.sent) {
            this.sent += 1;
            this.hint = match this.frames.data.len() == this.sent {
                true => SizeHint::with_exact(0),
                false => without(this.hint, data.len() as u64),
            };
            return Poll::Ready(Some(Ok(Frame::data(data.clone()))));
        }
        let trailers = this.frames.trailers.as_ref().filter(|_| !this.ended);
        let frame = trailers.map(|trailers| Ok(Frame::trailers(trailers.clone())));
        this.ended = true;
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let all_sent = self.frames.data.len() == self.sent;
        all_sent && (self.ended || self.frames.trailers.is_none())
    }

    fn size_hint(&self) -> SizeHint {
        self.hint
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

/// A type that any body of its error type fits into.
pub(crate) trait AnyBody: Body<Data = Bytes> + Default + Unpin {
    fn passing(body: RecordingBody<Self>) -> Self;
    fn replayed(body: Replayed<Self::Error>) -> Self;
}

pub(crate) fn record<B: AnyBody>(body: &mut B, limits: &ReplayLimits<'_>) -> Option<Recording<B>> {
    if body.is_end_stream() {
        return Some(Recording(None));
    }
    let hint = body.size_hint();
    // A body that announces too much is not recorded. It may come back untouched.
    let too_long = hint.lower() > limits.limit() as u64;
    let limit = if too_long { 0 } else { limits.limit() };
    let buffer = Arc::new(ReplayBuffer {
        state: Mutex::new(BufferState {
            body: Some(mem::take(body)),
            ahead: VecDeque::new(),
            ahead_room: None,
            waiting: None,
            sending: true,
            read: false,
            recorded: RecordedFrames::none(limits.dependency()),
        }),
        limit,
        hint,
    });
    *body = B::passing(RecordingBody::new(&buffer));
    Some(Recording(Some(buffer)))
}

pub(crate) fn is_complete<B: AnyBody>(recording: &Recording<B>) -> bool {
    let Some(buffer) = recording.0.as_ref() else {
        return true;
    };
    let mut state = buffer.lock();
    if state.is_untouched() {
        return true;
    }
    state.read_on(buffer.limit);
    let complete = state.recorded.is_complete();
    // The body was polled without the sender's waker and may have forgotten it.
    let waiting = state.waiting.take();
    drop(state);
    if let Some(waiting) = waiting {
        waiting.wake();
    }
    complete
}

pub(crate) fn replay<B: AnyBody>(recording: &Recording<B>) -> Option<B> {
    let Some(buffer) = recording.0.as_ref() else {
        return Some(B::default());
    };
    let mut state = buffer.lock();
    if state.is_untouched() {
        state.sending = true;
        // `passing` may ask for the size, which takes the lock.
        drop(state);
        return Some(B::passing(RecordingBody::new(buffer)));
    }
    Some(B::replayed(Replayed {
        frames: state.recorded.share()?,
        sent: 0,
        ended: false,
        hint: buffer.hint,
        error: PhantomData,
    }))
}

/// Implements `ReplayBody` for a body type that any other fits into by this expression.
macro_rules! replay_by_recording {
    ($body:ty, $into:expr $(, $error:ident: $($bound:path),+)?) => {
        impl$(<$error: $($bound +)+ 'static>)? $crate::client::retry::replay_buffer::AnyBody for $body {
            fn passing(body: $crate::client::retry::replay_buffer::RecordingBody<Self>) -> Self {
                $into(body)
            }

            fn replayed(
                body: $crate::client::retry::replay_buffer::Replayed<<Self as http_body::Body>::Error>,
            ) -> Self {
                $into(body)
            }
        }

        impl$(<$error: $($bound +)+ 'static>)? $crate::client::retry::ReplayBody for $body {
            type Recording = $crate::client::retry::Recording<Self>;

            fn record(&mut self, limits: &$crate::client::retry::ReplayLimits<'_>) -> Option<Self::Recording> {
                $crate::client::retry::replay_buffer::record(self, limits)
            }

            fn is_complete(recording: &Self::Recording) -> bool {
                $crate::client::retry::replay_buffer::is_complete(recording)
            }

            fn replay(recording: &Self::Recording) -> Option<Self> {
                $crate::client::retry::replay_buffer::replay(recording)
            }
        }
    };
}

#[cfg(any(feature = "axum", feature = "tonic"))]
pub(crate) use replay_by_recording;

replay_by_recording!(BoxBody<Bytes, E>, BodyExt::boxed, E: Send, Sync);
replay_by_recording!(UnsyncBoxBody<Bytes, E>, BodyExt::boxed_unsync, E: Send);
