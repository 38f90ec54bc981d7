//! The replay extension on a server: an axum app behind the layer, its workers, and a webhook.

mod anything;
mod calls;
mod functions;
mod outcomes;
mod vectors;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::State,
    response::{IntoResponse, Response},
    routing::post,
};
use http::{Request, StatusCode, request};
use serde_json::{Value, from_slice, json};
use tower::ServiceExt;
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    IdempotencyLayer,
    delivery::{
        guard::Guard,
        replay::{Replay, ReplayBuilder, Replayed},
        webhooks::{Signer, Webhooks},
        worker::WorkerHandle,
    },
    forrst::Forrst,
    store::{
        CrashPolicy, MemoryStore, SealKeys, Sealed,
        journal::{Counts, Entry, Journal, Query, Status},
    },
};

const SECOND: Duration = Duration::from_secs(1);
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const REPLAY: &str = "urn:forrst:ext:replay";
const IDEMPOTENCY: &str = "urn:forrst:ext:idempotency";

type Store = Sealed<MemoryStore>;

/// A handler's script, and the requests that it saw.
#[derive(Clone, Default)]
struct Handler {
    script: Arc<Mutex<VecDeque<(u16, Value, Duration)>>>,
    seen: Arc<Mutex<Vec<Bytes>>>,
}

impl Handler {
    /// Answers the next calls like this, and all others with an order. `id` is theirs.
    fn will(&self, status: u16, envelope: Value) {
        self.takes(Duration::ZERO, status, envelope);
    }

    /// The same, after that long.
    fn takes(&self, time: Duration, status: u16, envelope: Value) {
        let mut script = self.script.lock().unwrap();
        script.push_back((status, envelope, time));
    }

    fn fails(&self, status: u16, code: &str) {
        self.will(
            status,
            json!({ "result": null, "errors": [{ "code": code }] }),
        );
    }

    fn seen(&self) -> Vec<Bytes> {
        self.seen.lock().unwrap().clone()
    }
}

async fn handle(State(handler): State<Handler>, call: Bytes) -> Response {
    handler.seen.lock().unwrap().push(call.clone());
    let next = handler.script.lock().unwrap().pop_front();
    let order = json!({ "result": { "order_id": "ord_xyz", "status": "created" } });
    let (status, mut envelope, time) = next.unwrap_or((200, order, Duration::ZERO));
    tokio::time::sleep(time).await;
    if let Value::Object(members) = &mut envelope {
        let call: Value = from_slice(&call).unwrap_or_default();
        members.insert(
            "protocol".into(),
            json!({ "name": "forrst", "version": "0.1.0" }),
        );
        members.insert("id".into(), call["id"].clone());
    }
    let status = StatusCode::from_u16(status).unwrap();
    (status, axum::Json(envelope)).into_response()
}

struct Shop {
    store: Store,
    handler: Handler,
    replay: Replay<Store>,
    webhooks: Webhooks<Store>,
    /// The service for callers.
    app: Router,
    /// The service for the worker: the same without the replay layer.
    inner: Router,
}

impl Shop {
    fn new() -> Self {
        Self::with(MemoryStore::new(), |builder| builder)
    }

    fn with(
        store: MemoryStore,
        build: impl FnOnce(ReplayBuilder<Store>) -> ReplayBuilder<Store>,
    ) -> Self {
        let store = Sealed::new(store, SealKeys::try_new("1", &[7; 32]).unwrap());
        let guard = Guard::new().allow_http().allow("127.0.0.1").unwrap();
        let signer = Signer::new(SECRET).unwrap();
        let webhooks = Webhooks::builder(store.clone(), signer).guard(guard);
        let webhooks = webhooks.build().unwrap();
        let builder = Replay::builder(store.clone(), Scope::new(principal))
            .dialect(Forrst::new())
            .callbacks(webhooks.clone());
        let replay = build(builder).build().unwrap();
        let handler = Handler::default();
        let idempotency = IdempotencyLayer::builder(store.clone())
            .with_dialect(Forrst::new())
            .scope(Scope::new(|head| Some(principal(head).unwrap_or_default())))
            .crash_policy(CrashPolicy::Reexecute)
            .build()
            .unwrap();
        let inner = Router::new()
            .route("/forrst", post(handle))
            .with_state(handler.clone())
            .layer(idempotency);
        Self {
            store,
            handler,
            app: inner.clone().layer(replay.layer()),
            replay,
            webhooks,
            inner,
        }
    }

    /// In maintenance for as long as nobody says otherwise.
    fn closed() -> Self {
        let shop = Self::new();
        shop.replay.maintenance().on(None);
        shop
    }

    fn work(&self) -> WorkerHandle {
        let worker = self.replay.worker::<Body, _>(self.inner.clone());
        worker.start().unwrap()
    }

    async fn send(&self, request: request::Builder, body: impl Into<Body>) -> (u16, Value) {
        let request = request.body(body.into()).unwrap();
        let response = self.app.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1 << 22).await.unwrap();
        (status, from_slice(&body).unwrap_or_default())
    }

    /// Ada calls.
    async fn call(&self, envelope: &Value) -> (u16, Value) {
        self.send(of("ada"), envelope.to_string()).await
    }

    /// Ada calls something that is queued; the name of the replay.
    async fn queue(&self, envelope: &Value) -> String {
        let (status, reply) = self.call(envelope).await;
        assert_eq!(status, 202, "{reply}");
        id_of(&reply)
    }

    /// Somebody calls `forrst.replay.…`.
    async fn function(&self, user: &str, name: &str, arguments: Value) -> (u16, Value) {
        let function = format!("forrst.replay.{name}");
        let call = json!({ "function": function, "version": "1.0.0", "arguments": arguments });
        self.send(of(user), json!({ "id": "f", "call": call }).to_string())
            .await
    }

    async fn entry(&self, id: &str) -> Entry {
        let id: tower_reprise::delivery::replay::ReplayId = id.parse().unwrap();
        self.store.find(id.entry()).await.unwrap().unwrap()
    }

    /// Lets time pass until a replay is over.
    async fn ended(&self, id: &str) -> Status {
        for _ in 0..100_000 {
            let status = self.entry(id).await.status;
            if status.is_over() {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("it never ends");
    }

    async fn counts(&self) -> Counts {
        self.store.counts("replay").await.unwrap()
    }

    /// The bodies of the callbacks that are to be sent.
    async fn events(&self) -> Vec<Value> {
        let mut events = Vec::new();
        for entry in self.store.list(Query::new("webhooks", 9)).await.unwrap() {
            let payload = self.store.find(entry.id).await.unwrap().unwrap().payload;
            let mut starts = payload.windows(8).enumerate();
            // The members are sorted.
            let start = starts.find(|(_, part)| part == b"{\"data\":").unwrap().0;
            events.push(from_slice(&payload[start..]).unwrap());
        }
        events
    }
}

fn principal(head: &Request<()>) -> Option<String> {
    let replayed = head.extensions().get::<Replayed>();
    let of_header = || Some(head.headers().get("x-user")?.to_str().ok()?.to_owned());
    replayed
        .map(|replayed| replayed.owner.clone())
        .or_else(of_header)
}

fn of(user: &str) -> request::Builder {
    Request::post("/forrst")
        .header("content-type", "application/json")
        .header("x-user", user)
}

/// An order that is to be replayed.
fn order(id: &str, key: &str) -> Value {
    asking(id, Some(key), json!({}))
}

/// The same, with these options.
fn asking(id: &str, key: Option<&str>, options: impl Into<Value>) -> Value {
    let mut extensions = vec![json!({ "urn": REPLAY, "options": options.into() })];
    if let Some(key) = key {
        extensions.push(json!({ "urn": IDEMPOTENCY, "options": { "key": key } }));
    }
    json!({
        "protocol": { "name": "forrst", "version": "0.1.0" },
        "id": id,
        "call": {
            "function": "orders.create",
            "version": "1.0.0",
            "arguments": { "customer_id": "cust_456", "items": [{ "sku": "W", "quantity": 2 }] },
        },
        "extensions": extensions,
    })
}

/// Returns the data of a reply's replay extension.
fn data_of(reply: &Value) -> &Value {
    let extensions = reply["extensions"].as_array();
    let mut extensions = extensions.into_iter().flatten();
    let found = extensions.find(|extension| extension["urn"] == REPLAY);
    found.map_or(&Value::Null, |extension| &extension["data"])
}

fn id_of(reply: &Value) -> String {
    data_of(reply)["replay_id"].as_str().unwrap().to_owned()
}

fn code_of(reply: &Value) -> &str {
    reply["errors"][0]["code"].as_str().unwrap_or_default()
}
