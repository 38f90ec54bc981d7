//! A shop behind idempotency and replay on one store. Its handler writes each execution down.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode, request};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use serde_json::{Value, json};
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    IdempotencyLayer,
    delivery::{
        guard::Guard,
        replay::{Replay, ReplayId, Replayed},
        webhooks::{Signer, Webhooks},
        worker::WorkerHandle,
    },
    error::BoxError,
    store::{
        CrashPolicy, IdempotencyStore,
        journal::{Entry, Journal, Query},
    },
};
use tracing_subscriber::prelude::*;

use crate::{
    backend::{Backend, Site},
    ledger::Ledger,
    support::process::{listen, say},
};

/// The largest number of requests that a worker replays at a time.
pub(crate) const CONCURRENCY: usize = 8;
/// The interval at which a worker looks for entries that other processes queued.
const POLL: Duration = Duration::from_millis(20);

type Body = Full<Bytes>;
type App = BoxCloneSyncService<Request<Body>, Response<UnsyncBoxBody<Bytes, BoxError>>, Infallible>;

#[derive(Clone)]
struct Handler {
    ledger: Ledger,
    life: String,
    /// Half of what is not replayed is not served.
    moody: bool,
}

impl Handler {
    /// Does what the body says.
    async fn handle(self, head: request::Parts, body: Bytes) -> Response<Body> {
        let key = head.headers["idempotency-key"].to_str().unwrap();
        let attempt = head.extensions.get::<Replayed>().map(|it| it.attempt);
        if self.moody && attempt.is_none() && rand::random() {
            return status(StatusCode::SERVICE_UNAVAILABLE);
        }
        match &*body {
            b"refuse" => return status(StatusCode::UNPROCESSABLE_ENTITY),
            b"flaky" if attempt == Some(1) => return status(StatusCode::TOO_MANY_REQUESTS),
            b"slow" => {
                say(&format!("running {key}"));
                tokio::task::spawn_blocking(listen).await.unwrap();
            }
            _ => {}
        }
        let execution = format!("{} {:016x}", self.life, rand::random::<u64>());
        self.ledger.write(&format!("{key} {execution}"));
        if &*body == b"poison" {
            std::process::abort();
        }
        say(&format!("ran {key}"));
        // It is not over yet when it is done, so that some are killed in between.
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..4))).await;
        let document = json!({ "execution": execution }).to_string();
        Response::new(Full::from(document))
    }
}

fn status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

pub(crate) struct Shop<J> {
    pub(crate) store: J,
    pub(crate) replay: Replay<J>,
    webhooks: Webhooks<J>,
    /// The service for callers.
    app: App,
    /// The service for the worker: the same without the replay layer.
    inner: App,
    hook: String,
}

/// The answer to a caller.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) replayed: bool,
    pub(crate) document: Value,
}

impl Answer {
    pub(crate) fn id(&self) -> Option<ReplayId> {
        self.document["replay_id"].as_str()?.parse().ok()
    }

    pub(crate) fn execution(&self) -> Option<&str> {
        self.document["execution"].as_str()
    }
}

impl<J: IdempotencyStore + Journal + Clone> Shop<J> {
    pub(crate) fn new(store: J, site: &Site, life: &str, moody: bool) -> Self {
        let handler = Handler {
            ledger: Ledger::open(&site.ledger),
            life: life.to_owned(),
            moody,
        };
        let service = service_fn(move |request: Request<Body>| {
            let handler = handler.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                Ok::<_, Infallible>(handler.handle(head, body).await)
            }
        });
        let idempotency = IdempotencyLayer::builder(store.clone())
            .scope(Scope::new(|_| Some("ada")))
            .crash_policy(CrashPolicy::Reexecute)
            .lease(site.lease)
            .build()
            .unwrap();
        let signer = Signer::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let guard = Guard::new().allow_http().allow("127.0.0.1").unwrap();
        let webhooks = Webhooks::builder(store.clone(), signer).guard(guard);
        let webhooks = webhooks.build().unwrap();
        let replay = Replay::builder(store.clone(), Scope::new(|_| Some("ada")))
            .callbacks(webhooks.clone())
            .concurrency(CONCURRENCY)
            .build()
            .unwrap();
        let inner = idempotency.layer(service);
        let app = replay.layer().layer(inner.clone());
        let app = ServiceExt::<Request<Body>>::map_response(app, |it| {
            it.map(|body| body.map_err(Into::into).boxed_unsync())
        });
        let inner = ServiceExt::<Request<Body>>::map_response(inner, |it| {
            it.map(|body| body.map_err(Into::into).boxed_unsync())
        });
        Self {
            store,
            replay,
            webhooks,
            app: BoxCloneSyncService::new(app),
            inner: BoxCloneSyncService::new(inner),
            hook: site.hook.clone(),
        }
    }

    /// Sends a request that is to be replayed if need be.
    pub(crate) async fn send(&self, key: &str, body: &str, ttl: Option<u64>) -> Answer {
        let request = order(key)
            .header("replay", "true")
            .header("replay-callback", &self.hook);
        let request = match ttl {
            Some(ttl) => request.header("replay-ttl", ttl),
            None => request,
        };
        call(&self.app, request, body).await
    }

    /// Sends it where workers do.
    pub(crate) async fn send_inside(&self, key: &str, body: &str) -> Answer {
        call(&self.inner, order(key), body).await
    }

    /// Sends an order during maintenance.
    pub(crate) async fn queue(&self, key: &str, body: &str) -> ReplayId {
        self.replay.maintenance().on(None);
        let answer = self.send(key, body, None).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        answer.id().unwrap()
    }

    /// The entry of a replay that must be there.
    pub(crate) async fn entry(&self, id: ReplayId) -> Entry {
        let found = self.store.find(id.entry()).await.expect("find");
        found.expect("it was accepted")
    }

    /// All entries of a queue, whole.
    pub(crate) async fn all(&self, queue: &'static str) -> Vec<Entry> {
        let mut all = Vec::new();
        let mut query = Query::new(queue, 500);
        loop {
            let page = self.store.list(query.clone()).await.expect("list");
            let Some(last) = page.last() else {
                return all;
            };
            query.after = last.sequence;
            for entry in &page {
                all.push(self.entry(entry.id.into()).await);
            }
        }
    }
}

fn order(key: &str) -> request::Builder {
    Request::post("/orders").header("idempotency-key", key)
}

async fn call(app: &App, request: request::Builder, body: &str) -> Answer {
    let request = request.body(Full::from(body.to_owned())).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer {
        status: head.status.as_u16(),
        replayed: head.headers.contains_key("idempotent-replayed"),
        document: serde_json::from_slice(&body).unwrap_or_default(),
    }
}

/// Starts to replay and to deliver, on tasks of this runtime.
pub(crate) fn start<J: IdempotencyStore + Journal + Clone>(
    shop: &Shop<J>,
    lease: Duration,
) -> [WorkerHandle; 2] {
    let replaying = shop.replay.worker::<Body, _>(shop.inner.clone());
    let replaying = replaying.lease(lease).poll(POLL).start().unwrap();
    let delivering = shop.webhooks.worker().lease(lease).poll(POLL);
    [replaying, delivering.start().unwrap()]
}

/// A process that replays and delivers until somebody ends it.
pub(crate) async fn work<B: Backend>(site: &Site, life: &str) {
    tracing_subscriber::registry().with(Log).init();
    let store = B::open(&site.address).await;
    let shop = Shop::new(store, site, life, false);
    let _working = start(&shop, site.lease);
    say("works");
    std::future::pending::<()>().await;
}

/// Says what is logged.
struct Log;

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Log {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        if event.metadata().target() == "tower_reprise" {
            event.record(
                &mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
                    if field.name() == "message" {
                        say(&format!("log {value:?}"));
                    }
                },
            );
        }
    }
}
