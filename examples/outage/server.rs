//! A server that can do so much and no more.

use std::{
    collections::{HashMap, HashSet},
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header::RETRY_AFTER};
use http_body_util::Empty;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpListener,
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until},
};
use tower::util::rng::{HasherRng, Rng};

use crate::timeline::{Phase, Timeline};

/// Orders a second.
pub(crate) const CAPACITY: u32 = 160;
/// The longest time that an order waits for its turn. Clients wait less: a full queue is a server
/// that is always busy and always late.
pub(crate) const QUEUE: Duration = Duration::from_millis(750);
/// The time that an order takes besides.
const WORK: Duration = Duration::from_millis(20);

/// A running server, which stops when it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    accepting: AbortHandle,
    shop: Arc<Shop>,
}

impl Server {
    pub(crate) async fn start(timeline: Arc<Timeline>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shop = Arc::new(Shop::new(timeline));
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shop))).abort_handle();
        Ok(Self {
            address,
            accepting,
            shop,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of orders that were executed again.
    pub(crate) fn repeated_orders(&self) -> u32 {
        self.shop.repeated.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shop: Arc<Shop>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shop = Arc::clone(&shop);
        let service = service_fn(move |request| Arc::clone(&shop).handle(request));
        connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        while connections.try_join_next().is_some() {}
    }
}

#[derive(Debug)]
struct Shop {
    timeline: Arc<Timeline>,
    /// The turn of the next order. By the clock, so that a busy machine does not make it a slower
    /// server.
    next: Mutex<Instant>,
    dice: Mutex<HasherRng>,
    done: Mutex<Done>,
    repeated: AtomicU32,
}

/// The orders that were done, and the idempotency keys they came with.
#[derive(Debug, Default)]
struct Done {
    orders: HashMap<String, u32>,
    keys: HashSet<Vec<u8>>,
}

impl Shop {
    fn new(timeline: Arc<Timeline>) -> Self {
        Self {
            timeline,
            next: Mutex::new(Instant::now()),
            dice: Mutex::default(),
            done: Mutex::default(),
            repeated: AtomicU32::new(0),
        }
    }

    /// An error closes the connection without a reply.
    async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> io::Result<Response<Empty<Bytes>>> {
        self.timeline.request_arrived();
        let Some(turn) = self.turn() else {
            return Ok(unavailable());
        };
        // A task of its own, because a server does not notice that a client gave up: each order in
        // the queue is worked on, wanted or not.
        let work = tokio::spawn(async move {
            sleep_until(turn + WORK).await;
            self.finish(&request)
        });
        work.await.unwrap_or_else(|_| Err(lost()))
    }

    /// Takes the next turn, unless the queue is full.
    fn turn(&self) -> Option<Instant> {
        let (now, mut next) = (Instant::now(), lock(&self.next));
        let turn = now.max(*next);
        if turn - now > QUEUE {
            return None;
        }
        *next = turn + Duration::from_secs(1) / CAPACITY;
        Some(turn)
    }

    /// Half of the failures come before the order is done, and half after it.
    fn finish(&self, request: &Request<Incoming>) -> io::Result<Response<Empty<Bytes>>> {
        let drawn = lock(&self.dice).next_f64();
        let failing = self.timeline.phase().map_or(0.0, Phase::failing);
        if drawn < failing / 2.0 {
            return Ok(status(StatusCode::BAD_GATEWAY));
        }
        self.place_order(request);
        if drawn < failing {
            return Err(lost());
        }
        Ok(status(StatusCode::OK))
    }

    /// An order that comes with a key it was done under is not done again.
    fn place_order(&self, request: &Request<Incoming>) {
        let mut done = lock(&self.done);
        let key = request.headers().get("idempotency-key");
        if key.is_some_and(|key| !done.keys.insert(key.as_bytes().to_vec())) {
            return;
        }
        let times = done.orders.entry(request.uri().path().into()).or_default();
        *times += 1;
        if *times > 1 {
            self.repeated.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn unavailable() -> Response<Empty<Bytes>> {
    let mut response = status(StatusCode::SERVICE_UNAVAILABLE);
    let second = HeaderValue::from_static("1");
    response.headers_mut().insert(RETRY_AFTER, second);
    response
}

fn status(status: StatusCode) -> Response<Empty<Bytes>> {
    let mut response = Response::new(Empty::new());
    *response.status_mut() = status;
    response
}

fn lost() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
