//! A server that can do so much and no more.

use std::{
    collections::{HashMap, HashSet},
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
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
    sync::Semaphore,
    task::{AbortHandle, JoinSet},
};

use crate::timeline::{Phase, Timeline};

const WORKERS: usize = 20;
const WORK: Duration = Duration::from_millis(50);
/// Orders a second.
pub(crate) const CAPACITY: u32 = 400;
/// Work for 750 ms, though clients wait 500: a full queue is a server that is always busy and
/// always late.
pub(crate) const QUEUE: usize = 300;
/// On a good day one reply in so many is lost.
const HICCUP: u32 = 300;

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

    /// How often an order was done that had been done already.
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
    /// Places for orders, in the queue or in work.
    places: Arc<Semaphore>,
    workers: Semaphore,
    replies: AtomicU32,
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
            places: Arc::new(Semaphore::new(QUEUE + WORKERS)),
            workers: Semaphore::new(WORKERS),
            replies: AtomicU32::new(0),
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
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return Ok(unavailable());
        };
        // A task of its own, because a server does not notice that a client gave up: what is in
        // the queue is worked on, wanted or not.
        let work = tokio::spawn(async move {
            let _place = place;
            let Ok(_worker) = self.workers.acquire().await else {
                return Err(lost());
            };
            tokio::time::sleep(WORK).await;
            self.finish(&request)
        });
        work.await.unwrap_or_else(|_| Err(lost()))
    }

    fn finish(&self, request: &Request<Incoming>) -> io::Result<Response<Empty<Bytes>>> {
        let number = self.replies.fetch_add(1, Ordering::Relaxed) + 1;
        if self.timeline.phase() == Phase::Outage {
            return match number % 2 {
                0 => Ok(unavailable()),
                _ => Err(lost()),
            };
        }
        self.place_order(request);
        match number % HICCUP {
            0 => Err(lost()),
            _ => Ok(Response::new(Empty::new())),
        }
    }

    /// An order that comes with a key it was done under is not done again.
    fn place_order(&self, request: &Request<Incoming>) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
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
    let mut response = Response::new(Empty::new());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let second = HeaderValue::from_static("1");
    response.headers_mut().insert(RETRY_AFTER, second);
    response
}

fn lost() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}
