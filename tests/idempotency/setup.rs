//! A handler that can be held and counted.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::sync::Semaphore;
use tower::{Layer, Service, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    error::BoxError,
    http::{BufferedBody, RequestBody},
    server::idempotency::{Execution, IdempotencyBuilder, IdempotencyLayer, Missing},
    store::{CrashPolicy, IdempotencyStore, MemoryStore},
};

pub(crate) use crate::support::flaky::{ALWAYS, Fault, Flaky, Verb};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A body of given frames.
#[derive(Debug, Default)]
pub(crate) struct Frames(pub(crate) VecDeque<Result<Frame<Bytes>, BoxError>>);

impl Frames {
    pub(crate) fn data(mut self, data: impl Into<Bytes>) -> Self {
        self.0.push_back(Ok(Frame::data(data.into())));
        self
    }

    pub(crate) fn trailer(mut self, name: &'static str, value: &'static str) -> Self {
        let mut trailers = HeaderMap::new();
        trailers.insert(name, value.parse().unwrap());
        self.0.push_back(Ok(Frame::trailers(trailers)));
        self
    }

    pub(crate) fn error(mut self, message: &'static str) -> Self {
        self.0.push_back(Err(message.into()));
        self
    }
}

impl From<Bytes> for Frames {
    fn from(data: Bytes) -> Self {
        Self::default().data(data)
    }
}

impl RequestBody for Frames {
    type Rebuilt = Self;

    fn untouched(self) -> Self {
        self
    }

    fn rebuilt(data: Bytes) -> Self {
        data.into()
    }
}

impl From<&'static str> for Frames {
    fn from(data: &'static str) -> Self {
        Self::default().data(data)
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(self.0.pop_front())
    }
}

pub(crate) type Server =
    BoxCloneSyncService<Request<Frames>, Response<BufferedBody<Frames>>, Infallible>;

pub(crate) type Builder<St = MemoryStore> = IdempotencyBuilder<St, Scope, CrashPolicy>;

/// Returns a builder whose scope is a header, so that a request alone decides it.
pub(crate) fn builder<St>(store: St, crash_policy: CrashPolicy) -> Builder<St> {
    scoped(store).crash_policy(crash_policy)
}

pub(crate) fn scoped<St>(store: St) -> IdempotencyBuilder<St, Scope, Missing> {
    IdempotencyLayer::builder(store).scope(tenant())
}

pub(crate) fn tenant() -> Scope {
    Scope::new(|req| req.headers().get("x-tenant").cloned())
}

/// A handler that records its executions and their tokens.
#[derive(Clone)]
pub(crate) struct Handler {
    runs: Arc<AtomicUsize>,
    ends: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
    executions: Arc<Mutex<Vec<Execution>>>,
}

impl Handler {
    /// One that is through at once.
    pub(crate) fn new() -> Self {
        Self {
            gate: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            ..Self::held()
        }
    }

    /// One that waits until it is let through.
    pub(crate) fn held() -> Self {
        Self {
            runs: Arc::default(),
            ends: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            executions: Arc::default(),
        }
    }

    pub(crate) fn let_through(&self, n: usize) {
        self.gate.add_permits(n);
    }

    /// Returns the number of runs that began.
    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// Returns the number of runs that ended.
    pub(crate) fn ends(&self) -> usize {
        self.ends.load(Ordering::SeqCst)
    }

    /// Waits until it is let through.
    pub(crate) async fn pass(&self) {
        self.gate.acquire().await.unwrap().forget();
    }

    pub(crate) fn execution(&self, n: usize) -> Execution {
        self.executions.lock().unwrap()[n].clone()
    }

    /// A server that replies with what `reply` makes of the number of the execution.
    pub(crate) fn serve<St: IdempotencyStore>(
        &self,
        builder: Builder<St>,
        reply: impl Fn(usize) -> Response<Frames> + Clone + Send + Sync + 'static,
    ) -> Server {
        self.serve_by(&builder.build().unwrap(), reply)
    }

    /// The same, under a layer that is there already.
    pub(crate) fn serve_by<St: IdempotencyStore>(
        &self,
        layer: &IdempotencyLayer<St>,
        reply: impl Fn(usize) -> Response<Frames> + Clone + Send + Sync + 'static,
    ) -> Server {
        let handler = self.clone();
        let inner = service_fn(move |request: Request<Frames>| {
            let (handler, reply) = (handler.clone(), reply.clone());
            async move {
                let run = handler.runs.fetch_add(1, Ordering::SeqCst) + 1;
                if let Some(execution) = request.extensions().get::<Execution>() {
                    handler.executions.lock().unwrap().push(execution.clone());
                }
                handler.pass().await;
                let response = reply(run);
                handler.ends.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Infallible>(response)
            }
        });
        BoxCloneSyncService::new(layer.layer(inner))
    }

    /// A server that replies with the number of the execution.
    pub(crate) fn count<St: IdempotencyStore>(&self, builder: Builder<St>) -> Server {
        self.serve(builder, |run| {
            Response::new(Frames::default().data(format!("run {run}")))
        })
    }
}

pub(crate) fn status(status: u16, body: &'static str) -> Response<Frames> {
    let mut response = Response::new(Frames::from(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

/// A payment with a key.
pub(crate) fn post(key: &str) -> Request<Frames> {
    keyless()
        .header("idempotency-key", key)
        .body(Frames::from("100 EUR"))
        .unwrap()
}

pub(crate) fn keyless() -> http::request::Builder {
    Request::post("/payments?currency=EUR")
        .header("x-tenant", "alice")
        .header("content-type", "text/plain")
}

/// A response, read to its end.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
    pub(crate) trailers: Option<HeaderMap>,
    /// Whether the body broke off.
    pub(crate) broken: bool,
}

impl Answer {
    pub(crate) fn is_replayed(&self) -> bool {
        self.headers
            .get("idempotent-replayed")
            .is_some_and(|value| value == "true")
    }

    /// The name of the problem, if it is a problem document that is whole.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.headers.get("content-type")? != "application/problem+json" {
            return None;
        }
        assert_eq!(self.headers["cache-control"], "no-store");
        let problem: serde_json::Value = serde_json::from_str(&self.body).unwrap();
        assert_eq!(problem["status"], self.status);
        assert!(problem["title"].is_string() && problem["detail"].is_string());
        let name = problem["type"].as_str().unwrap();
        name.strip_prefix("urn:tower-reprise:problem:idempotency-")
            .map(str::to_owned)
    }

    /// Status and problem.
    pub(crate) fn refusal(&self) -> (u16, String) {
        (self.status, self.problem().unwrap_or_default())
    }
}

pub(crate) async fn read<B>(response: Response<B>) -> Answer
where
    B: Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let (parts, body) = response.into_parts();
    let mut body = std::pin::pin!(body);
    let (mut data, mut trailers, mut broken) = (Vec::new(), None, false);
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(piece)) => data.extend_from_slice(&piece),
            Ok(Err(frame)) => trailers = frame.into_trailers().ok(),
            Err(_) => broken = true,
        }
    }
    Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: String::from_utf8(data).unwrap(),
        trailers,
        broken,
    }
}

pub(crate) async fn send(server: &Server, request: Request<Frames>) -> Answer {
    let mut server = server.clone();
    let response = server.ready().await.unwrap().call(request).await.unwrap();
    read(response).await
}

/// The same, in the background.
pub(crate) fn start(server: &Server, request: Request<Frames>) -> tokio::task::JoinHandle<Answer> {
    let server = server.clone();
    tokio::spawn(async move { send(&server, request).await })
}

/// Lets everything run that can run without time passing.
pub(crate) async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}
