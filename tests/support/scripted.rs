//! A service that answers each attempt by a script.

use std::{
    collections::HashMap,
    future::{Future, pending, ready},
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use tokio::time::{Instant, sleep};
use tower::Service;
use tower_reprise::error::BoxError;

pub(crate) type Reply = Result<Response<Bytes>, BoxError>;
type Answer = Pin<Box<dyn Future<Output = Reply> + Send>>;
type Script<B> = dyn Fn(&Request<B>, usize) -> Answer + Send + Sync;
type Log<B> = Arc<Mutex<Vec<(Instant, Request<B>)>>>;

/// Does what its script says for the n-th attempt of a call, and remembers what it got and when.
/// Calls are told apart by their `x-call` header. Panics when it is called without having been
/// readied (D-7).
pub(crate) struct Server<B = ()> {
    script: Arc<Script<B>>,
    attempts: Arc<Mutex<HashMap<Option<HeaderValue>, usize>>>,
    seen: Log<B>,
    readied: bool,
}

impl<B> Server<B> {
    pub(crate) fn new<F>(script: impl Fn(&Request<B>, usize) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Reply> + Send + 'static,
    {
        Self {
            script: Arc::new(move |request, n| Box::pin(script(request, n))),
            attempts: Arc::default(),
            seen: Arc::default(),
            readied: false,
        }
    }

    pub(crate) fn steps(script: impl Fn(usize) -> Step + Send + Sync + 'static) -> Self {
        Self::new(move |_, n| script(n).run())
    }

    /// Answers with these statuses; one attempt more is a panic.
    pub(crate) fn statuses<const N: usize>(statuses: [u16; N]) -> Self {
        Self::replies(move |_, n| status(statuses[n]))
    }

    /// Always the same status.
    pub(crate) fn always(code: u16) -> Self {
        Self::replies(move |_, _| status(code))
    }

    /// Answers at once.
    pub(crate) fn replies(
        script: impl Fn(&Request<B>, usize) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        Self::new(move |request, n| ready(Ok(script(request, n))))
    }

    pub(crate) fn calls(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// When each attempt came.
    pub(crate) fn times(&self) -> Vec<Instant> {
        let seen = self.seen.lock().unwrap();
        seen.iter().map(|(at, _)| *at).collect()
    }

    /// The waits between attempts, for a server that answers at once.
    pub(crate) fn waits(&self) -> Vec<Duration> {
        self.times().windows(2).map(|w| w[1] - w[0]).collect()
    }

    pub(crate) fn requests(&self) -> Vec<Request<B>>
    where
        B: Clone,
    {
        let seen = self.seen.lock().unwrap();
        seen.iter().map(|(_, request)| request.clone()).collect()
    }

    /// A header over all attempts.
    pub(crate) fn header(&self, name: &str) -> Vec<Option<String>> {
        let seen = self.seen.lock().unwrap();
        let value = |request: &Request<B>| Some(request.headers().get(name)?.to_str().ok()?.into());
        seen.iter().map(|(_, request)| value(request)).collect()
    }
}

impl<B> Clone for Server<B> {
    fn clone(&self) -> Self {
        Self {
            script: Arc::clone(&self.script),
            attempts: Arc::clone(&self.attempts),
            seen: Arc::clone(&self.seen),
            readied: false,
        }
    }
}

impl<B> Service<Request<B>> for Server<B> {
    type Response = Response<Bytes>;
    type Error = BoxError;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.readied = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Answer {
        assert!(std::mem::take(&mut self.readied), "called unreadied");
        let n = {
            let mut attempts = self.attempts.lock().unwrap();
            let call = request.headers().get("x-call").cloned();
            let n = attempts.entry(call).or_default();
            *n += 1;
            *n - 1
        };
        let answer = (self.script)(&request, n);
        self.seen.lock().unwrap().push((Instant::now(), request));
        answer
    }
}

/// A server's action on one attempt.
pub(crate) enum Step {
    Reply(Response<Bytes>),
    Fail(BoxError),
    After(Duration, Box<Step>),
    Never,
}

impl Step {
    pub(crate) fn status(code: u16) -> Self {
        Self::Reply(status(code))
    }

    pub(crate) fn with_header(code: u16, name: &str, value: &str) -> Self {
        let response = Response::builder().status(code).header(name, value);
        Self::Reply(response.body(Bytes::from_static(b"body")).unwrap())
    }

    pub(crate) fn reset() -> Self {
        Self::Fail(io::Error::from(io::ErrorKind::ConnectionReset).into())
    }

    pub(crate) fn after(self, wait: Duration) -> Self {
        Self::After(wait, Box::new(self))
    }

    async fn run(self) -> Reply {
        match self {
            Self::Reply(response) => Ok(response),
            Self::Fail(error) => Err(error),
            Self::After(wait, step) => {
                sleep(wait).await;
                Box::pin(step.run()).await
            }
            Self::Never => pending().await,
        }
    }
}

pub(crate) fn status(code: u16) -> Response<Bytes> {
    let response = Response::builder().status(code);
    response.body(Bytes::from_static(b"body")).unwrap()
}
