//! Functions that are executed once: a server of axum and the layer in its forrst dialect.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use axum::{Router, body::Body, routing::any};
use bytes::Bytes;
use http::{Request, Response};
use serde_json::{Value, from_slice, json};
use tokio::sync::Semaphore;
use tower::ServiceExt;
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    IdempotencyLayer,
    forrst::Forrst,
    server::idempotency::IdempotencyBuilder,
    store::{CrashPolicy, IdempotencyStore, MemoryStore},
};

mod bytes_of_any_kind;
mod calls;
mod examples;
mod kept;
mod trouble;

const URN: &str = "urn:forrst:ext:idempotency";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A server that counts its executions.
#[derive(Clone)]
struct Shop {
    runs: Arc<AtomicUsize>,
    /// Lets handlers through.
    gate: Arc<Semaphore>,
    /// The next reply, instead of a charge.
    reply: Arc<Mutex<Option<Reply>>>,
    /// The last body that came in.
    seen: Arc<Mutex<Bytes>>,
    now: Arc<Mutex<SystemTime>>,
}

type Reply = Arc<dyn Fn(&Request<()>, Value) -> Response<Body> + Send + Sync>;
type Builder<St> = IdempotencyBuilder<St, Scope, CrashPolicy, Forrst>;

impl Shop {
    fn new() -> Self {
        let shop = Self::held();
        shop.gate.add_permits(Semaphore::MAX_PERMITS);
        shop
    }

    /// One whose handlers wait.
    fn held() -> Self {
        // 2024-03-15T10:30:00Z
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_710_498_600);
        Self {
            runs: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            reply: Arc::default(),
            seen: Arc::default(),
            now: Arc::new(Mutex::new(now)),
        }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    fn pass(&self, time: Duration) {
        *self.now.lock().unwrap() += time;
    }

    /// Sets the reply of handlers from now on; `reply` gets the id of the request.
    fn replies(
        &self,
        reply: impl Fn(&Request<()>, Value) -> Response<Body> + Send + Sync + 'static,
    ) {
        *self.reply.lock().unwrap() = Some(Arc::new(reply));
    }

    fn dialect(&self) -> Forrst {
        let now = Arc::clone(&self.now);
        Forrst::new().clock(move || *now.lock().unwrap())
    }

    /// Returns a layer whose scope is a header, so that a request alone decides it.
    fn builder<St>(&self, store: St) -> Builder<St> {
        IdempotencyLayer::builder(store)
            .with_dialect(self.dialect())
            .scope(Scope::new(|head| {
                let tenant = head.headers().get("x-tenant")?;
                Some(tenant.as_bytes().to_vec())
            }))
            .crash_policy(CrashPolicy::Reexecute)
    }

    fn app(&self) -> Router {
        self.app_with(self.builder(MemoryStore::new()))
    }

    fn app_with<St: IdempotencyStore>(&self, builder: Builder<St>) -> Router {
        let shop = self.clone();
        let handler = move |request| async move { shop.handle(request).await };
        let router = Router::new().route("/forrst", any(handler));
        router.layer(builder.build().unwrap())
    }

    async fn handle(self, request: Request<Body>) -> Response<Body> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        let (head, body) = request.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        *self.seen.lock().unwrap() = body.clone();
        self.gate.acquire().await.unwrap().forget();
        let envelope: Value = from_slice(&body).unwrap_or_default();
        let reply = self.reply.lock().unwrap().clone();
        match reply {
            Some(reply) => reply(&Request::from_parts(head, ()), envelope["id"].clone()),
            None => charged(&envelope["id"]),
        }
    }
}

fn charged(id: &Value) -> Response<Body> {
    replied(
        200,
        &json!({
            "protocol": {"name": "forrst", "version": "0.1.0"},
            "id": id,
            "result": {"charge_id": "ch_abc", "status": "succeeded"},
        }),
    )
}

fn replied(status: u16, envelope: &Value) -> Response<Body> {
    let body = envelope.to_string();
    Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .header("content-length", body.len())
        .body(body.into())
        .unwrap()
}

fn call(id: &str, key: &str, arguments: &Value) -> Value {
    json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": id,
        "call": {"function": "payments.charge", "version": "1.0.0", "arguments": arguments},
        "extensions": [{"urn": URN, "options": {"key": key}}],
    })
}

fn post(body: impl Into<Body>) -> Request<Body> {
    Request::post("/forrst")
        .header("content-type", "application/json")
        .header("x-tenant", "shop")
        .body(body.into())
        .unwrap()
}

/// The status and the body of a reply, whose length was told rightly.
async fn send(app: &Router, request: Request<Body>) -> (u16, Response<Bytes>) {
    let (head, body) = app.clone().oneshot(request).await.unwrap().into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    if let Some(length) = head.headers.get("content-length") {
        assert_eq!(length.to_str().unwrap(), body.len().to_string());
    }
    (head.status.as_u16(), Response::from_parts(head, body))
}

/// Makes a call.
async fn ask(app: &Router, envelope: &Value) -> (u16, Value) {
    let (status, reply) = send(app, post(envelope.to_string())).await;
    (status, from_slice(reply.body()).unwrap())
}

/// The data of the idempotency extension; there is one at most.
fn data(envelope: &Value) -> &Value {
    let Some(extensions) = envelope["extensions"].as_array() else {
        return &Value::Null;
    };
    let mut found = extensions
        .iter()
        .filter(|extension| extension["urn"] == URN);
    let first = found.next().map_or(&Value::Null, |first| &first["data"]);
    assert_eq!(found.next(), None, "twice");
    first
}

fn code(envelope: &Value) -> &str {
    envelope["errors"][0]["code"].as_str().unwrap_or_default()
}
