//! How layers that live as long as the client reach a chain that is lent to one call.
//!
//! The layers end in a [`Hop`], which leaves what is to be sent at the port of the call that is
//! being polled, and finds the answer there. A port is on its thread only while the layers of its
//! call run, so that it takes neither a lock nor a count.

use std::{
    cell::{Cell, RefCell},
    error, fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll, Waker},
};

use http::{Extensions, Request, Uri};
use reqwest::{Body, Response};
use tower::Service;

use super::shell::{self, Mould, is_same};
use crate::{error::BoxError, retry::Attempt};

/// One call's way from its layers to the chain. What is at it goes back to its thread's pool.
#[derive(Debug)]
pub(super) struct Port(Option<Box<Desk>>);

/// What lies there.
#[derive(Debug, Default)]
struct Desk {
    /// The call of a [`Hop`] that is open.
    open: Option<u64>,
    /// What is to be sent, or what it is made with.
    request: Option<reqwest::Request>,
    /// Whether it is to be sent.
    wanted: bool,
    mould: Mould,
    /// Which attempt it is, if it is another one.
    attempt: Option<Attempt>,
    answer: Option<Result<Response, BoxError>>,
    /// Who waits for the answer.
    waker: Option<Waker>,
}

impl Desk {
    /// Leaves nothing of a call.
    fn clear(&mut self) {
        let Self {
            open,
            request,
            wanted,
            mould,
            attempt,
            answer,
            waker,
        } = self;
        (*open, *request, *wanted) = (None, None, false);
        (*mould, *attempt) = (Mould::default(), None);
        (*answer, *waker) = (None, None);
    }

    fn put(&mut self, plain: Request<Body>) {
        self.attempt = plain.extensions().get().copied();
        let is_first = |first: &reqwest::Request| is_same(first.url(), plain.uri());
        if !self.request.as_ref().is_some_and(is_first) {
            match self.mould.shell(plain.uri()) {
                Ok(shell) => self.request = Some(shell),
                Err(error) => {
                    self.answer = Some(Err(error.into()));
                    return;
                }
            }
        }
        if let Some(shell) = &mut self.request {
            shell::fill(shell, plain);
            self.wanted = true;
        }
    }
}

thread_local! {
    /// The desk of the call whose layers are being polled.
    static CURRENT: RefCell<Option<Box<Desk>>> = const { RefCell::new(None) };
    /// Desks with nothing on them.
    #[allow(clippy::vec_box, reason = "what is taken is moved by its pointer")]
    static POOL: RefCell<Vec<Box<Desk>>> = const { RefCell::new(Vec::new()) };
    /// The number of the next call of a [`Hop`], which no other thread has.
    static NUMBER: Cell<u64> = Cell::new(THREADS.fetch_add(1 << 40, Ordering::Relaxed));
}

static THREADS: AtomicU64 = AtomicU64::new(0);

impl Port {
    /// A port with this request at it. It is looked at from there on, and moved no more.
    #[inline]
    pub(super) fn new(request: reqwest::Request) -> Self {
        let pooled = POOL.try_with(|pool| pool.borrow_mut().pop()).ok().flatten();
        let mut desk = pooled.unwrap_or_default();
        desk.request = Some(request);
        Self(Some(desk))
    }

    /// Where the request goes to, unless that is nothing that could be called.
    pub(super) fn uri(&mut self) -> Option<Uri> {
        let desk = self.0.as_mut()?;
        let request = desk.request.as_ref()?;
        desk.mould = Mould::of(request);
        shell::uri(request.url())
    }

    /// Takes back a request that was not called.
    pub(super) fn take(&mut self) -> Option<reqwest::Request> {
        self.0.as_mut()?.request.take()
    }

    /// Has the layers call what is at the port, which goes to this URI.
    #[inline]
    pub(super) fn call<S: Service<Request<Body>>>(
        &mut self,
        layers: &mut S,
        uri: Uri,
        extensions: &Extensions,
    ) -> S::Future {
        let desk = self.0.as_mut();
        let request = desk.and_then(|desk| desk.request.as_mut());
        let mut plain = request.map_or_else(Request::default, |request| shell::empty(request, uri));
        if !extensions.is_empty() {
            plain.extensions_mut().clone_from(extensions);
        }
        let _entered = self.enter();
        layers.call(plain)
    }

    /// Has calls of the layers go through this port, until what is returned is dropped.
    pub(super) fn enter(&mut self) -> Entered<'_> {
        swap(&mut self.0);
        Entered(self)
    }

    /// What is to be called, once.
    pub(super) fn take_wanted(&mut self) -> Option<reqwest::Request> {
        let desk = self.0.as_mut()?;
        mem::take(&mut desk.wanted).then(|| desk.request.take())?
    }

    pub(super) fn wants(&self) -> bool {
        self.0.as_ref().is_some_and(|desk| desk.wanted)
    }

    /// Which attempt it is, if it is another one.
    pub(super) fn attempt(&self) -> Option<Attempt> {
        self.0.as_ref()?.attempt
    }

    /// Whether somebody waits for an answer.
    pub(super) fn is_open(&self) -> bool {
        self.0.as_ref().is_some_and(|desk| desk.open.is_some())
    }

    /// Hands in an answer, and returns who waits for it.
    pub(super) fn answer(&mut self, result: Result<Response, BoxError>) -> Option<Waker> {
        let desk = self.0.as_mut()?;
        desk.answer = Some(result);
        desk.waker.take()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        const POOLED: usize = 64;
        let Some(mut desk) = self.0.take() else {
            return;
        };
        desk.clear();
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < POOLED {
                pool.push(desk);
            }
        });
    }
}

/// While it lives, calls of the layers go through its port.
pub(super) struct Entered<'a>(&'a mut Port);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        swap(&mut self.0.0);
    }
}

/// Where a thread is about to end, and past having a desk, layers are told that they are misplaced.
fn swap(desk: &mut Option<Box<Desk>>) {
    let _ = CURRENT.try_with(|current| mem::swap(&mut *current.borrow_mut(), desk));
}

fn at_desk<T>(work: impl FnOnce(&mut Desk) -> Option<T>) -> Option<T> {
    let done = CURRENT.try_with(|current| work(current.borrow_mut().as_mut()?));
    done.ok().flatten()
}

/// The innermost service of a [`Stacked`](super::Stacked): what comes next in the chain.
#[derive(Debug, Clone)]
pub struct Hop(());

impl Hop {
    pub(super) fn new() -> Self {
        Self(())
    }
}

impl Service<Request<Body>> for Hop {
    type Response = Response;
    type Error = BoxError;
    type Future = HopFuture;

    #[inline]
    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: Request<Body>) -> HopFuture {
        HopFuture(at_desk(|desk| {
            if desk.open.is_some() {
                return None;
            }
            desk.put(request);
            desk.open = NUMBER
                .try_with(|number| number.replace(number.get() + 1))
                .ok();
            desk.open
        }))
    }
}

/// The future of a [`Hop`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct HopFuture(Option<u64>);

impl Future for HopFuture {
    type Output = Result<Response, BoxError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(number) = self.0 else {
            return Poll::Ready(Err(Misplaced.into()));
        };
        let polled = at_desk(|desk| {
            desk.open.filter(|open| *open == number)?;
            let answer = desk.answer.take();
            let old_waker = match answer {
                Some(_) => {
                    desk.open = None;
                    desk.waker.take()
                }
                None => desk.waker.replace(cx.waker().clone()),
            };
            Some((answer, old_waker))
        });
        match polled {
            Some((Some(answer), _)) => {
                self.0 = None;
                Poll::Ready(answer)
            }
            Some((None, _)) => Poll::Pending,
            None => Poll::Ready(Err(Misplaced.into())),
        }
    }
}

impl Drop for HopFuture {
    #[inline]
    fn drop(&mut self) {
        let Some(number) = self.0 else { return };
        // What is dropped elsewhere is dropped with its call.
        let given_up = at_desk(|desk| {
            desk.open.take_if(|open| *open == number)?;
            let wanted = mem::take(&mut desk.wanted);
            let request = desk.request.take_if(|_| wanted);
            Some((request, desk.answer.take()))
        });
        drop(given_up);
    }
}

/// A layer called from another task, or twice at a time.
#[derive(Debug)]
struct Misplaced;

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a layer of a middleware called from another task, or twice at a time: put layers \
             that spawn around the whole client instead",
        )
    }
}

impl error::Error for Misplaced {}
