//! The server that all dependencies are, and what goes wrong with it.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::Bytes;
use http::{Request, StatusCode, header::RETRY_AFTER};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    time::{Instant, sleep},
};
use tower::ServiceExt;
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    IdempotencyLayer,
    store::{CrashPolicy, MemoryStore},
};

use crate::{
    KEYS,
    dice::mix,
    witness::{Witness, number},
};

/// Fewer than there are keys, so that there comes a time when there is no room.
pub(crate) const MOST_RECORDS: u64 = KEYS as u64 * 96 / 100;
/// Longer than customers wait for one attempt.
const SLOW: Duration = Duration::from_millis(400);
/// A dependency is down for so long, one in so many at a time.
const DOWN: u64 = 15;
const DOWN_OF: u64 = 40;
const PADDING: usize = 200;

pub(crate) struct Server {
    address: SocketAddr,
    store: MemoryStore,
}

struct Shop {
    seed: u64,
    started: Instant,
    arrived: AtomicU64,
    witness: Arc<Witness>,
}

/// The fault that a request meets.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    RequestLost,
    ReplyLost,
    BodyBrokenOff,
    Slow,
    Busy,
    TooMany,
    /// In the handler: it says that it failed, after it took effect.
    Failed,
    /// In the handler: it did nothing, and says so.
    Unavailable,
}

impl Fault {
    fn draw(dice: u64) -> Option<Self> {
        Some(match dice % 1000 {
            0..10 => Self::RequestLost,
            10..20 => Self::ReplyLost,
            20..25 => Self::BodyBrokenOff,
            25..30 => Self::Slow,
            30..33 => Self::Busy,
            33..35 => Self::TooMany,
            35..45 => Self::Failed,
            45..60 => Self::Unavailable,
            _ => return None,
        })
    }
}

impl Server {
    pub(crate) async fn start(seed: u64, witness: Arc<Witness>) -> Self {
        let store = MemoryStore::builder().max_records(MOST_RECORDS).build();
        let store = store.expect("a store");
        let layer = IdempotencyLayer::builder(store.clone())
            .scope(Scope::new(|_| Some("soak")))
            .crash_policy(CrashPolicy::Reexecute)
            .build()
            .expect("a layer");
        let shop = Arc::new(Shop {
            seed,
            started: Instant::now(),
            arrived: AtomicU64::new(0),
            witness,
        });
        let app = Router::new()
            .route("/orders", post(order))
            .route("/items", get(async || padded("item")))
            .layer(layer)
            .with_state(Arc::clone(&shop));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a listener");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            loop {
                // Too many open files, say: the next one may do.
                if let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(stream, Arc::clone(&shop), app.clone()));
                }
            }
        });
        Self { address, store }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn records(&self) -> u64 {
        self.store.len()
    }
}

async fn serve(stream: TcpStream, shop: Arc<Shop>, app: Router) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: Request<Incoming>| {
        let (shop, app) = (Arc::clone(&shop), app.clone());
        async move { shop.answer(request, app).await }
    });
    // The customer judges how the connection ends.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

impl Shop {
    /// An error closes the connection without a reply.
    async fn answer(&self, request: Request<Incoming>, app: Router) -> io::Result<Response> {
        let arrived = self.arrived.fetch_add(1, Ordering::Relaxed);
        let dice = mix(self.seed, arrived);
        let host = request
            .headers()
            .get("host")
            .and_then(|host| host.to_str().ok());
        let fault = match host.and_then(number) {
            Some(dependency) if self.is_down(dependency as u64) => match dice % 2 {
                0 => Some(Fault::RequestLost),
                _ => Some(Fault::Busy),
            },
            _ => Fault::draw(dice),
        };
        match fault {
            Some(Fault::RequestLost) => return Err(lost()),
            Some(Fault::Busy) => return Ok(come_later(StatusCode::SERVICE_UNAVAILABLE)),
            Some(Fault::TooMany) => return Ok(come_later(StatusCode::TOO_MANY_REQUESTS)),
            Some(Fault::Slow) => sleep(SLOW).await,
            _ => {}
        }
        let mut request = request.map(Body::new);
        if let Some(fault) = fault {
            request.extensions_mut().insert(fault);
        }
        let reply = app
            .oneshot(request)
            .await
            .unwrap_or_else(|never| match never {});
        match fault {
            Some(Fault::ReplyLost) => Err(lost()),
            Some(Fault::BodyBrokenOff) => {
                let pieces = [Ok(Bytes::from_static(b"or")), Err(lost())];
                let body = Body::from_stream(tokio_stream::iter(pieces));
                Ok(reply.map(|_| body))
            }
            _ => Ok(reply),
        }
    }

    fn is_down(&self, dependency: u64) -> bool {
        let period = self.started.elapsed().as_secs() / DOWN;
        mix(mix(self.seed, dependency), period).is_multiple_of(DOWN_OF)
    }
}

/// Takes an order, whose key is what is ordered too; one without was not named by the customer.
async fn order(State(shop): State<Arc<Shop>>, request: Request<Body>) -> Response {
    let fault = request.extensions().get::<Fault>().copied();
    if fault == Some(Fault::Unavailable) {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let body = axum::body::to_bytes(request.into_body(), 64).await;
    let body = body.unwrap_or_default();
    let ordered = std::str::from_utf8(&body).unwrap_or_default();
    if let Ok(key) = ordered.parse() {
        shop.witness.executes(key);
    }
    let status = match fault {
        Some(Fault::Failed) => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::CREATED,
    };
    (status, padded(ordered)).into_response()
}

fn padded(text: &str) -> String {
    format!("{text:<PADDING$}")
}

fn come_later(status: StatusCode) -> Response {
    (status, [(RETRY_AFTER, "1")]).into_response()
}

fn lost() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}
