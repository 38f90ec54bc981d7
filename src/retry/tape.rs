//! Bodies that stream, recorded as they pass.
//!
//! The body that is sent tees its frames onto a tape, up to a limit. Nothing is read ahead and
//! nothing is held back. The tape belongs to the call: once that is over, or has no use for it
//! any more, the tape is gone and the body streams on by itself.

use std::{
    marker::PhantomData,
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{
    BodyExt,
    combinators::{BoxBody, UnsyncBoxBody},
};

use super::body::Room;
use crate::dependency::Dependency;

/// What is kept of a body that streams.
#[derive(Debug)]
pub struct Recording<B>(Option<Arc<Tape<B>>>);

#[derive(Debug)]
struct Tape<B> {
    state: Mutex<State<B>>,
    limit: usize,
    /// What the body said of its size.
    hint: SizeHint,
    /// How much data there will be, if anybody said so.
    announced: Option<u64>,
}

#[derive(Debug)]
enum State<B> {
    /// This much has passed.
    Passing(Kept),
    /// The body came back, and nothing of it was read.
    Unread(B, Kept),
    /// All of it has passed.
    Whole(Whole, Option<HeaderMap>),
    /// It can't be sent again: it is too long, or it was read in part, or it failed.
    Lost,
}

/// All of a body's data, which is shared with those who send it again once there are any.
#[derive(Debug)]
enum Whole {
    Kept(Kept),
    Shared(Bytes),
}

/// What passed, in room that is the dependency's.
#[derive(Debug)]
struct Kept {
    bytes: Vec<u8>,
    taken: usize,
    dependency: Arc<Dependency>,
}

impl Kept {
    /// Takes so much more room, if there is that much.
    fn take(&mut self, more: usize, limit: usize) -> bool {
        let fits = self.taken.checked_add(more).is_some_and(|all| all <= limit)
            && self.dependency.take_room(more);
        if fits {
            self.taken += more;
        }
        fits
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.dependency.give_room_back(self.taken);
    }
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<B> Tape<B> {
    fn state(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B> State<B> {
    /// Takes in what came out of the body.
    fn note<E>(&mut self, frame: Option<&Result<Frame<Bytes>, E>>, limit: usize) {
        match frame {
            _ if matches!(self, Self::Whole(..)) => {}
            Some(Ok(frame)) => self.record(frame, limit),
            Some(Err(_)) => *self = Self::Lost,
            None => self.end(None),
        }
    }

    fn record(&mut self, frame: &Frame<Bytes>, limit: usize) {
        let Self::Passing(kept) = self else {
            return;
        };
        if let Some(data) = frame.data_ref() {
            match kept.take(data.len(), limit) {
                true => kept.bytes.extend_from_slice(data),
                false => *self = Self::Lost,
            }
        } else if let Some(trailers) = frame.trailers_ref() {
            let size = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
                name.as_str().len() + value.len()
            };
            match kept.take(trailers.iter().map(size).sum(), limit) {
                true => self.end(Some(trailers.clone())),
                false => *self = Self::Lost,
            }
        }
    }

    fn end(&mut self, trailers: Option<HeaderMap>) {
        *self = match mem::replace(self, Self::Lost) {
            Self::Passing(kept) => Self::Whole(Whole::Kept(kept), trailers),
            other => other,
        };
    }
}

/// A body on its way out that leaves a copy on the tape, as long as there is one.
pub(crate) struct Tee<B: Body> {
    /// Gone when it has come to its end.
    body: Option<B>,
    /// What comes after the data that was announced.
    ahead: Option<Result<Frame<Bytes>, B::Error>>,
    tape: Weak<Tape<B>>,
    read: bool,
    /// All data that was announced has passed.
    complete: bool,
}

/// An error is never pinned.
impl<B: Body + Unpin> Unpin for Tee<B> {}

impl<B: Body<Data = Bytes> + Unpin> Tee<B> {
    fn new(body: B, tape: &Arc<Tape<B>>) -> Self {
        Self {
            body: Some(body),
            ahead: None,
            tape: Arc::downgrade(tape),
            read: false,
            complete: false,
        }
    }

    /// The next frame, which leaves its copy.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Some(body) = self.body.as_mut() else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        self.read = true;
        let ended = frame.is_none() || body.is_end_stream();
        self.complete = false;
        if let Some(tape) = self.tape.upgrade() {
            let mut state = tape.state();
            state.note(frame.as_ref(), tape.limit);
            // Who reads a body to its announced end does not ask for a frame after it.
            if ended {
                state.end(None);
            }
            if let State::Passing(kept) = &*state {
                self.complete = tape.announced == Some(kept.taken as u64);
            }
        }
        if frame.is_none() {
            self.body = None;
        }
        Poll::Ready(frame)
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
        let this = self.get_mut();
        if let Some(frame) = this.ahead.take() {
            return Poll::Ready(Some(frame));
        }
        let frame = ready!(this.poll_body(cx));
        // A transport that was told the size does not ask for more than that, and would leave it
        // open whether there is any.
        if this.complete
            && let Poll::Ready(next) = this.poll_body(cx)
        {
            this.ahead = next;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.ahead.is_none() && self.body.as_ref().is_none_or(B::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), B::size_hint)
    }
}

impl<B: Body> Drop for Tee<B> {
    fn drop(&mut self) {
        let Some(tape) = self.tape.upgrade() else {
            return;
        };
        let mut state = tape.state();
        *state = match (mem::replace(&mut *state, State::Lost), self.body.take()) {
            (State::Passing(kept), Some(body)) if !self.read => State::Unread(body, kept),
            (State::Passing(_), _) => State::Lost,
            (other, _) => other,
        };
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

pub(crate) fn record<B: AnyBody>(body: &mut B, room: &Room<'_>) -> Option<Recording<B>> {
    if body.is_end_stream() {
        return Some(Recording(None));
    }
    // A body that says itself that it is too long is not worth copying. It may come back unread.
    let too_long = body.size_hint().lower() > room.limit() as u64;
    let limit = if too_long { 0 } else { room.limit() };
    let tape = Arc::new(Tape {
        state: Mutex::new(State::Passing(Kept {
            bytes: Vec::new(),
            taken: 0,
            dependency: Arc::clone(room.dependency()),
        })),
        limit,
        hint: body.size_hint(),
        announced: body.size_hint().exact().or_else(|| room.announced()),
    });
    *body = B::passing(Tee::new(mem::take(body), &tape));
    Some(Recording(Some(tape)))
}

pub(crate) fn is_whole<B>(recording: &Recording<B>) -> bool {
    let whole = |tape: &Arc<Tape<B>>| matches!(*tape.state(), State::Whole(..) | State::Unread(..));
    recording.0.as_ref().is_none_or(whole)
}

pub(crate) fn replay<B: AnyBody>(recording: &Recording<B>) -> Option<B> {
    let Some(tape) = recording.0.as_ref() else {
        return Some(B::default());
    };
    let mut state = tape.state();
    match mem::replace(&mut *state, State::Lost) {
        State::Whole(data, trailers) => {
            let data = match data {
                Whole::Kept(kept) => Bytes::from_owner(kept),
                Whole::Shared(data) => data,
            };
            *state = State::Whole(Whole::Shared(data.clone()), trailers.clone());
            Some(B::replayed(Replayed {
                data,
                trailers,
                hint: tape.hint,
                error: PhantomData,
            }))
        }
        State::Unread(body, kept) => {
            *state = State::Passing(kept);
            Some(B::passing(Tee::new(body, tape)))
        }
        passing_or_lost => {
            *state = passing_or_lost;
            None
        }
    }
}

/// `ReplayBody` for a body type that any other fits into by this expression.
macro_rules! replay_by_tape {
    ($body:ty, $into:expr $(, $error:ident: $($bound:path),+)?) => {
        impl$(<$error: $($bound +)+ 'static>)? $crate::retry::tape::AnyBody for $body {
            fn passing(body: $crate::retry::tape::Tee<Self>) -> Self {
                $into(body)
            }

            fn replayed(
                body: $crate::retry::tape::Replayed<<Self as http_body::Body>::Error>,
            ) -> Self {
                $into(body)
            }
        }

        impl$(<$error: $($bound +)+ 'static>)? $crate::retry::ReplayBody for $body {
            type Recording = $crate::retry::Recording<Self>;

            fn record(&mut self, room: &$crate::retry::Room<'_>) -> Option<Self::Recording> {
                $crate::retry::tape::record(self, room)
            }

            fn is_whole(recording: &Self::Recording) -> bool {
                $crate::retry::tape::is_whole(recording)
            }

            fn replay(recording: &Self::Recording) -> Option<Self> {
                $crate::retry::tape::replay(recording)
            }
        }
    };
}

#[cfg(any(feature = "axum", feature = "tonic"))]
pub(crate) use replay_by_tape;

replay_by_tape!(BoxBody<Bytes, E>, BodyExt::boxed, E: Send, Sync);
replay_by_tape!(UnsyncBoxBody<Bytes, E>, BodyExt::boxed_unsync, E: Send);
