//! Bodies that stream, recorded as they pass.
//!
//! The body that is sent leaves its frames in a buffer, up to a limit. Nothing is held back. An attempt
//! after a failure sends the recorded frames first, and then goes on reading the body where the
//! attempt before it stopped, for which it records too. The buffer belongs to the call: once that is
//! over, or can't be retried any more, the buffer is emptied and the body streams on by itself.
//!
//! The body has one reader at a time, the attempt whose turn it is. A transport may hold the body of an
//! attempt that is over, and poll it on another task: it gets an error ([`superseded`]) once the
//! turn is another's. If all that is left of the body is at hand it is read at once, and such
//! a transport goes on sending.

mod recorded_frames;
mod recording_body;
pub(crate) mod superseded;
#[cfg(all(test, not(reprise_loom)))]
mod tests;

use std::{
    collections::VecDeque,
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

use self::recorded_frames::{RecordedFrames, Replay, TakenRoom, size_of_frame};
pub(crate) use self::recording_body::RecordingBody;
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
    /// Frames of the body that were read before the sender asked for them, and the room that they
    /// take. They are recorded when it does, or with all of the rest.
    ahead: VecDeque<Result<Frame<Bytes>, B::Error>>,
    ahead_room: TakenRoom,
    /// The last of them had no room: nothing is read after it before they were sent.
    ahead_is_full: bool,
    /// The number of the attempt that may read the body.
    turn: u32,
    /// That attempt still has its body.
    sending: bool,
    /// That attempt, if it waits for more of the body.
    waiting: Option<Waker>,
    recorded: RecordedFrames,
}

impl<B: Body> ReplayBuffer<B> {
    fn lock(&self) -> MutexGuard<'_, BufferState<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Body<Data = Bytes> + Unpin> BufferState<B> {
    /// Polls for the next frame and records it.
    fn poll_next(
        &mut self,
        limit: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = match self.ahead.pop_front() {
            Some(frame) => {
                self.ahead_room.give_back(size(&frame));
                self.ahead_is_full &= !self.ahead.is_empty();
                Some(frame)
            }
            None => ready!(self.poll_body(cx)),
        };
        // A sender that reads to the announced end does not ask for a frame after it.
        let ended = frame.is_none() || self.is_at_end();
        self.recorded.record(frame.as_ref(), ended, limit);
        Poll::Ready(frame)
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Some(body) = self.body.as_mut() else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        if frame.is_none() {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    /// Returns whether the sender has read all of the body.
    fn is_at_end(&self) -> bool {
        self.ahead.is_empty() && self.body.as_ref().is_none_or(B::is_end_stream)
    }

    /// Returns the size of what the sender has not read.
    fn size_hint(&self) -> SizeHint {
        let frames = self.ahead.iter().flatten();
        let data = frames.filter_map(Frame::data_ref).map(Bytes::len);
        let rest = self.body.as_ref().map(B::size_hint);
        let rest = rest.unwrap_or_else(|| SizeHint::with_exact(0));
        size_after(data.sum::<usize>() as u64, rest)
    }

    /// Completes the recording with the rest of the body, if all of it is at hand and there is room
    /// for it beside what was recorded.
    fn read_on(&mut self, limit: usize) {
        let most = limit.saturating_sub(self.recorded.room());
        let mut cx = Context::from_waker(Waker::noop());
        while self.recorded.is_partial()
            && self.ahead.len() < MOST_FRAMES
            && !self.ahead_is_full
            && !self.fails()
        {
            let frame = match self.poll_body(&mut cx) {
                Poll::Ready(Some(frame)) => frame,
                Poll::Ready(None) => return self.recorded.complete(&self.ahead, limit),
                Poll::Pending => return,
            };
            self.ahead_is_full = !self.ahead_room.take(size(&frame), most);
            let is_last = frame.as_ref().is_ok_and(Frame::is_trailers);
            self.ahead.push_back(frame);
            if is_last && !self.ahead_is_full {
                return self.recorded.complete(&self.ahead, limit);
            }
        }
    }

    /// Returns whether it is known that the body fails.
    fn fails(&self) -> bool {
        matches!(self.ahead.back(), Some(Err(_)))
    }
}

/// Returns the room that a frame takes.
fn size<E>(frame: &Result<Frame<Bytes>, E>) -> usize {
    frame.as_ref().map_or(0, size_of_frame)
}

opaque_debug! { Recording<B: Body> }

impl<B: Body> Drop for Recording<B> {
    fn drop(&mut self) {
        let Some(buffer) = &self.0 else {
            return;
        };
        let mut state = buffer.lock();
        let unused = mem::replace(&mut state.recorded, RecordedFrames::Lost);
        let rest = (!state.sending).then(|| state.take_rest());
        drop(state);
        drop((unused, rest));
    }
}

impl<B: Body> BufferState<B> {
    /// Takes the part of the body that nobody reads any more. It is dropped without the lock.
    fn take_rest(&mut self) -> impl Sized + use<B> {
        self.ahead_room.give_back(usize::MAX);
        (self.body.take(), mem::take(&mut self.ahead))
    }
}

/// A type that any body of its error type fits into.
pub(crate) trait AnyBody: Body<Data = Bytes> + Default + Unpin {
    fn passing(body: RecordingBody<Self>) -> Self;

    /// Returns the error of a body that another attempt reads, if the error type has one.
    fn superseded() -> Option<Self::Error>;
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
            ahead_room: TakenRoom::none(limits.dependency()),
            ahead_is_full: false,
            turn: 0,
            sending: true,
            waiting: None,
            recorded: RecordedFrames::none(limits.dependency()),
        }),
        limit,
        hint,
    });
    *body = B::passing(RecordingBody::new(&buffer, Replay::default(), Some(0)));
    Some(Recording(Some(buffer)))
}

/// Returns whether the body can be sent again: beside the one that is out, or in its place.
pub(crate) fn can_replay<B: AnyBody>(recording: &Recording<B>, beside: bool) -> bool {
    let Some(buffer) = recording.0.as_ref() else {
        return true;
    };
    let mut state = buffer.lock();
    if !state.sending {
        return state.recorded.is_recorded() && !state.fails();
    }
    state.read_on(buffer.limit);
    let can = match beside {
        true => state.recorded.is_complete(),
        false => state.recorded.is_recorded() && !state.fails(),
    };
    // The body was polled without the sender's waker and may have forgotten it.
    let waiting = state.waiting.take();
    drop(state);
    if let Some(waiting) = waiting {
        waiting.wake();
    }
    can
}

pub(crate) fn replay<B: AnyBody>(recording: &Recording<B>) -> Option<B> {
    let Some(buffer) = recording.0.as_ref() else {
        return Some(B::default());
    };
    let mut state = buffer.lock();
    let replay = state.recorded.replay()?;
    let mut superseded = None;
    let turn = match state.recorded.is_complete() {
        true => None,
        false => {
            state.turn += 1;
            state.sending = true;
            superseded = state.waiting.take();
            Some(state.turn)
        }
    };
    // `passing` may ask for the size, which takes the lock.
    drop(state);
    if let Some(superseded) = superseded {
        superseded.wake();
    }
    Some(B::passing(RecordingBody::new(buffer, replay, turn)))
}

/// Implements `ReplayBody` for a body type that any other of its error type fits into.
macro_rules! replay_by_recording {
    ($body:ty, $into:expr, $superseded:expr $(, $error:ident: $($bound:path),+)?) => {
        impl$(<$error: $($bound +)+ 'static>)? $crate::client::retry::replay_buffer::AnyBody for $body {
            fn passing(body: $crate::client::retry::replay_buffer::RecordingBody<Self>) -> Self {
                $into(body)
            }

            fn superseded() -> Option<<Self as http_body::Body>::Error> {
                $superseded($crate::client::retry::replay_buffer::superseded::Superseded)
            }
        }

        impl$(<$error: $($bound +)+ 'static>)? $crate::client::retry::ReplayBody for $body {
            type Recording = $crate::client::retry::Recording<Self>;

            fn record(&mut self, limits: &$crate::client::retry::ReplayLimits<'_>) -> Option<Self::Recording> {
                $crate::client::retry::replay_buffer::record(self, limits)
            }

            fn is_complete(recording: &Self::Recording) -> bool {
                $crate::client::retry::replay_buffer::can_replay(recording, true)
            }

            fn is_replayable(recording: &Self::Recording) -> bool {
                $crate::client::retry::replay_buffer::can_replay(recording, false)
            }

            fn replay(recording: &Self::Recording) -> Option<Self> {
                $crate::client::retry::replay_buffer::replay(recording)
            }
        }
    };
}

#[cfg(any(feature = "axum", feature = "tonic"))]
pub(crate) use replay_by_recording;

replay_by_recording!(BoxBody<Bytes, E>, BodyExt::boxed, superseded::known_error, E: Send, Sync);
replay_by_recording!(UnsyncBoxBody<Bytes, E>, BodyExt::boxed_unsync, superseded::known_error, E: Send);
