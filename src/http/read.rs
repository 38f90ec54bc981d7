//! Bodies of a peer, read up to a limit.

use std::{collections::VecDeque, future::poll_fn, pin::Pin};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame};

/// Boxed, since most bodies have none.
pub(crate) type Trailers = Option<Box<HeaderMap>>;

/// Pieces below this are copied together: each by itself would cost more than what it holds, and
/// keep the buffer alive that it was read into.
const SMALL: usize = 4096;

/// What was read of a body. Most come in one piece.
#[derive(Default)]
pub(crate) struct Read {
    length: usize,
    first: Bytes,
    more: VecDeque<Bytes>,
    /// What comes after these.
    small: BytesMut,
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
                    self.push(data);
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

    fn push(&mut self, data: Bytes) {
        self.length = self.length.saturating_add(data.len());
        if self.first.is_empty() {
            self.first = data;
        } else if data.len() < SMALL {
            self.small.extend_from_slice(&data);
        } else {
            self.close();
            self.more.push_back(data);
        }
    }

    /// No more is copied to what was copied together so far.
    fn close(&mut self) {
        if !self.small.is_empty() {
            self.more.push_back(self.small.split().freeze());
        }
    }

    #[cfg(test)]
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// All of it. One piece is passed on as it is.
    pub(crate) fn joined(&mut self) -> Bytes {
        if self.length == self.first.len() {
            return std::mem::take(&mut self.first);
        }
        let mut data = BytesMut::with_capacity(self.length);
        data.extend_from_slice(&self.first);
        self.more
            .iter()
            .for_each(|piece| data.extend_from_slice(piece));
        data.extend_from_slice(&self.small);
        data.freeze()
    }

    pub(crate) fn pieces(mut self) -> VecDeque<Bytes> {
        self.close();
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

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, pin::pin, sync::Arc};

    use http_body_util::StreamBody;

    use super::*;

    const MIB: usize = 1 << 20;

    /// A piece of a read buffer, which is there for as long as somebody holds the piece.
    fn piece(buffer: &Arc<[u8; SMALL]>, length: usize) -> Bytes {
        struct Buffer(Arc<[u8; SMALL]>);
        impl AsRef<[u8]> for Buffer {
            fn as_ref(&self) -> &[u8] {
                &self.0[..]
            }
        }
        Bytes::from_owner(Buffer(Arc::clone(buffer))).slice(..length)
    }

    async fn read(frames: impl Iterator<Item = Bytes>) -> Read {
        let frames = frames.map(|data| Ok::<_, Infallible>(Frame::data(data)));
        let mut read = Read::default();
        let body = pin!(StreamBody::new(tokio_stream::iter(frames)));
        assert_eq!(read.up_to(MIB, body).await, Ok(true));
        read
    }

    #[tokio::test]
    async fn s_3_a_body_costs_no_more_than_it_holds_however_it_is_cut() {
        let buffer = Arc::new([7; SMALL]);
        for size in [1, 7, SMALL - 1] {
            let mut one = read((0..MIB / size).map(|_| piece(&buffer, size))).await;
            assert_eq!(one.length(), MIB / size * size);
            assert_eq!(Arc::strong_count(&buffer), 2, "but the first, none is held");
            assert!(one.more.is_empty() && one.small.capacity() <= 2 * MIB);
            assert_eq!(one.joined(), vec![7; MIB / size * size]);
        }
        // One that is never done, with nothing.
        let nothing = (0..MIB).map(|n| piece(&buffer, usize::from(n == 0)));
        let nothing = read(nothing).await;
        assert_eq!((nothing.length(), nothing.pieces().len()), (1, 1));
    }

    #[tokio::test]
    async fn i_8_large_and_small_pieces_stay_in_order() {
        let sizes = [1, 2, SMALL, 3, 0, 4, SMALL + 1, SMALL + 2, 5];
        let frames = || {
            let number = |(n, size)| Bytes::from(vec![n as u8; size]);
            sizes.into_iter().enumerate().map(number)
        };
        let expected = frames().collect::<Vec<_>>().concat();
        assert_eq!(read(frames()).await.joined(), expected);
        let pieces = read(frames()).await.pieces();
        assert_eq!(
            pieces.iter().flatten().copied().collect::<Vec<_>>(),
            expected
        );
        let sizes: Vec<_> = pieces.iter().map(Bytes::len).collect();
        assert_eq!(sizes, [1, 2, SMALL, 7, SMALL + 1, SMALL + 2, 5]);
    }
}
