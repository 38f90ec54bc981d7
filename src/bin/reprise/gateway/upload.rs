//! Bodies of callers, which have to go on coming.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep};
use tower_reprise::error::BoxError;

pin_project! {
    /// A body that fails if nothing of it comes for some time, until its request has been answered:
    /// from then on a caller may wait for what is said back. Time in which nobody reads it does not
    /// count.
    pub(crate) struct Upload<B> {
        #[pin]
        body: B,
        within: Duration,
        late: Option<Pin<Box<Sleep>>>,
        is_waiting: bool,
        progress: Arc<Progress>,
    }
}

/// The progress of an [`Upload`].
#[derive(Default)]
pub(crate) struct Progress {
    is_answered: AtomicBool,
    is_late: AtomicBool,
}

impl Progress {
    /// Lets the body take its time. Returns whether it has failed for want of it.
    pub(crate) fn answered(&self) -> bool {
        self.is_answered.store(true, Ordering::Relaxed);
        self.is_late.load(Ordering::Relaxed)
    }
}

impl<B> Upload<B> {
    pub(crate) fn new(body: B, within: Duration) -> (Self, Arc<Progress>) {
        let progress = Arc::<Progress>::default();
        let upload = Self {
            body,
            within,
            late: None,
            is_waiting: false,
            progress: Arc::clone(&progress),
        };
        (upload, progress)
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>>> Body for Upload<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.project();
        if let Poll::Ready(frame) = this.body.poll_frame(cx) {
            *this.is_waiting = false;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        if this.progress.is_answered.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        let late = this
            .late
            .get_or_insert_with(|| Box::pin(sleep(*this.within)));
        if !std::mem::replace(this.is_waiting, true) {
            late.as_mut().reset(Instant::now() + *this.within);
        }
        if late.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        this.progress.is_late.store(true, Ordering::Relaxed);
        Poll::Ready(Some(Err("the caller's body did not go on".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
