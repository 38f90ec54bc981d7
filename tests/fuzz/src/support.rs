//! A runtime, and a body that comes in pieces.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::runtime::{Builder, Runtime};

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
}

/// Runs it to its end, on a clock that waits for nobody.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    RUNTIME.with(|runtime| runtime.block_on(future))
}

/// Header fields, one a line. What is none is left out.
pub(crate) fn headers(text: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in text.split(|byte| *byte == b'\n').take(64) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let name = http::HeaderName::from_bytes(&line[..colon]);
        let value = http::HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    headers
}

/// The bytes of an input, to make decisions with. They are followed by zeros.
pub(crate) struct Dice<'a>(pub(crate) &'a [u8]);

impl<'a> Dice<'a> {
    pub(crate) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    pub(crate) fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
    Fail,
    /// Not ready for once.
    Wait,
}

/// A body that does what it is told.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    pub(crate) left: VecDeque<Piece>,
    pub(crate) sized: bool,
}

impl Pieces {
    /// This text, cut at random.
    pub(crate) fn cut(text: &[u8], dice: &mut Dice<'_>) -> Self {
        let mut left = VecDeque::new();
        let mut text = text;
        while !text.is_empty() {
            let length = match dice.byte() {
                0 => text.len(),
                255 => {
                    left.push_back(Piece::Wait);
                    continue;
                }
                length => usize::from(length).min(text.len()),
            };
            let (piece, rest) = text.split_at(length);
            left.push_back(Piece::Data(Bytes::copy_from_slice(piece)));
            text = rest;
        }
        Self { left, sized: false }
    }
}

#[derive(Debug, PartialEq)]
pub(crate) struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the body broke")
    }
}

impl std::error::Error for Broken {}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        Poll::Ready(match self.left.pop_front() {
            None => None,
            Some(Piece::Data(data)) => Some(Ok(Frame::data(data))),
            Some(Piece::Trailers(trailers)) => Some(Ok(Frame::trailers(trailers))),
            Some(Piece::Fail) => {
                self.left.clear();
                Some(Err(Broken))
            }
            Some(Piece::Wait) => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        })
    }

    fn size_hint(&self) -> SizeHint {
        match self.sized {
            true => SizeHint::with_exact(whole(&self.left).data.len() as u64),
            false => SizeHint::new(),
        }
    }
}

/// All that a body says.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Whole {
    pub(crate) data: Vec<u8>,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) failed: bool,
}

pub(crate) fn whole<'a>(pieces: impl IntoIterator<Item = &'a Piece>) -> Whole {
    let mut whole = Whole::default();
    for piece in pieces {
        match piece {
            Piece::Data(data) => whole.data.extend_from_slice(data),
            Piece::Trailers(trailers) => whole.trailers = Some(trailers.clone()),
            Piece::Fail => {
                whole.failed = true;
                break;
            }
            Piece::Wait => {}
        }
    }
    whole
}

/// Reads up to so many frames. Whether it came to its end, and what was read.
pub(crate) async fn read<B>(body: &mut B, most: usize) -> (bool, Whole)
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut whole = Whole::default();
    for _ in 0..most {
        match body.frame().await.map(|frame| frame.map(Frame::into_data)) {
            None => return (true, whole),
            Some(Ok(Ok(data))) => whole.data.extend_from_slice(&data),
            Some(Ok(Err(frame))) => whole.trailers = frame.into_trailers().ok(),
            Some(Err(_)) => {
                whole.failed = true;
                return (true, whole);
            }
        }
    }
    (false, whole)
}
