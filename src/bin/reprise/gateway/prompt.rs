//! Connections whose peers have to say soon which HTTP they speak.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// The preface of HTTP/2. Every other connection is HTTP/1, which has a timeout for its heads.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream that breaks off if that is not known in time.
pub(crate) struct Prompt<S> {
    stream: S,
    asking: Option<Asking>,
}

/// It is not known yet.
struct Asking {
    late: Pin<Box<Sleep>>,
    /// The part of the preface that has not arrived yet.
    left: &'static [u8],
}

impl<S> Prompt<S> {
    pub(crate) fn new(stream: S, within: Duration) -> Self {
        let asking = Asking {
            late: Box::pin(sleep(within)),
            left: PREFACE,
        };
        Self {
            stream,
            asking: Some(asking),
        }
    }
}

impl Asking {
    /// Whether it is known, now that this was said. Nothing is the end.
    fn hears(&mut self, said: &[u8]) -> bool {
        match self.left.strip_prefix(said) {
            Some(left) if !said.is_empty() => self.left = left,
            _ => return true,
        }
        self.left.is_empty()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prompt<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        let Some(asking) = &mut this.asking else {
            return read;
        };
        if read.is_pending() {
            ready!(asking.late.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if asking.hears(&buf.filled()[before..]) {
            this.asking = None;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prompt<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
}
