//! Connections of callers, and what is done for all of them alike.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header,
};
use http_body_util::{BodyExt, Either};
use hyper::{
    body::{Body as _, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto::Builder, graceful::GracefulShutdown},
};
use metrics::Counter;
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, sleep, timeout, timeout_at},
};
use tower::ServiceExt;
use tower_reprise::delivery::replay::ReplayRoutes;

use super::{
    access::{Access, AccessLog},
    cores::{self, Cores},
    tls::Tls,
    tunnel::{self, Tunnels},
};
use crate::{
    gateway::headers::{Peer, strip},
    gateway::prompt::Prompt,
    gateway::settings::Settings,
    gateway::stack::{Answers, Serves},
    gateway::traffic::{Connected, Counted, Traffic},
    gateway::upload::Upload,
    gateway::upstreams::Upstreams,
    store::Store,
};

/// A caller's connection. Whoever holds it keeps its place among those that may be open.
struct Connection {
    peer: Peer,
    /// The longest pause of its requests' bodies.
    pause: Duration,
    /// None for those that are taken while the gateway stops.
    _place: Option<OwnedSemaphorePermit>,
    _counted: Connected,
}

/// The body of a reply: that of the layers, or the upstream's to an upgrade that it refuses.
pub(super) type Passed<R> = Either<R, Incoming>;

/// The outermost service, which every request enters first.
pub(crate) struct Edge<S> {
    services: Spares<S>,
    upstreams: Upstreams,
    replays: Option<(Arc<str>, ReplayRoutes<Store>)>,
    traffic: Arc<Traffic>,
    tunnels: Tunnels,
    access: Option<AccessLog>,
    /// Whether connections are to end with their next reply.
    closing: AtomicBool,
    /// Replies by the first digit of their status.
    replies: [Counter; 5],
}

impl<S> Edge<S> {
    pub(crate) fn new(
        service: S,
        upstreams: Upstreams,
        replays: Option<(&str, ReplayRoutes<Store>)>,
        traffic: Arc<Traffic>,
        tunnels: Tunnels,
        access: Option<AccessLog>,
    ) -> Self {
        let counter = |status| metrics::counter!("gateway_replies_total", "status" => status);
        Self {
            services: Spares::of(service),
            upstreams,
            replays: replays.map(|(path, routes)| (path.into(), routes)),
            traffic,
            tunnels,
            access,
            closing: AtomicBool::new(false),
            replies: ["1xx", "2xx", "3xx", "4xx", "5xx"].map(counter),
        }
    }

    async fn answer<R>(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        connection: Arc<Connection>,
    ) -> Result<Response<Counted<Passed<R>>>, Infallible>
    where
        S: Serves<R>,
        R: Answers,
    {
        let started = Instant::now();
        let peer = &connection.peer;
        let http1 = request.version() < Version::HTTP_2;
        let id = request_id(request.headers_mut());
        let access = self.access.clone().map(|log| {
            Box::new(Access {
                log,
                started,
                id: id.clone(),
                remote: peer.remote,
                method: request.method().clone(),
                path: Access::path(request.uri()),
                status: 0,
                sent: 0,
            })
        });
        let closing = http1 && self.closing.load(Ordering::Relaxed);
        let protocol = tunnel::asked(&request).filter(|_| http1 && self.tunnels.may_open());
        let mut upstream = None;
        let mut response = match self.follows(request.uri()) {
            Some(uri) => self.follow(request, uri).await,
            None if request.method() == Method::CONNECT => {
                refusal(StatusCode::NOT_IMPLEMENTED, "There are no tunnels here.")
            }
            // The upstream might go by another one than the routes.
            None if names_several_hosts(request.headers()) => {
                refusal(StatusCode::BAD_REQUEST, "The request names several hosts.")
            }
            None if protocol.is_some() && closing => refusal(
                StatusCode::SERVICE_UNAVAILABLE,
                "The gateway is about to stop.",
            ),
            None => match self.upstreams.find(&request) {
                Err(misses) => refusal(misses.status(), &misses.to_string()),
                Ok(route) => {
                    let upgrade = protocol.is_some().then(|| hyper::upgrade::on(&mut request));
                    let mut progress = None;
                    let mut request = request.map(|body| match body.is_end_stream() {
                        true => Body::empty(),
                        false => {
                            let body = Counted::new(body, self.traffic.received());
                            let (body, its) = Upload::new(body, connection.pause);
                            progress = Some(its);
                            Body::new(body)
                        }
                    });
                    peer.pass(&mut request);
                    Upstreams::take(&mut request, &route);
                    let upstream = &**upstream.insert(Arc::clone(&route.upstream));
                    let response = match (upgrade, protocol.clone()) {
                        (Some(upgrade), Some(protocol)) => {
                            let caller = (upgrade, Arc::clone(&connection));
                            let opened = self.tunnels.open(upstream, caller, request, protocol);
                            match opened.await {
                                Ok(response) => response.map(Either::Right),
                                Err(unopened) => unopened.refusal(),
                            }
                        }
                        _ => {
                            let mut service = self.services.take();
                            let reply = service.ready().await?.call(request);
                            self.services.put(service);
                            reply.await?.map(Either::Left)
                        }
                    };
                    let late = progress.is_some_and(|progress| progress.answered());
                    match late && response.status().as_u16() >= 400 {
                        true => refusal(
                            StatusCode::REQUEST_TIMEOUT,
                            "The request's body did not arrive in time.",
                        ),
                        false => response,
                    }
                }
            },
        };
        // The upstream's HTTP version is independent of the caller's.
        *response.version_mut() = Version::HTTP_11;
        let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        let switched = switches
            .then(|| headers.get(header::UPGRADE).cloned())
            .flatten();
        strip(headers);
        headers.append(header::VIA, HeaderValue::from_static("1.1 gateway"));
        headers.insert(REQUEST_ID, id);
        if let Some(protocol) = switched {
            tunnel::mark(headers, protocol);
        }
        let class = usize::from(response.status().as_u16() / 100).clamp(1, 5);
        self.replies[class - 1].increment(1);
        // A tunnel's connection closes with it, which is not for a header to say.
        if http1 && !switches && self.closing.load(Ordering::Relaxed) {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        let took = started.elapsed();
        self.traffic.replied(took);
        if let Some(upstream) = upstream {
            let failed = response.status().is_server_error();
            upstream.calls.count(failed, took);
        }
        let access = access.map(|mut access| {
            access.status = response.status().as_u16();
            access
        });
        Ok(response.map(|body| Counted::new(body, self.traffic.sent()).logged(access)))
    }

    /// Returns the URI for the replay routes if the request is for them.
    fn follows(&self, uri: &Uri) -> Option<Uri> {
        let (path, _) = self.replays.as_ref()?;
        let rest = uri.path().strip_prefix(&**path)?;
        let rest = match rest {
            "" => "/",
            rest if rest.starts_with('/') => rest,
            _ => return None,
        };
        let query = uri.query().map(|query| format!("?{query}"));
        format!("{rest}{}", query.unwrap_or_default()).parse().ok()
    }

    async fn follow<R: From<Bytes>>(
        &self,
        mut request: Request<Incoming>,
        uri: Uri,
    ) -> Response<Passed<R>> {
        let Some((_, routes)) = self.replays.clone() else {
            return refusal(StatusCode::NOT_FOUND, "There are no replays here.");
        };
        request.extensions_mut().clear();
        *request.uri_mut() = uri;
        let Ok(response) = routes.oneshot(request).await;
        let (head, body) = response.into_parts();
        let Ok(body) = body.collect().await;
        Response::from_parts(head, Either::Left(R::from(body.to_bytes())))
    }
}

/// A service for each core, which is called again and again: a clone for each request takes 1,500
/// instructions more (callgrind), as it remembers nothing. In a box, as it is large and moved.
struct Spares<S> {
    first: S,
    spare: Box<[Spare<S>]>,
}

type Spare<S> = Mutex<Option<Box<S>>>;

impl<S: Clone> Spares<S> {
    fn take(&self) -> Box<S> {
        let spare = self.lock().take();
        spare.unwrap_or_else(|| Box::new(self.first.clone()))
    }

    fn put(&self, service: Box<S>) {
        *self.lock() = Some(service);
    }

    /// Nobody waits for it: no other thread is of this core.
    fn lock(&self) -> MutexGuard<'_, Option<Box<S>>> {
        let spare = self.spare[cores::number()].lock();
        spare.unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> Spares<S> {
    fn of(first: S) -> Self {
        let spare = (0..=cores::count()).map(|_| Mutex::default());
        Self {
            first,
            spare: spare.collect(),
        }
    }
}

fn names_several_hosts(headers: &HeaderMap) -> bool {
    // No field is there twice, mostly.
    headers.len() > headers.keys_len() && headers.get_all(header::HOST).iter().count() > 1
}

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest id of a caller that is kept.
const LONGEST_ID: usize = 128;

/// Returns the id of a request, the caller's or a new one, which the upstream gets too.
fn request_id(headers: &mut HeaderMap) -> HeaderValue {
    let given = headers.get(REQUEST_ID).filter(|id| {
        (1..=LONGEST_ID).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    });
    let id = given.cloned().or_else(|| {
        let digit = |half: u8| b"0123456789abcdef"[usize::from(half)];
        let bytes: [u8; 16] = rand::random();
        let mut id = [0; 32];
        for (digits, byte) in id.chunks_exact_mut(2).zip(bytes) {
            digits.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
        }
        HeaderValue::from_bytes(&id).ok()
    });
    let id = id.unwrap_or(HeaderValue::from_static("none"));
    headers.insert(REQUEST_ID, id.clone());
    id
}

/// Polls a future once.
async fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match future.as_mut().poll(cx) {
            std::task::Poll::Ready(done) => Some(done),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

/// A problem of the gateway's own (RFC 9457).
pub(super) fn refusal<R: From<Bytes>>(status: StatusCode, detail: &str) -> Response<Passed<R>> {
    let title = status.canonical_reason().unwrap_or_default();
    let problem = json!({ "title": title, "status": status.as_u16(), "detail": detail });
    let body = R::from(problem.to_string().into());
    let mut response = Response::new(Either::Left(body));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// The longest idle time of kept-alive connections after the gateway was told to stop.
const LINGER: Duration = Duration::from_secs(2);

/// Serves callers until it is told to stop, and then those who are connected until they are done,
/// but no longer than is bearable. Whether they all were, and until when others may take.
pub(crate) async fn serve<S, R>(
    listener: TcpListener,
    edge: Edge<S>,
    settings: &Settings,
    cores: &Cores,
    mut stop: watch::Receiver<bool>,
) -> (bool, Instant)
where
    S: Serves<R>,
    R: Answers,
{
    let edge = Arc::new(edge);
    let places = Arc::new(Semaphore::new(settings.max_connections));
    let graceful = GracefulShutdown::new();
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.head_timeout);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(settings.head_timeout)
        .keep_alive_timeout(settings.head_timeout);
    let open = |stream: TcpStream, address: SocketAddr, place| {
        // It only makes replies later, if at all.
        let _ = stream.set_nodelay(true);
        let connection = Arc::new(Connection {
            peer: Peer::new(
                address.ip(),
                settings.trust_forwarded,
                settings.tls.is_some(),
            ),
            pause: settings.head_timeout,
            _place: place,
            _counted: edge.traffic.connected(),
        });
        let edge = Arc::clone(&edge);
        let service =
            service_fn(move |request| Arc::clone(&edge).answer(request, Arc::clone(&connection)));
        let (builder, watcher) = (builder.clone(), graceful.watcher());
        let (tls, within) = (
            settings.tls.as_ref().map(Tls::acceptor),
            settings.head_timeout,
        );
        // Its thread is to be told of what it can read.
        let stream = stream.into_std();
        cores.spawn(async move {
            let stream = match stream.and_then(TcpStream::from_std) {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be served");
                    return;
                }
            };
            let ended = match tls {
                None => {
                    let stream = TokioIo::new(Prompt::new(stream, within));
                    let serving = builder.serve_connection_with_upgrades(stream, service);
                    watcher.watch(serving).await
                }
                Some(tls) => match timeout(within, tls.accept(stream)).await {
                    Ok(Ok(stream)) => {
                        let stream = TokioIo::new(Prompt::new(stream, within));
                        let serving = builder.serve_connection_with_upgrades(stream, service);
                        watcher.watch(serving).await
                    }
                    Ok(Err(error)) => Err(error.into()),
                    Err(late) => Err(late.into()),
                },
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection broke off");
            }
        });
    };
    loop {
        let accepting = async {
            // Not before there is a place for it.
            let place = Arc::clone(&places).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            // Nobody is let in who came when it had been told to stop.
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            accepted = accepting => accepted,
        };
        match accepted {
            Ok((stream, address)) => open(stream, address, place.ok()),
            Err(error) => {
                // Out of descriptors, most likely: some will be free soon.
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
    let until = Instant::now() + settings.grace;
    edge.closing.store(true, Ordering::Relaxed);
    tracing::info!("finishing what is under way");
    // Those who connected before are served: closing the listener would reset them.
    // Without a place: one that is taken may not be free before the grace is over.
    while let Some(Ok((stream, address))) = poll_once(listener.accept()).await {
        open(stream, address, None);
    }
    drop(listener);
    // A request may be on its way on a connection that is kept: it gets a reply, and is told that
    // it is the last. Closing now would cut it.
    let linger = Instant::now() + LINGER.min(settings.grace / 2);
    while graceful.count() > 0 && Instant::now() < linger {
        sleep(Duration::from_millis(10)).await;
    }
    // In this order: a connection may end by becoming a tunnel.
    let ended = async {
        graceful.shutdown().await;
        edge.tunnels.ended().await;
    };
    let done = timeout_at(until, ended).await.is_ok();
    (done, until)
}
