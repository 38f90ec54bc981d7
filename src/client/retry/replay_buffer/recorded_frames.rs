//! The frames of a body that have passed.

use std::{collections::VecDeque, mem, sync::Arc, vec};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Frame;

use crate::dependency::Dependency;

/// Frames below this are copied together: kept by itself, a small one would pin the whole buffer
/// that it was read into. Larger ones are shared.
const SMALL: usize = 4096;

#[derive(Debug)]
pub(super) enum RecordedFrames {
    /// The body goes on.
    Partial(Frames),
    /// The body has ended.
    Complete(Frames),
    /// The body can't be sent again, or need not: it is too long, it failed, or the call is over.
    Lost,
}

/// All frames of a body, from the first one on.
#[derive(Debug)]
pub(super) struct Frames {
    /// The frames that attempts after the first were given. They outlive the recording while they
    /// are sent.
    shared: Vec<Arc<Part>>,
    tail: Part,
}

/// The data and the trailers of a part of a body, with the room that they take.
#[derive(Debug)]
struct Part {
    data: Vec<Bytes>,
    /// Small frames, which come after `data`.
    small: BytesMut,
    trailers: Option<HeaderMap>,
    room: TakenRoom,
}

/// Room for recordings, taken from a dependency's. It is given back by a drop.
#[derive(Debug)]
pub(super) struct TakenRoom {
    bytes: usize,
    dependency: Arc<Dependency>,
}

impl TakenRoom {
    pub(super) fn none(dependency: &Arc<Dependency>) -> Self {
        Self {
            bytes: 0,
            dependency: Arc::clone(dependency),
        }
    }

    #[cfg(all(test, not(reprise_loom)))]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes more room, if there is that much.
    pub(super) fn take(&mut self, more: usize, limit: usize) -> bool {
        let fits = self.bytes.checked_add(more).is_some_and(|all| all <= limit)
            && self.dependency.take_room(more);
        if fits {
            self.bytes += more;
        }
        fits
    }

    /// Gives room back, as far as it was taken.
    pub(super) fn give_back(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.dependency.give_room_back(bytes);
        self.bytes -= bytes;
    }
}

impl Drop for TakenRoom {
    fn drop(&mut self) {
        self.dependency.give_room_back(self.bytes);
    }
}

impl Part {
    fn none(dependency: &Arc<Dependency>) -> Self {
        Self {
            data: Vec::new(),
            small: BytesMut::new(),
            trailers: None,
            room: TakenRoom::none(dependency),
        }
    }

    fn push(&mut self, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref() {
            if data.len() < SMALL {
                self.small.extend_from_slice(data);
            } else {
                self.flush();
                self.data.push(data.clone());
            }
        } else if let Some(trailers) = frame.trailers_ref() {
            self.trailers = Some(trailers.clone());
        }
    }

    fn flush(&mut self) {
        if !self.small.is_empty() {
            self.data.push(self.small.split().freeze());
        }
    }

    /// Returns the number of frames in which it is sent again.
    fn frames(&self) -> usize {
        self.data.len() + usize::from(self.trailers.is_some())
    }
}

impl Frames {
    /// Takes room for more frames, if they fit.
    fn take(&mut self, more: usize, limit: usize) -> bool {
        let shared = self.shared_room();
        self.tail.room.take(more, limit.saturating_sub(shared))
    }

    fn shared_room(&self) -> usize {
        self.shared.iter().map(|part| part.room.bytes).sum()
    }

    fn replay(&mut self) -> Replay {
        self.tail.flush();
        if self.tail.frames() > 0 {
            let next = Part::none(&self.tail.room.dependency);
            let part = mem::replace(&mut self.tail, next);
            self.shared.push(Arc::new(part));
        }
        Replay {
            parts: self.shared.clone().into_iter(),
            sent: 0,
        }
    }
}

impl RecordedFrames {
    pub(super) fn none(dependency: &Arc<Dependency>) -> Self {
        Self::Partial(Frames {
            shared: Vec::new(),
            tail: Part::none(dependency),
        })
    }

    /// Records what came out of the body, which may be its end.
    pub(super) fn record<E>(
        &mut self,
        frame: Option<&Result<Frame<Bytes>, E>>,
        ended: bool,
        limit: usize,
    ) {
        match frame {
            Some(Ok(frame)) => self.push(frame, limit),
            Some(Err(_)) if self.is_partial() => *self = Self::Lost,
            _ => {}
        }
        if ended {
            self.end();
        }
    }

    fn push(&mut self, frame: &Frame<Bytes>, limit: usize) {
        let Self::Partial(frames) = self else {
            return;
        };
        if !frames.take(size_of_frame(frame), limit) {
            *self = Self::Lost;
            return;
        }
        frames.tail.push(frame);
        if frame.is_trailers() {
            self.end();
        }
    }

    /// Records the rest of the body, if there is room for all of it.
    pub(super) fn complete<E>(&mut self, rest: &VecDeque<Result<Frame<Bytes>, E>>, limit: usize) {
        let Self::Partial(frames) = self else {
            return;
        };
        let size = rest.iter().flatten().map(size_of_frame).sum();
        if frames.take(size, limit) {
            rest.iter()
                .flatten()
                .for_each(|frame| frames.tail.push(frame));
            self.end();
        }
    }

    fn end(&mut self) {
        *self = match mem::replace(self, Self::Lost) {
            Self::Partial(frames) => Self::Complete(frames),
            other => other,
        };
    }

    /// Returns the recorded frames for another attempt, unless they were lost.
    pub(super) fn replay(&mut self) -> Option<Replay> {
        match self {
            Self::Partial(frames) | Self::Complete(frames) => Some(frames.replay()),
            Self::Lost => None,
        }
    }

    /// Returns the room that is taken.
    pub(super) fn room(&self) -> usize {
        match self {
            Self::Partial(frames) | Self::Complete(frames) => {
                frames.shared_room() + frames.tail.room.bytes
            }
            Self::Lost => 0,
        }
    }

    pub(super) fn is_partial(&self) -> bool {
        matches!(self, Self::Partial(_))
    }

    pub(super) fn is_complete(&self) -> bool {
        matches!(self, Self::Complete(_))
    }

    /// Returns whether all of the body that has passed was recorded.
    pub(super) fn is_recorded(&self) -> bool {
        !matches!(self, Self::Lost)
    }
}

/// The recorded frames that an attempt has still to send. Each part gives its room back when it was
/// sent, if the recording needs it no more.
#[derive(Debug, Default)]
pub(super) struct Replay {
    parts: vec::IntoIter<Arc<Part>>,
    /// The frames of the first part that were sent.
    sent: usize,
}

impl Replay {
    pub(super) fn is_over(&self) -> bool {
        self.parts.as_slice().is_empty()
    }
}

impl Iterator for Replay {
    type Item = Frame<Bytes>;

    fn next(&mut self) -> Option<Frame<Bytes>> {
        let part = self.parts.as_slice().first()?;
        let frame = match part.data.get(self.sent) {
            Some(data) => Frame::data(data.clone()),
            None => Frame::trailers(part.trailers.clone()?),
        };
        self.sent += 1;
        if self.sent == part.frames() {
            self.sent = 0;
            self.parts.next();
        }
        Some(frame)
    }
}

/// Returns the room that a frame takes.
pub(super) fn size_of_frame(frame: &Frame<Bytes>) -> usize {
    let trailers = frame.trailers_ref().into_iter().flatten();
    let trailers: usize = trailers
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    frame.data_ref().map_or(0, Bytes::len) + trailers
}

#[cfg(all(test, not(reprise_loom)))]
mod tests {
    use super::*;
    use crate::{dependency::Dependencies, policy::Policy};

    /// A buffer that a transport reads into.
    struct ReadBuffer(Arc<Vec<u8>>);

    impl AsRef<[u8]> for ReadBuffer {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    #[test]
    fn s_3_large_frames_are_shared_and_small_ones_do_not_pin_the_buffer_they_are_in() {
        let policy = Policy::http().build().expect("a policy");
        let dependency = Dependencies::new(policy).get("a");
        for (length, pinned) in [(1, false), (SMALL - 1, false), (SMALL, true)] {
            let buffer = Arc::new(vec![7; 16 * SMALL]);
            let mut recorded = RecordedFrames::none(&dependency);
            for start in [0, length] {
                let data = Bytes::from_owner(ReadBuffer(Arc::clone(&buffer)));
                let frame = Frame::data(data.slice(start..start + length));
                recorded.record::<()>(Some(&Ok(frame)), start > 0, usize::MAX);
            }
            assert_eq!(Arc::strong_count(&buffer) > 1, pinned, "{length}");
            let frames: Vec<_> = recorded.replay().expect("a complete body").collect();
            assert_eq!(frames.len(), if pinned { 2 } else { 1 }, "{length}");
            let data = frames.into_iter().map(Frame::into_data);
            let data: Vec<_> = data.map(|data| data.expect("data")).collect();
            assert_eq!(data.concat(), vec![7; 2 * length]);
        }
    }
}
