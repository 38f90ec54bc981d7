use std::{
    collections::VecDeque,
    fmt,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::http::{
    read::{Read, Trailers, into_bytes},
    size_hint::size_after,
};

pin_project! {
    /// The body of a reply: one that was kept, or the handler's own as it comes.
    pub struct IdempotencyBody<B: Body> {
        #[pin]
        state: State<B>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<B: Body> {
        // The handler's.
        Inner { #[pin] body: B },
        // At hand as a whole.
        Whole { data: Option<Bytes>, trailers: Trailers },
        // Too large to be kept: what was read of it, and then the rest.
        Partly { read: VecDeque<Bytes>, rest: Pin<Box<B>> },
        // Broken off.
        Broken { read: VecDeque<Bytes>, error: Option<B::Error> },
    }
}

impl<B: Body> IdempotencyBody<B> {
    pub(crate) fn inner(body: B) -> Self {
        Self {
            state: State::Inner { body },
        }
    }

    pub(crate) fn whole(data: Bytes, trailers: Trailers) -> Self {
        Self {
            state: State::Whole {
                data: Some(data).filter(|data| !data.is_empty()),
                trailers,
            },
        }
    }
}

impl<B: Body> fmt::Debug for IdempotencyBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Inner { .. } => "inner",
            State::Whole { .. } => "whole",
            State::Partly { .. } => "partly",
            State::Broken { .. } => "broken",
        };
        f.debug_tuple("IdempotencyBody").field(&state).finish()
    }
}

impl<B: Body> Body for IdempotencyBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = match self.project().state.project() {
            StateProj::Inner { body } => ready!(body.poll_frame(cx)).map(into_bytes),
            StateProj::Whole { data, trailers } => {
                let data = data.take().map(Frame::data);
                data.or_else(|| trailers.take().map(|trailers| Frame::trailers(*trailers)))
                    .map(Ok)
            }
            StateProj::Partly { read, rest } => match read.pop_front() {
                Some(data) => Some(Ok(Frame::data(data))),
                None => ready!(rest.as_mut().poll_frame(cx)).map(into_bytes),
            },
            StateProj::Broken { read, error } => match read.pop_front() {
                Some(data) => Some(Ok(Frame::data(data))),
                None => error.take().map(Err),
            },
        };
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            State::Inner { body } => body.is_end_stream(),
            State::Whole { data, trailers } => data.is_none() && trailers.is_none(),
            State::Partly { read, rest } => read.is_empty() && rest.is_end_stream(),
            State::Broken { read, error } => read.is_empty() && error.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let length =
            |read: &VecDeque<Bytes>| -> u64 { read.iter().map(|data| data.len() as u64).sum() };
        match &self.state {
            State::Inner { body } => body.size_hint(),
            State::Whole { data, .. } => {
                SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64))
            }
            State::Partly { read, rest } => size_after(length(read), rest.size_hint()),
            State::Broken { read, .. } => size_after(length(read), SizeHint::new()),
        }
    }
}

/// A body that was read up to a limit.
pub(crate) enum Gathered<B: Body> {
    Whole {
        data: Bytes,
        trailers: Trailers,
    },
    /// It is larger than the limit: what was read of it, and then the rest.
    TooLarge(IdempotencyBody<B>),
    /// It broke off.
    Broken(IdempotencyBody<B>),
}

/// Reads a body up to a limit. What is larger is not lost.
pub(crate) async fn gather<B: Body>(body: B, limit: usize) -> Gathered<B> {
    if let Some(length) = within(limit, &body.size_hint()) {
        return gather_all(body, limit, length).await;
    }
    let mut body = Box::pin(body);
    let mut read = Read::default();
    match read.up_to(limit, body.as_mut()).await {
        Ok(true) => Gathered::Whole {
            data: read.joined(),
            trailers: read.trailers,
        },
        Ok(false) => Gathered::TooLarge(IdempotencyBody {
            state: State::Partly {
                read: read.pieces(),
                rest: body,
            },
        }),
        Err(error) => Gathered::Broken(IdempotencyBody {
            state: State::Broken {
                read: read.pieces(),
                error: Some(error),
            },
        }),
    }
}

/// The length of a body that knows it, if it is not too large.
fn within(limit: usize, hint: &SizeHint) -> Option<usize> {
    let length = usize::try_from(hint.exact()?).ok()?;
    (length <= limit).then_some(length)
}

/// Reads a body of which there will be no rest, so that it can be read where it is. If there is one
/// all the same it is left out, as servers do with what is beyond the length that was announced.
async fn gather_all<B: Body>(body: B, limit: usize, length: usize) -> Gathered<B> {
    let mut read = Read::default();
    match read.up_to(limit, pin!(body)).await {
        Ok(whole) => {
            let mut data = read.joined();
            if !whole {
                data.truncate(length);
            }
            Gathered::Whole {
                data,
                trailers: read.trailers,
            }
        }
        Err(error) => Gathered::Broken(IdempotencyBody {
            state: State::Broken {
                read: read.pieces(),
                error: Some(error),
            },
        }),
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    fn full(data: &'static str) -> Full<Bytes> {
        Full::from(data)
    }

    /// What servers make a length header of.
    #[tokio::test]
    async fn i_8_a_body_knows_its_size_and_its_end() {
        let body = IdempotencyBody::<Full<Bytes>>::whole("four".into(), None);
        assert_eq!(body.size_hint().exact(), Some(4));
        assert!(!body.is_end_stream());
        let empty = IdempotencyBody::<Full<Bytes>>::whole(Bytes::new(), None);
        assert_eq!(
            (empty.size_hint().exact(), empty.is_end_stream()),
            (Some(0), true)
        );
        let inner = IdempotencyBody::inner(full("four"));
        assert_eq!(
            (inner.size_hint().exact(), inner.is_end_stream()),
            (Some(4), false)
        );
        let trailers = Some(Box::default());
        let mut trailing = IdempotencyBody::<Full<Bytes>>::whole(Bytes::new(), trailers);
        assert!(!trailing.is_end_stream(), "there are trailers");
        assert!(
            trailing
                .frame()
                .await
                .is_some_and(|f| f.is_ok_and(|f| f.is_trailers()))
        );
        assert!(trailing.is_end_stream());
    }

    /// Has more than it says.
    struct Liar(Full<Bytes>);

    impl Body for Liar {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Pin::new(&mut self.0).poll_frame(cx)
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(4)
        }
    }

    #[tokio::test]
    async fn i_18_what_is_beyond_the_length_that_was_announced_is_not_kept() {
        let Gathered::Whole { data, .. } = gather(Liar(full("twelve bytes")), 5).await else {
            panic!("it said that it is small");
        };
        assert_eq!(data, "twel");
    }

    #[tokio::test]
    async fn i_18_what_is_too_large_knows_its_size_too() {
        let mut body = Box::pin(full("twelve bytes"));
        let mut read = Read::default();
        assert!(matches!(read.up_to(5, body.as_mut()).await, Ok(false)));
        assert_eq!(read.length(), 0, "it said how large it is");
        let Gathered::TooLarge(mut body) = gather(full("twelve bytes"), 5).await else {
            panic!("it is too large");
        };
        assert_eq!(body.size_hint().exact(), Some(12));
        let data = body.frame().await.and_then(|f| f.ok()?.into_data().ok());
        assert_eq!(data.as_deref(), Some(&b"twelve bytes"[..]));
        assert!(body.is_end_stream());
    }
}
