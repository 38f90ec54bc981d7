//! Bodies of a peer, read up to a limit.

use std::{collections::VecDeque, future::poll_fn, pin::Pin};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame};

/// Boxed, since most bodies have none.
pub(crate) type Trailers = Option<Box<HeaderMap>>;

/// What was read of a body. Most come in one piece.
#[derive(Default)]
pub(crate) struct Read {
    length: usize,
    first: Bytes,
    more: VecDeque<Bytes>,
    pub(crate) trailers: Trailers,
}

impl Read {
    /// Reads to the end; `false` if that is beyond the limit.
    pub(crate) async fn up_to<B: Body>(
        &mut self,
        limit: usize,
        mut body: Pin<&mut B>,
    ) -> Result<bool, B::Error> {
        if body.size_hint().lower() > limit as u64 {
            return Ok(false);
        }
        while !body.is_end_stream() {
            let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await else {
                break;
            };
            match into_bytes(frame)?.into_data() {
                Ok(data) => {
                    self.length = self.length.saturating_add(data.len());
                    if self.first.is_empty() {
                        self.first = data;
                    } else {
                        self.more.push_back(data);
                    }
                    if self.length > limit {
                        return Ok(false);
                    }
                }
                Err(frame) => {
                    if let Ok(more) = frame.into_trailers() {
                        self.trailers.get_or_insert_default().extend(more);
                    }
                }
            }
        }
        Ok(true)
    }

    #[cfg(test)]
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// All of it. One piece is passed on as it is.
    pub(crate) fn joined(&mut self) -> Bytes {
        if self.more.is_empty() {
            return std::mem::take(&mut self.first);
        }
        let mut data = BytesMut::with_capacity(self.length);
        data.extend_from_slice(&self.first);
        self.more
            .iter()
            .for_each(|piece| data.extend_from_slice(piece));
        data.freeze()
    }

    pub(crate) fn pieces(self) -> VecDeque<Bytes> {
        let mut pieces = self.more;
        if !self.first.is_empty() {
            pieces.push_front(self.first);
        }
        pieces
    }
}

pub(crate) fn into_bytes<D: Buf, E>(frame: Result<Frame<D>, E>) -> Result<Frame<Bytes>, E> {
    frame.map(|frame| frame.map_data(|mut data| data.copy_to_bytes(data.remaining())))
}
