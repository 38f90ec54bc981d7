use std::{
    future::Future,
    task::{Context, Poll},
};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::client::pool::Pooled;

/// A timer for calls that have to wait. It takes a box when it is set, so that others move a pointer.
#[derive(Debug, Default)]
pub(crate) struct Timer(Option<Pooled<Option<Sleep>>>);

impl Timer {
    pub(crate) fn set(&mut self, at: Instant) {
        let sleep = self.0.get_or_insert_with(Pooled::take);
        sleep.as_mut().set(Some(sleep_until(at)));
    }

    pub(crate) fn unset(&mut self) {
        self.0 = None;
    }

    /// Waits for the time that it is set to, if it is.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.0.as_mut().map(Pooled::as_mut);
        match sleep.and_then(|sleep| sleep.as_pin_mut()) {
            Some(sleep) => sleep.poll(cx),
            None => Poll::Ready(()),
        }
    }

    /// Waits for the time that it was set to by the first poll.
    pub(crate) fn poll_until(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        if self.0.is_none() {
            self.set(at);
        }
        self.poll(cx)
    }
}
