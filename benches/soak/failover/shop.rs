//! Services whose records and journal are in the store that fails over.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_reprise::{
    IdempotencyLayer,
    delivery::{
        replay::{Replay, Replayed},
        worker::WorkerHandle,
    },
    error::BoxError,
    server::{dialect::Scope, idempotency::Drain},
    store::{IdempotencyStore, journal::Journal},
};

use super::ledger::{Kind, Ledger};

/// An outage of a third of it leaves no orphan: renewals keep two thirds ahead, and one that fails is
/// repeated within the last third. Longer than the default, for machines that are slow to start a
/// server and to catch up.
pub(crate) const LONG_LEASE: Duration = Duration::from_secs(120);
const SHORT_LEASE: Duration = Duration::from_secs(2);
/// The time that a handler takes: of most, and of one in so many.
const HANDLING: f64 = 3.0;
const SLOWLY: f64 = 20.0;
const SLOW_OF: u32 = 100;
pub(crate) const OWNER: &str = "x-owner";

pub(crate) type Body = Full<Bytes>;
pub(crate) type Service =
    BoxCloneSyncService<Request<Body>, Response<UnsyncBoxBody<Bytes, BoxError>>, Infallible>;

pub(crate) struct Shop {
    services: Vec<(Kind, Service)>,
    drains: Vec<Drain>,
    worker: WorkerHandle,
}

/// Takes its time, and takes effect once in it.
async fn pay(ledger: Arc<Ledger>, kind: Kind, request: Request<Body>) -> Response<Body> {
    let is_replayed = request.extensions().get::<Replayed>().is_some();
    if kind == Kind::Journaled && !is_replayed && rand::random() {
        let mut busy = Response::new(Body::default());
        *busy.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        return busy;
    }
    let body = request.into_body().collect().await;
    let body = body.unwrap_or_else(|never| match never {}).to_bytes();
    let operation = std::str::from_utf8(&body).ok();
    let operation = operation.and_then(|body| body.parse().ok());
    let operation: u32 = operation.expect("a number");
    let longest = match rand::random_range(0..SLOW_OF) {
        0 => SLOWLY,
        _ => HANDLING,
    };
    let whole = Duration::from_secs_f64(longest * rand::random::<f64>());
    let before = whole.mul_f64(rand::random());
    sleep(before).await;
    let execution = ledger.take_effect(operation);
    sleep(whole - before).await;
    Response::new(format!("paid {operation} {execution}").into())
}

impl Shop {
    pub(crate) fn new<J>(store: &J, ledger: &Arc<Ledger>) -> Self
    where
        J: IdempotencyStore + Journal + Clone,
    {
        let mut drains = Vec::new();
        let mut layer = |kind: Kind, lease: Duration| {
            let scope = |head: &Request<()>| {
                let owner = head.headers().get(OWNER)?;
                owner.to_str().ok().map(str::to_owned)
            };
            let layer = IdempotencyLayer::builder(store.clone())
                .scope(Scope::new(scope))
                .crash_policy(kind.crash_policy())
                .namespace(kind.name())
                .lease(lease)
                .build()
                .expect("a layer");
            drains.push(layer.drain());
            layer
        };
        let handler = |kind: Kind| {
            let ledger = Arc::clone(ledger);
            service_fn(move |request: Request<Body>| {
                let ledger = Arc::clone(&ledger);
                async move { Ok::<_, Infallible>(pay(ledger, kind, request).await) }
            })
        };
        let mut services = Vec::new();
        for (kind, lease) in [
            (Kind::Reexecute, LONG_LEASE),
            (Kind::Unknown, LONG_LEASE),
            (Kind::ShortLease, SHORT_LEASE),
        ] {
            let service = layer(kind, lease).layer(handler(kind));
            let service = ServiceExt::<Request<Body>>::map_response(service, |it| it.map(boxed));
            services.push((kind, BoxCloneSyncService::new(service)));
        }
        let kind = Kind::Journaled;
        let layer = layer(kind, LONG_LEASE);
        let replay = Replay::before(store.clone(), &layer).concurrency(64);
        let replay = replay.build().expect("a replay");
        let inner = layer.layer(handler(kind));
        let service = replay.layer().layer(inner.clone());
        let service = ServiceExt::<Request<Body>>::map_response(service, |it| it.map(boxed));
        services.push((kind, BoxCloneSyncService::new(service)));
        let worker = replay.worker::<Body, _>(inner);
        let worker = worker.lease(LONG_LEASE).poll(Duration::from_millis(200));
        Self {
            services,
            drains,
            worker: worker.start().expect("a worker"),
        }
    }

    pub(crate) fn service(&self, kind: Kind) -> Service {
        let service = self.services.iter().find(|(of, _)| *of == kind);
        service.expect("one of each kind").1.clone()
    }

    /// Ends the worker.
    pub(crate) async fn end(self, grace: Duration) {
        self.worker.shutdown(grace).await;
    }

    /// Returns the number of executions and settlements that did not end in time.
    pub(crate) async fn settled(&self, grace: Duration) -> usize {
        let mut left = 0;
        for drain in &self.drains {
            let drained = drain.wait(grace).await;
            left += drained.executions + drained.settlements;
        }
        left
    }
}

fn boxed<B>(body: B) -> UnsyncBoxBody<Bytes, BoxError>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    body.map_err(Into::into).boxed_unsync()
}
