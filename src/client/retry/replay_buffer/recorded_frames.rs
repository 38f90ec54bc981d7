//! The frames of a body that have passed.

use std::{mem, sync::Arc};

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
    /// The body has ended, and was sent again.
    Shared(Arc<Frames>),
    /// The body can't be sent again, or need not: it is too long, it failed, or the call is over.
    Lost,
}

/// The data and the trailers of a body, with the room that they take.
#[derive(Debug)]
pub(super) struct Frames {
    pub(super) data: Vec<Bytes>,
    /// Small frames, which come after `data`.
    small: BytesMut,
    pub(super) trailers: Option<HeaderMap>,
    room: TakenRoom,
}

/// Room for recordings, taken from a dependency's. It is given back by a drop.
#[derive(Debug)]
pub(super) struct TakenRoom {
    bytes: usize,
    dependency: Arc<Dependency>,
}

impl TakenRoom {
    fn none(dependency: &Arc<Dependency>) -> Self {
        Self {
            bytes: 0,
            dependency: Arc::clone(dependency),
        }
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
}

impl Drop for TakenRoom {
    fn drop(&mut self) {
        self.dependency.give_room_back(self.bytes);
    }
}

impl Frames {
    fn push(&mut self, data: &Bytes) {
        if data.len() < SMALL {
            self.small.extend_from_slice(data);
        } else {
            self.flush();
            self.data.push(data.clone());
        }
    }

    fn flush(&mut self) {
        if !self.small.is_empty() {
            self.data.push(self.small.split().freeze());
        }
    }
}

impl RecordedFrames {
    pub(super) fn none(dependency: &Arc<Dependency>) -> Self {
        Self::Partial(Frames {
            data: Vec::new(),
            small: BytesMut::new(),
            trailers: None,
            room: TakenRoom::none(dependency),
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
        if !frames.room.take(size_of_frame(frame), limit) {
            *self = Self::Lost;
        } else if let Some(data) = frame.data_ref() {
            frames.push(data);
        } else if let Some(trailers) = frame.trailers_ref() {
            frames.trailers = Some(trailers.clone());
            self.end();
        }
    }

    fn end(&mut self) {
        *self = match mem::replace(self, Self::Lost) {
            Self::Partial(frames) => Self::Complete(frames),
            other => other,
        };
    }

    /// Returns the frames of a body that has ended.
    pub(super) fn share(&mut self) -> Option<Arc<Frames>> {
        *self = match mem::replace(self, Self::Lost) {
            Self::Complete(mut frames) => {
                frames.flush();
                Self::Shared(Arc::new(frames))
            }
            other => other,
        };
        match self {
            Self::Shared(frames) => Some(Arc::clone(frames)),
            _ => None,
        }
    }

    /// Returns room for frames that are kept beside the recorded ones.
    pub(super) fn more_room(&self) -> Option<TakenRoom> {
        match self {
            Self::Partial(frames) => Some(TakenRoom::none(&frames.room.dependency)),
            _ => None,
        }
    }

    pub(super) fn is_partial(&self) -> bool {
        matches!(self, Self::Partial(_))
    }

    pub(super) fn is_complete(&self) -> bool {
        matches!(self, Self::Complete(_) | Self::Shared(_))
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
            let frames = recorded.share().expect("a complete body");
            assert_eq!(frames.data.concat(), vec![7; 2 * length]);
            assert_eq!(frames.data.len(), if pinned { 2 } else { 1 }, "{length}");
        }
    }
}
