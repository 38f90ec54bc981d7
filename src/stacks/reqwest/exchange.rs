//! The exchange between layers, which live as long as the client, and a middleware chain, which is
//! lent to one call.
//!
//! The layers end in a [`ChainService`], which leaves the request in the exchange of the call that is
//! being polled, and finds the response there. The exchange is in a slot of the thread while the layers
//! of its call are polled, as a task-local value is. It can't be a part of the service: calls share
//! services, as a retry does that takes the spare one of its route. And on the request it costs more than
//! all else here: `peers stacks` had reqwest_time_ratio at 0.51 this way, and at 0.66 with an exchange that
//! is shared and locked.

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
    convert::{self, RequestTemplate, UriCache},
    middleware::inner,
};
use crate::{call::Attempt, error::BoxError};

/// The exchange of one call. It goes back to the pool of its thread.
#[derive(Debug)]
pub(super) struct CallSlot(Option<Box<Exchange>>);

/// The requests on their way to the chain, and the responses on their way back.
#[derive(Debug, Default)]
struct Exchange {
    template: RequestTemplate,
    /// With nothing in it: what is to be called comes and goes with one of these.
    plain: Option<Request<Body>>,
    /// Where it goes to, unless the layers have that. It stays for the next call.
    last: UriCache,
    /// The attempt that is alone, or that was first. In place, since all that moves here costs.
    first: Lane,
    /// Attempts that were sent while that one was out.
    #[allow(
        clippy::vec_box,
        reason = "a lane is large, and the vector is nearly always empty"
    )]
    beside: Vec<Box<Lane>>,
}

/// An attempt on its way to the chain and back.
#[derive(Debug)]
struct Lane {
    /// The call of a [`ChainService`] that is open.
    open: Option<u64>,
    /// The request to send, or the one that the next is made from.
    request: Option<reqwest::Request>,
    /// Whether it is to be sent.
    wanted: bool,
    /// The attempt that it is, if it is another one.
    attempt: Option<Attempt>,
    answer: Poll<Result<Response, Error>>,
    /// Wakes the layers when the response is there.
    waker: Option<Waker>,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            open: None,
            request: None,
            wanted: false,
            attempt: None,
            answer: Poll::Pending,
            waker: None,
        }
    }
}

impl Lane {
    fn clear(&mut self) {
        let Self {
            open,
            request,
            wanted,
            attempt,
            answer,
            waker,
        } = self;
        (*open, *request, *wanted) = (None, None, false);
        (*attempt, *answer, *waker) = (None, Poll::Pending, None);
    }
}

/// An attempt that the layers want to be sent while the first one is out.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) number: u64,
    pub(super) request: reqwest::Request,
    pub(super) attempt: Option<Attempt>,
}

impl Exchange {
    /// Leaves nothing of a call but where it went, if that may be known.
    fn clear(&mut self) {
        let Self {
            template,
            plain: _,
            last,
            first,
            beside,
        } = self;
        *template = RequestTemplate::default();
        last.clear();
        first.clear();
        beside.clear();
    }

    /// Returns the request for the layers.
    fn hand_out(&mut self, extensions: &Extensions) -> Option<Request<Body>> {
        let plain = self.plain.get_or_insert_default();
        convert::swap(self.first.request.as_mut()?, plain, &mut self.last);
        self.last.lend();
        if !extensions.is_empty() {
            plain.extensions_mut().clone_from(extensions);
        }
        self.plain.take()
    }

    /// Takes the request that the layers called the chain with.
    #[inline]
    fn put(&mut self, plain: Request<Body>) -> Option<u64> {
        let number = NUMBER.try_with(|number| number.replace(number.get() + 1));
        let number = number.ok()?;
        let plain = self.plain.insert(plain);
        let lane = match self.first.open {
            None => &mut self.first,
            Some(_) => {
                self.beside.retain(|lane| lane.open.is_some());
                self.beside.push(Box::default());
                self.beside.last_mut()?
            }
        };
        lane.open = Some(number);
        if lane.request.is_none() || !self.last.take_back(plain.uri()) {
            match make(&self.template, &mut self.last, plain) {
                Ok(request) => lane.request = Some(request),
                Err(error) => {
                    lane.answer = Poll::Ready(Err(error.into()));
                    self.plain = None;
                    return Some(number);
                }
            }
        }
        convert::swap(lane.request.as_mut()?, plain, &mut self.last);
        lane.wanted = true;
        lane.attempt = None;
        if !plain.extensions().is_empty() {
            lane.attempt = plain.extensions().get().copied();
            self.plain = None;
        }
        Some(number)
    }

    #[inline]
    fn lane(&mut self, number: u64) -> Option<&mut Lane> {
        if self.first.open == Some(number) {
            return Some(&mut self.first);
        }
        let mut beside = self.beside.iter_mut();
        beside
            .find(|lane| lane.open == Some(number))
            .map(|lane| &mut **lane)
    }
}

/// Makes what another request is sent with.
#[cold]
fn make(
    template: &RequestTemplate,
    last: &mut UriCache,
    plain: &Request<Body>,
) -> Result<reqwest::Request, reqwest::Error> {
    last.turned(plain.uri());
    template.shell(plain.uri())
}

thread_local! {
    /// The exchange of the call whose layers are being polled.
    static CURRENT: RefCell<Option<Box<Exchange>>> = const { RefCell::new(None) };
    /// Exchanges of calls that ended.
    #[allow(clippy::vec_box, reason = "what is taken is moved by its pointer")]
    static POOL: RefCell<Vec<Box<Exchange>>> = const { RefCell::new(Vec::new()) };
    /// The number of the next call of a [`ChainService`], which no other thread has.
    static NUMBER: Cell<u64> = Cell::new(THREADS.fetch_add(1 << 40, Ordering::Relaxed));
}

static THREADS: AtomicU64 = AtomicU64::new(0);

impl CallSlot {
    /// Makes the exchange of a call, with its request.
    #[inline]
    pub(super) fn new(request: reqwest::Request) -> Self {
        let pooled = POOL.try_with(|pool| pool.borrow_mut().pop()).ok().flatten();
        let mut exchange = pooled.unwrap_or_default();
        exchange.first.request = Some(request);
        Self(Some(exchange))
    }

    /// Whether the request goes anywhere that could be called.
    #[inline]
    pub(super) fn leads_anywhere(&mut self) -> bool {
        let mut turn = || {
            let exchange = self.0.as_mut()?;
            let request = exchange.first.request.as_ref()?;
            exchange.template = RequestTemplate::of(request);
            exchange.last.turn_to(request.url())
        };
        turn().is_some()
    }

    /// Takes back a request that was not called.
    pub(super) fn take(&mut self) -> Option<reqwest::Request> {
        self.0.as_mut()?.first.request.take()
    }

    /// Has the layers call the request of the exchange.
    #[inline]
    pub(super) fn call<S: Service<Request<Body>>>(
        &mut self,
        layers: &mut S,
        extensions: &Extensions,
    ) -> S::Future {
        let plain = self
            .0
            .as_mut()
            .and_then(|exchange| exchange.hand_out(extensions));
        let _entered = self.enter();
        layers.call(plain.unwrap_or_default())
    }

    /// Puts the exchange into the slot of the thread, until the guard is dropped.
    pub(super) fn enter(&mut self) -> Entered<'_> {
        swap(&mut self.0);
        Entered(self)
    }

    /// Whether an attempt is to be sent that no other one is out beside.
    #[inline]
    pub(super) fn wants_first(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|exchange| exchange.first.wanted)
    }

    /// Takes the request of that attempt.
    #[inline]
    pub(super) fn take_first(&mut self) -> Option<reqwest::Request> {
        let first = &mut self.0.as_mut()?.first;
        mem::take(&mut first.wanted).then(|| first.request.take())?
    }

    /// Returns its number, and which attempt it is, if it is another one.
    #[inline]
    pub(super) fn first(&self) -> (Option<u64>, Option<Attempt>) {
        let first = self.0.as_ref().map(|exchange| &exchange.first);
        first.map_or((None, None), |first| (first.open, first.attempt))
    }

    /// Takes an attempt to send beside the first one.
    #[inline]
    pub(super) fn take_beside(&mut self) -> Option<Wanted> {
        let beside = &mut self.0.as_mut()?.beside;
        let lane = beside.iter_mut().find(|lane| lane.wanted)?;
        lane.wanted = false;
        Some(Wanted {
            number: lane.open?,
            request: lane.request.take()?,
            attempt: lane.attempt,
        })
    }

    /// Whether the layers wait for the response of an attempt.
    #[inline]
    pub(super) fn is_open(&mut self, number: u64) -> bool {
        let exchange = self.0.as_mut();
        exchange.is_some_and(|exchange| exchange.lane(number).is_some())
    }

    /// Asks for the result of an attempt, and whether there is one. Returns the waker of the layers
    /// with it.
    #[inline]
    pub(super) fn answer_with(
        &mut self,
        number: u64,
        ask: impl FnOnce() -> Poll<Result<Response, Error>>,
    ) -> Poll<Option<Waker>> {
        let lane = self.0.as_mut().and_then(|exchange| exchange.lane(number));
        let Some(lane) = lane else {
            // Nobody waits for it.
            return Poll::Ready(None);
        };
        lane.answer = ask();
        match lane.answer {
            Poll::Ready(_) => Poll::Ready(lane.waker.take()),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for CallSlot {
    fn drop(&mut self) {
        const POOLED: usize = 64;
        let Some(mut exchange) = self.0.take() else {
            return;
        };
        exchange.clear();
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < POOLED {
                pool.push(exchange);
            }
        });
    }
}

/// Keeps the exchange in the slot of the thread while it lives.
pub(super) struct Entered<'a>(&'a mut CallSlot);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        swap(&mut self.0.0);
    }
}

/// During thread teardown the slot is gone, and layers get an error.
fn swap(exchange: &mut Option<Box<Exchange>>) {
    let _ = CURRENT.try_with(|current| mem::swap(&mut *current.borrow_mut(), exchange));
}

fn with_exchange<T>(work: impl FnOnce(&mut Exchange) -> Option<T>) -> Option<T> {
    let done = CURRENT.try_with(|current| work(current.borrow_mut().as_mut()?));
    done.ok().flatten()
}

/// The innermost service of a [`TowerMiddleware`](super::TowerMiddleware): what comes next in the chain.
#[derive(Debug, Clone)]
pub struct ChainService(());

impl ChainService {
    pub(super) fn new() -> Self {
        Self(())
    }
}

impl Service<Request<Body>> for ChainService {
    type Response = Response;
    type Error = BoxError;
    type Future = ChainFuture;

    #[inline]
    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: Request<Body>) -> ChainFuture {
        ChainFuture(with_exchange(|exchange| exchange.put(request)))
    }
}

/// The future of a [`ChainService`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct ChainFuture(Option<u64>);

impl Future for ChainFuture {
    type Output = Result<Response, BoxError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(number) = self.0 else {
            return Poll::Ready(Err(Misplaced.into()));
        };
        let answer = with_exchange(|exchange| {
            let lane = exchange.lane(number)?;
            lane.answer.is_ready().then_some(())?;
            lane.open = None;
            Some(mem::replace(&mut lane.answer, Poll::Pending))
        });
        if let Some(Poll::Ready(answer)) = answer {
            self.0 = None;
            return Poll::Ready(answer.map_err(inner));
        }
        Self::wait(number, cx)
    }
}

impl ChainFuture {
    #[inline(never)]
    fn wait(number: u64, cx: &mut Context<'_>) -> Poll<Result<Response, BoxError>> {
        let waker = cx.waker().clone();
        let waits = with_exchange(|exchange| Some(exchange.lane(number)?.waker.replace(waker)));
        match waits {
            Some(_) => Poll::Pending,
            None => Poll::Ready(Err(Misplaced.into())),
        }
    }
}

impl Drop for ChainFuture {
    #[inline]
    fn drop(&mut self) {
        let Some(number) = self.0 else { return };
        // On another thread there is no exchange; the request is dropped with its call.
        let given_up = with_exchange(|exchange| {
            let lane = exchange.lane(number)?;
            lane.open = None;
            let wanted = mem::take(&mut lane.wanted);
            let request = lane.request.take_if(|_| wanted);
            Some((request, mem::replace(&mut lane.answer, Poll::Pending)))
        });
        drop(given_up);
    }
}

/// A layer called from another task.
#[derive(Debug)]
struct Misplaced;

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a layer of a middleware called from another task: put layers that spawn around the \
             whole client instead",
        )
    }
}

impl error::Error for Misplaced {}
