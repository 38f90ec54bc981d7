//! Bodies that stream, recorded as they pass.
//!
//! The body that is sent leaves a copy of its frames on a tape, up to a limit. Nothing is held
//! back, and nothing is read ahead while an attempt may still succeed. When one failed before all
//! of the body had passed, what is left of it is read at once if it is at hand: a transport takes a
//! frame before it has room to send it, and a server that refuses a call answers before it reads.
//! The tape belongs to the call: once that is over, or has no use for it any more, what is on it is
//! gone and the body streams on by itself.

mod passed;

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
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{
    BodyExt,
    combinators::{BoxBody, UnsyncBoxBody},
};

use self::passed::{Passed, Taken, size_of_frame};
use super::body::ReplayLimits;

/// The most frames that are read of what is left of a body. One that has more of them, of no bytes
/// even, is not sent again.
const MOST_LEFT: usize = 1024;

/// What is kept of a body that streams.
pub struct Recording<B: Body>(Option<Arc<Tape<B>>>);

struct Tape<B: Body> {
    reel: Mutex<Reel<B>>,
    limit: usize,
    /// What the body said of its size.
    hint: SizeHint,
}

/// A body, and what has passed of it.
struct Reel<B: Body> {
    /// Gone when it has come to its end, or when nobody wants it any more.
    body: Option<B>,
    /// What was read of it before who sends it asked for it, and the room that it takes.
    ahead: VecDeque<Result<Frame<Bytes>, B::Error>>,
    ahead_takes: Option<Taken>,
    /// Who sends it and waits for more of it.
    waiting: Option<Waker>,
    /// Somebody is sending it.
    held: bool,
    /// Something of it was read.
    read: bool,
    passed: Passed,
}

impl<B: Body> Tape<B> {
    fn reel(&self) -> MutexGuard<'_, Reel<B>> {
        self.reel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Reel<B> {
    /// The next frame, which leaves its copy.
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
        // Who reads a body to its announced end does not ask for a frame after it.
        let ended = frame.is_none() || body.is_end_stream();
        self.passed.note(frame.as_ref(), ended, limit);
        if frame.is_none() {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    /// Reads what is left of the body, as far as it is at hand. Who sends it still gets it.
    fn read_on(&mut self, limit: usize) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut room = self.passed.more_room().filter(|_| self.held);
        for _ in 0..MOST_LEFT {
            if !self.passed.is_part() {
                break;
            }
            let frame = match self.poll_body(limit, &mut cx) {
                Poll::Ready(Some(frame)) => frame,
                Poll::Ready(None) | Poll::Pending => break,
            };
            if let Some(room) = &mut room {
                let size = frame.as_ref().map_or(0, size_of_frame);
                if !room.take(size, limit) {
                    self.passed = Passed::Lost;
                }
                self.ahead.push_back(frame);
            }
        }
        if room.is_some() && !self.ahead.is_empty() {
            self.ahead_takes = room;
        }
    }

    /// Whether nobody sends the body, and nobody has read anything of it.
    fn is_untouched(&self) -> bool {
        !self.held && !self.read && self.body.is_some()
    }
}

impl<B: Body> fmt::Debug for Recording<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording").finish_non_exhaustive()
    }
}

impl<B: Body> Drop for Recording<B> {
    fn drop(&mut self) {
        let Some(tape) = &self.0 else {
            return;
        };
        let mut reel = tape.reel();
        let unused = mem::replace(&mut reel.passed, Passed::Lost);
        let held = reel.held;
        let body = reel.body.take_if(|_| !held);
        drop(reel);
        drop((unused, body));
    }
}

/// A body on its way out that leaves a copy on the tape, as long as there is a call to use it.
pub(crate) struct Tee<B: Body>(Arc<Tape<B>>);

impl<B: Body> Tee<B> {
    fn new(tape: &Arc<Tape<B>>) -> Self {
        Self(Arc::clone(tape))
    }
}

impl<B> Body for Tee<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut reel = self.0.reel();
        if let Some(frame) = reel.ahead.pop_front() {
            if reel.ahead.is_empty() {
                reel.ahead_takes = None;
            }
            return Poll::Ready(Some(frame));
        }
        let polled = reel.poll_body(self.0.limit, cx);
        if polled.is_pending() && reel.passed.is_part() {
            reel.waiting = Some(cx.waker().clone());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let reel = self.0.reel();
        reel.ahead.is_empty() && reel.body.as_ref().is_none_or(B::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let reel = self.0.reel();
        let frames = reel.ahead.iter().flatten();
        let ahead = frames
            .filter_map(Frame::data_ref)
            .map(Bytes::len)
            .sum::<usize>() as u64;
        let rest = reel.body.as_ref().map(B::size_hint);
        let rest = rest.unwrap_or_else(|| SizeHint::with_exact(0));
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(ahead));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(ahead));
        }
        hint
    }
}

impl<B: Body> Drop for Tee<B> {
    fn drop(&mut self) {
        let mut reel = self.0.reel();
        reel.held = false;
        let waiting = reel.waiting.take();
        let ahead = (mem::take(&mut reel.ahead), reel.ahead_takes.take());
        // The call may yet want what is left.
        let wanted = reel.passed.is_part();
        let body = reel.body.take_if(|_| !wanted);
        drop(reel);
        drop((waiting, ahead, body));
    }
}

/// A body off the tape. It says no more of its size than the original did: how a request is framed
/// depends on it, and a transport that knows the exact size of a body may have no place for its
/// trailers.
#[derive(Debug)]
pub(crate) struct Replayed<E> {
    data: Bytes,
    trailers: Option<HeaderMap>,
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
        if !this.data.is_empty() {
            let data = mem::take(&mut this.data);
            this.hint = SizeHint::with_exact(0);
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        Poll::Ready(
            this.trailers
                .take()
                .map(|trailers| Ok(Frame::trailers(trailers))),
        )
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.hint
    }
}

/// A type that any body of its error type fits into.
pub(crate) trait AnyBody: Body<Data = Bytes> + Default + Unpin {
    fn passing(body: Tee<Self>) -> Self;
    fn replayed(body: Replayed<Self::Error>) -> Self;
}

pub(crate) fn record<B: AnyBody>(body: &mut B, room: &ReplayLimits<'_>) -> Option<Recording<B>> {
    if body.is_end_stream() {
        return Some(Recording(None));
    }
    let hint = body.size_hint();
    // A body that says itself that it is too long is not worth copying. It may come back untouched.
    let too_long = hint.lower() > room.limit() as u64;
    let limit = if too_long { 0 } else { room.limit() };
    let tape = Arc::new(Tape {
        reel: Mutex::new(Reel {
            body: Some(mem::take(body)),
            ahead: VecDeque::new(),
            ahead_takes: None,
            waiting: None,
            held: true,
            read: false,
            passed: Passed::nothing(room.dependency()),
        }),
        limit,
        hint,
    });
    *body = B::passing(Tee::new(&tape));
    Some(Recording(Some(tape)))
}

pub(crate) fn is_whole<B: AnyBody>(recording: &Recording<B>) -> bool {
    let Some(tape) = recording.0.as_ref() else {
        return true;
    };
    let mut reel = tape.reel();
    if reel.is_untouched() {
        return true;
    }
    reel.read_on(tape.limit);
    let whole = reel.passed.is_whole();
    // The body has been asked by somebody else since, and may remember only whom.
    let waiting = reel.waiting.take();
    drop(reel);
    if let Some(waiting) = waiting {
        waiting.wake();
    }
    whole
}

pub(crate) fn replay<B: AnyBody>(recording: &Recording<B>) -> Option<B> {
    let Some(tape) = recording.0.as_ref() else {
        return Some(B::default());
    };
    let mut reel = tape.reel();
    if reel.is_untouched() {
        reel.held = true;
        // Who makes a body of it asks it how long it is.
        drop(reel);
        return Some(B::passing(Tee::new(tape)));
    }
    let Passed::Whole(data, trailers) = &mut reel.passed else {
        return None;
    };
    Some(B::replayed(Replayed {
        data: data.share(),
        trailers: trailers.clone(),
        hint: tape.hint,
        error: PhantomData,
    }))
}

/// `ReplayBody` for a body type that any other fits into by this expression.
macro_rules! replay_by_tape {
    ($body:ty, $into:expr $(, $error:ident: $($bound:path),+)?) => {
        impl$(<$error: $($bound +)+ 'static>)? $crate::client::retry::tape::AnyBody for $body {
            fn passing(body: $crate::client::retry::tape::Tee<Self>) -> Self {
                $into(body)
            }

            fn replayed(
                body: $crate::client::retry::tape::Replayed<<Self as http_body::Body>::Error>,
            ) -> Self {
                $into(body)
            }
        }

        impl$(<$error: $($bound +)+ 'static>)? $crate::client::retry::ReplayBody for $body {
            type Recording = $crate::client::retry::Recording<Self>;

            fn record(&mut self, room: &$crate::client::retry::ReplayLimits<'_>) -> Option<Self::Recording> {
                $crate::client::retry::tape::record(self, room)
            }

            fn is_whole(recording: &Self::Recording) -> bool {
                $crate::client::retry::tape::is_whole(recording)
            }

            fn replay(recording: &Self::Recording) -> Option<Self> {
                $crate::client::retry::tape::replay(recording)
            }
        }
    };
}

#[cfg(any(feature = "axum", feature = "tonic"))]
pub(crate) use replay_by_tape;

replay_by_tape!(BoxBody<Bytes, E>, BodyExt::boxed, E: Send, Sync);
replay_by_tape!(UnsyncBoxBody<Bytes, E>, BodyExt::boxed_unsync, E: Send);
