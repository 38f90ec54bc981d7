use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Sleep, sleep};

/// Waits for a future for no longer than this.
pub(super) fn within<F: Future>(
    limit: Duration,
    mut future: Pin<&mut F>,
) -> impl Future<Output = Option<F::Output>> {
    let mut timer = Timer::new(limit);
    poll_fn(move |cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => timer.poll(cx).map(|()| None),
    })
}

/// A timer that is registered when it is first polled: a future that is ready at once needs none.
pub(super) struct Timer {
    after: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    pub(super) fn new(after: Duration) -> Self {
        Self { after, sleep: None }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let after = self.after;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep(after)));
        sleep.as_mut().poll(cx)
    }
}

/// Polls a future once.
pub(super) async fn now_or_later<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}
