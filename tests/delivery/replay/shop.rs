//! A shop whose handler can be told what to answer, behind idempotency and replay.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, request};
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tower::{Layer, Service, ServiceExt, util::BoxCloneSyncService};
use tower_reprise::server::{dialect::Scope, idempotency::Execution};
use tower_reprise::{
    IdempotencyLayer,
    delivery::{
        replay::{Replay, ReplayBuilder, ReplayId, Replayed},
        worker::WorkerHandle,
    },
    store::{
        CrashPolicy, MemoryStore,
        journal::{Counts, Entry, Journal, Status},
    },
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

type Body = Full<Bytes>;
pub(crate) type App = BoxCloneSyncService<Request<Body>, Response<Bytes>, Infallible>;

/// The handler's next action.
#[derive(Clone)]
pub(crate) enum Does {
    Answer(StatusCode, &'static str),
    With(fn() -> Response<Bytes>),
    Panic,
    /// Takes so long, and then succeeds.
    Take(Duration),
}

/// A request, as the handler saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) key: String,
    pub(crate) body: String,
    pub(crate) principal: Option<String>,
    pub(crate) headers: Vec<String>,
    /// The fencing token of the execution.
    pub(crate) token: Option<u64>,
}

#[derive(Clone, Default)]
pub(crate) struct Handler {
    script: Arc<Mutex<VecDeque<Does>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Handler {
    pub(crate) fn will(&self, does: impl IntoIterator<Item = Does>) {
        self.script.lock().unwrap().extend(does);
    }

    pub(crate) fn answers(&self, statuses: &[u16]) {
        let answer = |status: &u16| Does::Answer(StatusCode::from_u16(*status).unwrap(), "");
        self.will(statuses.iter().map(answer));
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn bodies(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.body).collect()
    }

    async fn handle(self, head: request::Parts, body: Bytes) -> Response<Bytes> {
        let name = |name: &str| {
            head.headers
                .get(name)
                .map(|v| v.to_str().unwrap().to_owned())
        };
        self.seen.lock().unwrap().push(Seen {
            key: name("idempotency-key").unwrap_or_default(),
            body: String::from_utf8(body.to_vec()).unwrap(),
            principal: head.extensions.get::<Replayed>().map(|r| r.owner.clone()),
            headers: head.headers.keys().map(ToString::to_string).collect(),
            token: head.extensions.get::<Execution>().map(|e| e.token().get()),
        });
        let does = self.script.lock().unwrap().pop_front();
        match does {
            None => Response::new(Bytes::from_static(b"{\"order\":7}")),
            Some(Does::Answer(status, body)) => {
                let mut response = Response::new(Bytes::from_static(body.as_bytes()));
                *response.status_mut() = status;
                response
            }
            Some(Does::With(make)) => make(),
            Some(Does::Panic) => panic!("as told"),
            Some(Does::Take(time)) => {
                tokio::time::sleep(time).await;
                Response::new(Bytes::from_static(b"late"))
            }
        }
    }
}

pub(crate) struct Shop {
    pub(crate) store: MemoryStore,
    pub(crate) handler: Handler,
    pub(crate) replay: Replay<MemoryStore>,
    /// The service for callers.
    pub(crate) app: App,
    /// The service for the worker: the same without the replay layer.
    pub(crate) inner: App,
}

impl Shop {
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub(crate) fn with(
        build: impl FnOnce(ReplayBuilder<MemoryStore>) -> ReplayBuilder<MemoryStore>,
    ) -> Self {
        Self::on(MemoryStore::new(), build)
    }

    /// A shop in which an execution whose outcome is unknown is never repeated.
    pub(crate) fn careful() -> Self {
        Self::of(MemoryStore::new(), CrashPolicy::Unknown, |builder| builder)
    }

    pub(crate) fn on(
        store: MemoryStore,
        build: impl FnOnce(ReplayBuilder<MemoryStore>) -> ReplayBuilder<MemoryStore>,
    ) -> Self {
        Self::of(store, CrashPolicy::Reexecute, build)
    }

    pub(crate) fn of(
        store: MemoryStore,
        crash_policy: CrashPolicy,
        build: impl FnOnce(ReplayBuilder<MemoryStore>) -> ReplayBuilder<MemoryStore>,
    ) -> Self {
        let handler = Handler::default();
        let idempotency = IdempotencyLayer::builder(MemoryStore::new())
            .scope(Scope::new(|head| Some(principal(head).unwrap_or_default())))
            .crash_policy(crash_policy)
            .requirement(|_| tower_reprise::server::dialect::Requirement::Optional)
            .build()
            .unwrap();
        let serve = handler.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let serve = serve.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                Ok::<_, Infallible>(serve.handle(head, body).await.map(Full::new))
            }
        });
        let builder = Replay::builder(store.clone(), Scope::new(principal)).location("/replays");
        let replay = build(builder).build().unwrap();
        let inner = idempotency.layer(service);
        let app = replay.layer().layer(inner.clone());
        Self {
            store,
            handler,
            app: boxed(app, |body| body),
            inner: boxed(inner, |body| body),
            replay,
        }
    }

    pub(crate) fn work(&self) -> WorkerHandle {
        let inner = self.inner.clone().map_response(|r| r.map(Full::new));
        self.replay.worker::<Body, _>(inner).start().unwrap()
    }

    /// Sends a request; its status and its document.
    pub(crate) async fn send(&self, request: request::Builder, body: &str) -> (u16, Value) {
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let response = self.app.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        (
            status,
            serde_json::from_slice(response.body()).unwrap_or_default(),
        )
    }

    /// Sends an order that is to be replayed, and expects that it is journaled.
    pub(crate) async fn queue(&self, key: &str, body: &str) -> ReplayId {
        let (status, document) = self.send(order(key), body).await;
        assert_eq!(status, 202, "{document}");
        id(&document)
    }

    pub(crate) async fn entry(&self, id: ReplayId) -> Entry {
        self.store.find(id.entry()).await.unwrap().unwrap()
    }

    pub(crate) async fn status(&self, id: ReplayId) -> Status {
        self.entry(id).await.status
    }

    pub(crate) async fn counts(&self, queue: &str) -> Counts {
        self.store.counts(queue).await.unwrap()
    }

    /// Lets time pass until an entry is over.
    pub(crate) async fn ended(&self, id: ReplayId) -> Status {
        for _ in 0..100_000 {
            let status = self.status(id).await;
            if status.is_over() {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("it never ends");
    }
}

fn boxed<S, R, T>(service: S, body: fn(R) -> T) -> App
where
    S: Service<Request<Body>, Response = Response<R>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
    R: Send + 'static,
    T: http_body::Body<Data = Bytes> + Send + 'static,
    T::Error: std::fmt::Debug,
{
    BoxCloneSyncService::new(
        service.then(move |response: Result<Response<R>, _>| async move {
            let (head, inner) = response?.into_parts();
            let body = body(inner).collect().await.expect("a body").to_bytes();
            Ok(Response::from_parts(head, body))
        }),
    )
}

pub(crate) fn principal(head: &Request<()>) -> Option<String> {
    let replayed = head.extensions().get::<Replayed>();
    let of_header = || Some(head.headers().get("x-user")?.to_str().ok()?.to_owned());
    replayed
        .map(|replayed| replayed.owner.clone())
        .or_else(of_header)
}

/// An order of Ada's that is to be replayed.
pub(crate) fn order(key: &str) -> request::Builder {
    plain(key).header("replay", "true")
}

pub(crate) fn plain(key: &str) -> request::Builder {
    Request::post("/orders?tenant=7")
        .header("x-user", "ada")
        .header("idempotency-key", key)
}

pub(crate) fn id(document: &Value) -> ReplayId {
    document["replay_id"].as_str().unwrap().parse().unwrap()
}
