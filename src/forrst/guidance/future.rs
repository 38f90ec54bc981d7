use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};

use super::layer::Settings;
use crate::{forrst::may_be_envelope, http::BufferedBody};

/// The least that a frame counts, so that a stream of empty ones ends.
const MIN_FRAME: usize = 64;

pin_project! {
    /// The future of a [`RetryGuidance`](super::RetryGuidance) service.
    #[must_use = "futures do nothing unless polled"]
    pub struct RetryGuidanceFuture<F, B: Body> {
        #[pin]
        state: State<F, B>,
        settings: Arc<Settings>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, B: Body> {
        // The inner service is called.
        Called { #[pin] future: F },
        // The body is read. It is boxed to keep calls without a readable body small.
        Reading { reading: Option<Box<Reading<B>>> },
    }
}

impl<F, B: Body> RetryGuidanceFuture<F, B> {
    pub(super) fn new(future: F, settings: Arc<Settings>) -> Self {
        Self {
            state: State::Called { future },
            settings,
        }
    }
}

impl<F, B, E> Future for RetryGuidanceFuture<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body,
{
    type Output = Result<Response<BufferedBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProj::Called { future } => {
                    let (parts, body) = ready!(future.poll(cx))?.into_parts();
                    let mut head = Response::from_parts(parts, ());
                    let body = BufferedBody::new(body);
                    if !may_be_envelope(head.headers()) {
                        this.settings.guide_http(&mut head);
                        return Poll::Ready(Ok(head.map(|()| body)));
                    }
                    let reading = Some(Box::new(Reading {
                        head,
                        body,
                        size: 0,
                        timer: None,
                    }));
                    this.state.set(State::Reading { reading });
                }
                StateProj::Reading { reading } => {
                    let Some(mut body) = reading.take() else {
                        unreachable!("the future was polled after completion");
                    };
                    if body.poll(this.settings, cx).is_pending() {
                        *reading = Some(body);
                        return Poll::Pending;
                    }
                    return Poll::Ready(Ok(body.finish(this.settings)));
                }
            }
        }
    }
}

/// A reply whose body is being read.
struct Reading<B: Body> {
    head: Response<()>,
    body: BufferedBody<B>,
    size: usize,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<B: Body> Reading<B> {
    /// Reads until the end, the limit or the timeout.
    fn poll(&mut self, settings: &Settings, cx: &mut Context<'_>) -> Poll<()> {
        if self.body.size_hint().lower() > settings.limit as u64 {
            return Poll::Ready(());
        }
        while self.size <= settings.limit {
            match self.body.poll_read(cx) {
                Poll::Ready(None) => break,
                Poll::Ready(Some(data)) => self.size += data.unwrap_or_default().max(MIN_FRAME),
                Poll::Pending => {
                    let timer = self
                        .timer
                        .get_or_insert_with(|| Box::pin(sleep(settings.time)));
                    ready!(timer.as_mut().poll(cx));
                    break;
                }
            }
        }
        Poll::Ready(())
    }

    fn finish(mut self, settings: &Settings) -> Response<BufferedBody<B>> {
        match self.body.complete() {
            Some(whole) if whole.len() <= settings.limit => {
                if let Some(changed) = settings.guide(&mut self.head, &whole) {
                    self.body = self.body.replace(changed);
                }
            }
            _ => settings.guide_http(&mut self.head),
        }
        self.head.map(|()| self.body)
    }
}

opaque_debug! { RetryGuidanceFuture<F, B: Body> }
