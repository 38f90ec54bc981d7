//! Bodies read up to a limit.

use std::{
    future::poll_fn,
    iter,
    pin::{Pin, pin},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, SizeHint};

use super::buffered::{BufferedBody, Trailers, into_bytes};

/// Pieces below this are copied together: each by itself would cost more than what it holds, and
/// keep the buffer alive that it was read into.
const SMALL: usize = 4096;

/// The reason why a body could not be read to its end.
pub(crate) enum ReadError {
    TooLarge,
    Broken,
}

/// Reads a body to its end, without its trailers.
pub(crate) async fn read_whole<B: Body>(
    body: Pin<&mut B>,
    limit: usize,
) -> Result<Bytes, ReadError> {
    let mut read = Pieces::default();
    match read.up_to(limit, body).await {
        Ok(true) => Ok(read.joined()),
        Ok(false) => Err(ReadError::TooLarge),
        Err(_) => Err(ReadError::Broken),
    }
}

/// A body that was read up to a limit.
pub(crate) enum Buffered<B: Body> {
    Whole {
        data: Bytes,
        trailers: Trailers,
    },
    /// It is larger than the limit, or broke off.
    Partial(BufferedBody<B>),
}

/// Reads a body up to a limit, and loses nothing of a larger one.
pub(crate) async fn buffer<B: Body>(body: B, limit: usize) -> Buffered<B> {
    let mut read = Pieces::default();
    let end = if let Some(length) = length_within(limit, &body.size_hint()) {
        // There will be no rest, so that the body can be read where it is. Data beyond the
        // announced length is cut off, as servers do.
        let end = read.up_to(limit, pin!(body)).await;
        end.map(|whole| (length, whole))
    } else {
        let mut body = Box::pin(body);
        match read.up_to(limit, body.as_mut()).await {
            Ok(false) => return Buffered::Partial(BufferedBody::partial(read.into_iter(), body)),
            end => end.map(|whole| (usize::MAX, whole)),
        }
    };
    match end {
        Ok((length, whole)) => {
            let mut data = read.joined();
            if !whole {
                data.truncate(length);
            }
            let trailers = read.trailers;
            Buffered::Whole { data, trailers }
        }
        Err(error) => Buffered::Partial(BufferedBody::broken(read.into_iter(), error)),
    }
}

/// Returns the length of a body that announces it, if that is not too large.
fn length_within(limit: usize, hint: &SizeHint) -> Option<usize> {
    let length = usize::try_from(hint.exact()?).ok()?;
    (length <= limit).then_some(length)
}

/// The data that was read of a body. Most come in one piece.
#[derive(Default)]
struct Pieces {
    length: usize,
    first: Bytes,
    more: Vec<Bytes>,
    /// Small pieces after these, copied together.
    small: BytesMut,
    trailers: Trailers,
}

impl Pieces {
    /// Reads to the end; `false` if that is beyond the limit.
    async fn up_to<B: Body>(
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
            if !self.small.is_empty() {
                self.more.push(self.small.split().freeze());
            }
            self.more.push(data);
        }
    }

    /// Returns all of it. One piece is passed on as it is.
    fn joined(&mut self) -> Bytes {
        if self.length == self.first.len() {
            return std::mem::take(&mut self.first);
        }
        let mut data = BytesMut::with_capacity(self.length);
        data.extend_from_slice(&self.first);
        for piece in &self.more {
            data.extend_from_slice(piece);
        }
        data.extend_from_slice(&self.small);
        data.freeze()
    }

    fn into_iter(self) -> impl Iterator<Item = Bytes> {
        iter::once(self.first)
            .chain(self.more)
            .chain(iter::once(self.small.freeze()))
            .filter(|piece| !piece.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::Arc,
        task::{Context, Poll},
    };

    use http_body::Frame;
    use http_body_util::{BodyExt, Full, StreamBody};

    use super::*;

    const MIB: usize = 1 << 20;

    /// A piece of a read buffer, which lives for as long as the piece.
    fn piece(buffer: &Arc<[u8; SMALL]>, length: usize) -> Bytes {
        struct Buffer(Arc<[u8; SMALL]>);
        impl AsRef<[u8]> for Buffer {
            fn as_ref(&self) -> &[u8] {
                &self.0[..]
            }
        }
        Bytes::from_owner(Buffer(Arc::clone(buffer))).slice(..length)
    }

    async fn read(frames: impl Iterator<Item = Bytes>) -> Pieces {
        let frames = frames.map(|data| Ok::<_, Infallible>(Frame::data(data)));
        let mut read = Pieces::default();
        let body = pin!(StreamBody::new(tokio_stream::iter(frames)));
        assert_eq!(read.up_to(MIB, body).await, Ok(true));
        read
    }

    #[tokio::test]
    async fn s_3_a_body_costs_no_more_than_it_holds_however_it_is_cut() {
        let buffer = Arc::new([7; SMALL]);
        for size in [1, 7, SMALL - 1] {
            let mut one = read((0..MIB / size).map(|_| piece(&buffer, size))).await;
            assert_eq!(one.length, MIB / size * size);
            assert_eq!(Arc::strong_count(&buffer), 2, "but the first, none is held");
            assert!(one.more.is_empty() && one.small.capacity() <= 2 * MIB);
            assert_eq!(one.joined(), vec![7; MIB / size * size]);
        }
        let empty = (0..MIB).map(|n| piece(&buffer, usize::from(n == 0)));
        let empty = read(empty).await;
        assert_eq!((empty.length, empty.into_iter().count()), (1, 1));
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
        let pieces: Vec<_> = read(frames()).await.into_iter().collect();
        assert_eq!(pieces.concat(), expected);
        let sizes: Vec<_> = pieces.iter().map(Bytes::len).collect();
        assert_eq!(sizes, [1, 2, SMALL, 7, SMALL + 1, SMALL + 2, 5]);
    }

    /// Has more than it says.
    struct Liar(Full<Bytes>);

    impl Body for Liar {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Pin::new(&mut self.0).poll_frame(cx)
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(4)
        }
    }

    #[tokio::test]
    async fn i_18_what_is_beyond_the_length_that_was_announced_is_not_kept() {
        let Buffered::Whole { data, .. } = buffer(Liar(Full::from("twelve bytes")), 5).await else {
            panic!("it said that it is small");
        };
        assert_eq!(data, "twel");
    }

    #[tokio::test]
    async fn i_18_what_is_too_large_knows_its_size_too() {
        let full = Full::<Bytes>::from("twelve bytes");
        let mut read = Pieces::default();
        assert!(matches!(read.up_to(5, pin!(full.clone())).await, Ok(false)));
        assert_eq!(read.length, 0, "it said how large it is");
        let Buffered::Partial(mut body) = buffer(full, 5).await else {
            panic!("it is too large");
        };
        assert_eq!(body.size_hint().exact(), Some(12));
        let data = body.frame().await.and_then(|f| f.ok()?.into_data().ok());
        assert_eq!(data.as_deref(), Some(&b"twelve bytes"[..]));
        assert!(body.is_end_stream());
    }
}
