//! A body that does what it is told, piece by piece.

use std::{
    collections::VecDeque,
    convert::Infallible,
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use proptest::prelude::*;
use tokio::time::{Sleep, sleep};

/// A piece of a body.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
    /// An error.
    Fail,
    /// Nothing for a while; for no time at all it is just not ready for once.
    Wait(Duration),
}

pub(crate) fn data(bytes: impl Into<Bytes>) -> Piece {
    Piece::Data(bytes.into())
}

pub(crate) fn trailers<const N: usize>(fields: [(&'static str, &str); N]) -> Piece {
    let field = |(name, value): (&'static str, &str)| {
        let value = HeaderValue::from_str(value).unwrap();
        (HeaderName::from_static(name), value)
    };
    Piece::Trailers(fields.into_iter().map(field).collect())
}

/// The error of a body that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body broke")
    }
}

impl Error for Broken {}

/// A body of pieces.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    left: VecDeque<Piece>,
    /// Its size hint is exact; otherwise it has none.
    sized: bool,
    /// It says that it is at its end before it is asked for a frame.
    announces_end: bool,
    polls: Arc<AtomicUsize>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Pieces {
    pub(crate) fn new(pieces: impl IntoIterator<Item = Piece>) -> Self {
        Self {
            left: pieces.into_iter().collect(),
            ..Self::default()
        }
    }

    pub(crate) fn sized(mut self, sized: bool) -> Self {
        self.sized = sized;
        self
    }

    pub(crate) fn announces_end(mut self, announces: bool) -> Self {
        self.announces_end = announces;
        self
    }

    /// Returns the counter of polls for a frame.
    pub(crate) fn polls(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.polls)
    }

    fn next(&mut self) -> Option<Result<Frame<Bytes>, Broken>> {
        Some(match self.left.pop_front()? {
            Piece::Data(data) => Ok(Frame::data(data)),
            Piece::Trailers(trailers) => Ok(Frame::trailers(trailers)),
            Piece::Fail => Err(Broken),
            Piece::Wait(_) => return self.next(),
        })
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        while let Some(Piece::Wait(time)) = self.left.front() {
            let time = *time;
            if time.is_zero() {
                self.left.pop_front();
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep(time)));
            ready!(sleep.as_mut().poll(cx));
            self.sleep = None;
            self.left.pop_front();
        }
        Poll::Ready(self.next())
    }

    fn is_end_stream(&self) -> bool {
        let waits = |piece: &Piece| matches!(piece, Piece::Wait(_));
        self.announces_end && self.left.iter().all(waits)
    }

    fn size_hint(&self) -> SizeHint {
        match self.sized {
            true => SizeHint::with_exact(all_data(&self.left).len() as u64),
            false => SizeHint::new(),
        }
    }
}

/// All data of these pieces, in a row.
pub(crate) fn all_data<'a>(pieces: impl IntoIterator<Item = &'a Piece>) -> Vec<u8> {
    let mut all = Vec::new();
    for piece in pieces {
        if let Piece::Data(data) = piece {
            all.extend_from_slice(data);
        }
    }
    all
}

/// A body as it is read: what came, until the end, an error, or so many frames.
pub(crate) async fn read<B>(body: &mut B, most: usize) -> Vec<Piece>
where
    B: Body<Data = Bytes> + Unpin,
{
    use http_body_util::BodyExt;
    let mut read = Vec::new();
    while read.len() < most {
        let Some(frame) = body.frame().await else {
            break;
        };
        let Ok(frame) = frame else {
            read.push(Piece::Fail);
            break;
        };
        read.push(match frame.into_data() {
            // A copy, since a frame may be room that belongs to somebody.
            Ok(data) => Piece::Data(Bytes::copy_from_slice(&data)),
            Err(frame) => Piece::Trailers(frame.into_trailers().unwrap()),
        });
    }
    read
}

/// Bodies of any shape: data cut anywhere, empty frames, pauses, and at the end trailers, an error
/// or nothing.
pub(crate) fn any_pieces() -> impl Strategy<Value = Vec<Piece>> {
    let piece = prop_oneof![
        6 => prop::collection::vec(any::<u8>(), 1..12).prop_map(data),
        1 => Just(data("")),
        2 => Just(Piece::Wait(Duration::ZERO)),
        1 => Just(Piece::Wait(Duration::from_millis(3))),
    ];
    let field = ("x-[a-c]", "[ -~]{0,6}");
    let fields = prop::collection::vec(field, 1..4).prop_map(|fields| {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            let name: HeaderName = name.parse().unwrap();
            map.append(name, value.trim().parse().unwrap());
        }
        Piece::Trailers(map)
    });
    let end = prop_oneof![
        3 => Just(None),
        3 => fields.prop_map(Some),
        1 => Just(Some(Piece::Fail)),
    ];
    (prop::collection::vec(piece, 0..8), end).prop_map(|(mut pieces, end)| {
        pieces.extend(end);
        pieces
    })
}

/// A runtime whose time passes only when there is nothing else to do.
pub(crate) fn paused() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap()
}

/// A body that must not be read, with or without a size.
pub(crate) struct Untouchable(pub(crate) Option<u64>);

impl Body for Untouchable {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        panic!("it was read")
    }

    fn size_hint(&self) -> SizeHint {
        self.0.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
