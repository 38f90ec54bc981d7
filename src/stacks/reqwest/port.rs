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

use http::{Extensions, Request};
use reqwest::{Body, Response};
use reqwest_middleware::Error;
use tower::Service;

use super::{
    middleware::inner,
    shell::{self, Last, Mould, is_same},
};
use crate::{call::Attempt, error::BoxError};

/// One call's way from its layers to the chain. What is at it goes back to its thread's pool.
#[derive(Debug)]
pub(super) struct Port(Option<Box<Desk>>);

/// What lies there.
#[derive(Debug)]
struct Desk {
    /// The call of a [`Hop`] that is open.
    open: Option<u64>,
    /// What is to be sent, or what it is made with.
    request: Option<reqwest::Request>,
    /// Whether it is to be sent.
    wanted: bool,
    mould: Mould,
    /// With nothing in it: what is to be called comes and goes with one of these.
    plain: Option<Request<Body>>,
    /// Where it goes to, unless the layers have that. It stays for the next call.
    last: Last,
    /// Which attempt it is, if it is another one.
    attempt: Option<Attempt>,
    answer: Poll<Result<Response, Error>>,
    /// Who waits for the answer.
    waker: Option<Waker>,
}

impl Default for Desk {
    fn default() -> Self {
        Self {
            open: None,
            request: None,
            wanted: false,
            mould: Mould::default(),
            plain: None,
            last: Last::default(),
            attempt: None,
            answer: Poll::Pending,
            waker: None,
        }
    }
}

impl Desk {
    /// Leaves nothing of a call but where it went, if that may be known.
    fn clear(&mut self) {
        let Self {
            open,
            request,
            wanted,
            mould,
            plain: _,
            last,
            attempt,
            answer,
            waker,
        } = self;
        (*open, *request, *wanted) = (None, None, false);
        (*mould, *attempt) = (Mould::default(), None);
        (*answer, *waker) = (Poll::Pending, None);
        last.clear();
    }

    /// What the layers are to call.
    fn hand_out(&mut self, extensions: &Extensions) -> Option<Request<Body>> {
        let plain = self.plain.get_or_insert_default();
        shell::swap(self.request.as_mut()?, plain, &mut self.last);
        if !extensions.is_empty() {
            plain.extensions_mut().clone_from(extensions);
        }
        self.plain.take()
    }

    /// What the layers called.
    #[inline]
    fn put(&mut self, plain: Request<Body>) {
        let plain = self.plain.insert(plain);
        let is_first = |first: &reqwest::Request| is_same(first.url(), plain.uri());
        if !self.request.as_ref().is_some_and(is_first) && self.make().is_none() {
            return;
        }
        if let (Some(shell), Some(plain)) = (&mut self.request, &mut self.plain) {
            shell::swap(shell, plain, &mut self.last);
            self.wanted = true;
            self.attempt = None;
            if !plain.extensions().is_empty() {
                self.attempt = plain.extensions().get().copied();
                self.plain = None;
            }
        }
    }

    /// Makes what another request is sent with.
    #[cold]
    fn make(&mut self) -> Option<()> {
        let plain = self.plain.take()?;
        self.last.turned(plain.uri());
        match self.mould.shell(plain.uri()) {
            Ok(shell) => self.request = Some(shell),
            Err(error) => {
                self.answer = Poll::Ready(Err(error.into()));
                return None;
            }
        }
        self.plain = Some(plain);
        Some(())
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

    /// Whether the request goes anywhere that could be called.
    #[inline]
    pub(super) fn leads_anywhere(&mut self) -> bool {
        let mut turn = || {
            let desk = self.0.as_mut()?;
            let request = desk.request.as_ref()?;
            desk.mould = Mould::of(request);
            desk.last.turn_to(request.url())
        };
        turn().is_some()
    }

    /// Takes back a request that was not called.
    pub(super) fn take(&mut self) -> Option<reqwest::Request> {
        self.0.as_mut()?.request.take()
    }

    /// Has the layers call what is at the port.
    #[inline]
    pub(super) fn call<S: Service<Request<Body>>>(
        &mut self,
        layers: &mut S,
        extensions: &Extensions,
    ) -> S::Future {
        let plain = self.0.as_mut().and_then(|desk| desk.hand_out(extensions));
        let _entered = self.enter();
        layers.call(plain.unwrap_or_default())
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

    /// Asks for an answer, and whether there is one.
    #[inline]
    pub(super) fn answer_with(
        &mut self,
        ask: impl FnOnce() -> Poll<Result<Response, Error>>,
    ) -> bool {
        let Some(desk) = &mut self.0 else {
            return false;
        };
        desk.answer = ask();
        desk.answer.is_ready()
    }

    /// Who waits for the answer.
    pub(super) fn take_waker(&mut self) -> Option<Waker> {
        self.0.as_mut()?.waker.take()
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

/// The innermost service of a [`TowerMiddleware`](super::TowerMiddleware): what comes next in the chain.
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
        let answer = at_desk(|desk| {
            desk.open
                .take_if(|open| *open == number && desk.answer.is_ready())?;
            Some(mem::replace(&mut desk.answer, Poll::Pending))
        });
        if let Some(Poll::Ready(answer)) = answer {
            self.0 = None;
            return Poll::Ready(answer.map_err(inner));
        }
        Self::wait(number, cx)
    }
}

impl HopFuture {
    #[inline(never)]
    fn wait(number: u64, cx: &mut Context<'_>) -> Poll<Result<Response, BoxError>> {
        let waker = cx.waker().clone();
        let waits = at_desk(|desk| {
            desk.open.filter(|open| *open == number)?;
            Some(desk.waker.replace(waker))
        });
        match waits {
            Some(_) => Poll::Pending,
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
            Some((request, mem::replace(&mut desk.answer, Poll::Pending)))
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
