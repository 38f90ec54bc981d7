//! What has passed of a body.

use std::{mem, sync::Arc};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;

use crate::dependency::Dependency;

#[derive(Debug)]
pub(super) enum Passed {
    /// This much, yet.
    Part(Kept),
    /// All of it.
    Whole(Whole, Option<HeaderMap>),
    /// It can't be sent again, or need not: it is too long, it failed, or the call is over.
    Lost,
}

/// All of a body's data, which is shared with those who send it again once there are any.
#[derive(Debug)]
pub(super) enum Whole {
    Kept(Kept),
    Shared(Bytes),
}

impl Whole {
    pub(super) fn share(&mut self) -> Bytes {
        let data = match mem::replace(self, Self::Shared(Bytes::new())) {
            Self::Kept(kept) => Bytes::from_owner(kept),
            Self::Shared(data) => data,
        };
        *self = Self::Shared(data.clone());
        data
    }
}

/// What passed.
#[derive(Debug)]
pub(super) struct Kept {
    bytes: Vec<u8>,
    taken: Taken,
}

/// Room of the dependency's, which it gets back.
#[derive(Debug)]
pub(super) struct Taken {
    bytes: usize,
    dependency: Arc<Dependency>,
}

impl Taken {
    fn nothing(dependency: &Arc<Dependency>) -> Self {
        Self {
            bytes: 0,
            dependency: Arc::clone(dependency),
        }
    }

    /// Takes so much more, if there is that much.
    pub(super) fn take(&mut self, more: usize, limit: usize) -> bool {
        let fits = self.bytes.checked_add(more).is_some_and(|all| all <= limit)
            && self.dependency.take_room(more);
        if fits {
            self.bytes += more;
        }
        fits
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.dependency.give_room_back(self.bytes);
    }
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Passed {
    pub(super) fn nothing(dependency: &Arc<Dependency>) -> Self {
        Self::Part(Kept {
            bytes: Vec::new(),
            taken: Taken::nothing(dependency),
        })
    }

    /// Takes in what came out of the body, which may be all there is.
    pub(super) fn note<E>(
        &mut self,
        frame: Option<&Result<Frame<Bytes>, E>>,
        ended: bool,
        limit: usize,
    ) {
        match frame {
            Some(Ok(frame)) => self.record(frame, limit),
            Some(Err(_)) if !self.is_whole() => *self = Self::Lost,
            _ => {}
        }
        if ended {
            self.end(None);
        }
    }

    fn record(&mut self, frame: &Frame<Bytes>, limit: usize) {
        let Self::Part(kept) = self else {
            return;
        };
        if let Some(data) = frame.data_ref() {
            match kept.taken.take(data.len(), limit) {
                true => kept.bytes.extend_from_slice(data),
                false => *self = Self::Lost,
            }
        } else if let Some(trailers) = frame.trailers_ref() {
            match kept.taken.take(size_of(trailers), limit) {
                true => self.end(Some(trailers.clone())),
                false => *self = Self::Lost,
            }
        }
    }

    fn end(&mut self, trailers: Option<HeaderMap>) {
        *self = match mem::replace(self, Self::Lost) {
            Self::Part(kept) => Self::Whole(Whole::Kept(kept), trailers),
            other => other,
        };
    }

    /// For what else is to be kept in the same room, nothing of which is taken yet.
    pub(super) fn more_room(&self) -> Option<Taken> {
        match self {
            Self::Part(kept) => Some(Taken::nothing(&kept.taken.dependency)),
            _ => None,
        }
    }

    pub(super) fn is_part(&self) -> bool {
        matches!(self, Self::Part(_))
    }

    pub(super) fn is_whole(&self) -> bool {
        matches!(self, Self::Whole(..))
    }
}

fn size_of(trailers: &HeaderMap) -> usize {
    let size =
        |(name, value): (&http::HeaderName, &http::HeaderValue)| name.as_str().len() + value.len();
    trailers.iter().map(size).sum()
}

/// How much room a frame takes.
pub(super) fn size_of_frame(frame: &Frame<Bytes>) -> usize {
    frame.data_ref().map_or(0, Bytes::len) + frame.trailers_ref().map_or(0, size_of)
}
