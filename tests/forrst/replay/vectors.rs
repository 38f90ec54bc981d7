//! Every example of the specification, as this server says it in the same situation.

use std::time::SystemTime;

use axum::http::HeaderMap;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};
use tower_reprise::delivery::webhooks::verify::{Verifier, WebhookVerifyLayer};

use super::*;

fn vector(number: &str) -> Value {
    let name = format!("replay-{number}-");
    from_slice(&crate::envelopes::vector(&name)).unwrap()
}

/// Compares each member: names of replays, times and cursors by their shape, all else as it is.
/// Members that are not in the example have to be among `more`.
fn compare(place: &str, said: &Value, shown: &Value, more: &[&str]) {
    match (said, shown) {
        (Value::Object(said), Value::Object(shown)) => {
            for (name, shown) in shown {
                let said = said.get(name);
                let said = said.unwrap_or_else(|| panic!("no {name} in {place}"));
                compare(&format!("{place}.{name}"), said, shown, more);
            }
            for name in said.keys().filter(|name| !shown.contains_key(*name)) {
                assert!(more.contains(&name.as_str()), "{name} in {place}");
            }
        }
        (Value::Array(said), Value::Array(shown)) => {
            assert_eq!(said.len(), shown.len(), "{place}");
            for (n, (said, shown)) in said.iter().zip(shown).enumerate() {
                compare(&format!("{place}[{n}]"), said, shown, more);
            }
        }
        (Value::String(said), Value::String(shown)) => {
            let name = place.rsplit('.').next().unwrap();
            if name == "replay_id" {
                let id: Result<tower_reprise::delivery::replay::ReplayId, _> = said.parse();
                assert!(id.is_ok() && shown.starts_with("rpl_"), "{place}: {said}");
            } else if name.ends_with("_at") || ["until", "timestamp"].contains(&name) {
                assert!(humantime::parse_rfc3339(said).is_ok(), "{place}: {said}");
            } else if name == "next_cursor" {
                assert!(!said.is_empty(), "{place}");
            } else {
                assert_eq!(said, shown, "{place}");
            }
        }
        (said, shown) => assert_eq!(said, shown, "{place}"),
    }
}

/// The shop as a server on this machine, with its workers, and its customer's webhook.
struct Open {
    shop: Shop,
    url: String,
    hook: String,
    told: mpsc::UnboundedReceiver<(HeaderMap, Value)>,
    tasks: Vec<JoinHandle<()>>,
    _workers: [WorkerHandle; 2],
}

impl Drop for Open {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn serve(app: Router) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (address, serving)
}

impl Open {
    async fn new() -> Self {
        let shop = Shop::new();
        let (tell, told) = mpsc::unbounded_channel();
        let receive = async move |headers: HeaderMap, body: Bytes| {
            let _ = tell.send((headers, from_slice(&body).unwrap()));
        };
        let receiver = Router::new()
            .route("/webhooks/replay", post(receive))
            .layer(WebhookVerifyLayer::new(Verifier::new(SECRET).unwrap()));
        let (hook, receiving) = serve(receiver).await;
        let (url, serving) = serve(shop.app.clone()).await;
        let replays = shop.replay.worker::<Body, _>(shop.inner.clone());
        let webhooks = shop.webhooks.worker().poll(Duration::from_millis(10));
        Self {
            _workers: [replays.start().unwrap(), webhooks.start().unwrap()],
            url: format!("{url}/forrst"),
            hook: format!("{hook}/webhooks/replay"),
            tasks: vec![receiving, serving],
            shop,
            told,
        }
    }

    async fn call(&self, envelope: &Value) -> (u16, Value) {
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let request = Request::post(&self.url)
            .header("content-type", "application/json")
            .header("x-user", "ada")
            .body(Full::from(envelope.to_string()));
        let response = client.request(request.unwrap()).await.unwrap();
        assert_eq!(response.headers()["content-type"], "application/json");
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, from_slice(&body).unwrap())
    }

    /// The request of the first example, with a webhook that is there.
    fn request(&self) -> Value {
        let mut request = vector("01");
        request["extensions"][0]["options"]["callback"]["url"] = json!(self.hook);
        request
    }

    /// A call of an example, about this replay.
    async fn about(&self, number: &str, id: &str) -> (u16, Value) {
        let mut call = vector(number);
        call["call"]["arguments"]["replay_id"] = json!(id);
        self.call(&call).await
    }
}

fn hours(hours: u32) -> Option<SystemTime> {
    Some(SystemTime::now() + hours * 3600 * SECOND)
}

#[tokio::test]
async fn j_1_the_request_and_the_queued_response() {
    let open = Open::new().await;
    let maintenance = open.shop.replay.maintenance();
    maintenance.announce("Database migration", hours(2));
    // As it is, with the webhook and the credentials of the example.
    let (status, reply) = open.call(&vector("01")).await;
    assert_eq!(status, 202);
    assert!(reply.get("errors").is_none());
    compare("", &reply, &vector("02"), &["position"]);
    assert_eq!(data_of(&reply)["position"], 0);
    let entry = open.shop.entry(&id_of(&reply)).await;
    assert_eq!(entry.priority.as_str(), "high");
    assert_eq!(entry.expires_at.since(entry.queued_at), 24 * 3600 * SECOND);
    assert_eq!(open.shop.handler.seen().len(), 0);
}

#[tokio::test]
async fn j_15_processed_normally() {
    let open = Open::new().await;
    let mut request = open.request();
    request["id"] = json!("req_456");
    request["extensions"].as_array_mut().unwrap().truncate(1);
    let (status, reply) = open.call(&request).await;
    assert_eq!(status, 200);
    compare("", &reply, &vector("03"), &[]);
    assert_eq!(open.shop.counts().await.by_status, [0; 6]);
}

#[tokio::test]
async fn j_8_failed_after_replay() {
    let mut open = Open::new().await;
    let shown = vector("04");
    let failure = json!({ "result": null, "errors": shown["errors"] });
    open.shop.handler.will(400, failure);
    open.shop.replay.maintenance().on(None);
    let (_, queued) = open.call(&open.request()).await;
    open.shop.replay.maintenance().off();
    let (_, event) = open.told.recv().await.unwrap();
    assert_eq!(event["event"], "replay.failed");
    assert_eq!(event["data"]["errors"], shown["errors"]);
    // The caller asks again.
    open.shop.replay.maintenance().on(None);
    let mut request = open.request();
    request["id"] = shown["id"].clone();
    let (status, mut reply) = open.call(&request).await;
    assert_eq!(status, 400);
    // The example does not show what is said about the key.
    let extensions = reply["extensions"].as_array_mut().unwrap();
    assert_eq!(extensions.remove(0)["urn"], IDEMPOTENCY);
    compare("", &reply, &shown, &[]);
    assert_eq!(id_of(&reply), id_of(&queued));
    assert_eq!(open.shop.handler.seen().len(), 1);
}

#[tokio::test]
async fn j_15_status_of_a_queued_request() {
    let open = Open::new().await;
    for n in 0..42 {
        open.shop.replay.maintenance().on(None);
        let mut before = open.request();
        before["extensions"][1]["options"]["key"] = json!(n.to_string());
        assert_eq!(open.call(&before).await.0, 202);
    }
    let until = SystemTime::now() + 30 * 60 * SECOND;
    open.shop.replay.maintenance().on(Some(until));
    let (_, queued) = open.call(&open.request()).await;
    let (status, reply) = open.about("05", &id_of(&queued)).await;
    assert_eq!(status, 200);
    compare("", &reply, &vector("06"), &["protocol", "reason"]);
    assert_eq!(reply["result"]["replay_id"], id_of(&queued));
}

#[tokio::test]
async fn j_15_cancel() {
    let open = Open::new().await;
    open.shop.replay.maintenance().on(None);
    let (_, queued) = open.call(&open.request()).await;
    let (status, reply) = open.about("07", &id_of(&queued)).await;
    assert_eq!(status, 200);
    compare("", &reply, &vector("08"), &["protocol"]);
    let cancelled = open.shop.entry(&id_of(&queued)).await;
    assert_eq!(cancelled.status, Status::Cancelled);
}

#[tokio::test]
async fn j_10_list() {
    let open = Open::new().await;
    open.shop.replay.maintenance().on(None);
    for n in 0..127 {
        let mut request = open.request();
        request["extensions"][1]["options"]["key"] = json!(n.to_string());
        assert_eq!(open.call(&request).await.0, 202);
    }
    let mut other = open.request();
    other["call"]["function"] = json!("orders.cancel");
    assert_eq!(open.call(&other).await.0, 202);
    let (status, mut reply) = open.call(&vector("09")).await;
    assert_eq!(status, 200);
    let replays = reply["result"]["replays"].as_array_mut().unwrap();
    assert_eq!(replays.len(), 50);
    // The example shows two of them.
    replays.truncate(2);
    compare("", &reply, &vector("10"), &["protocol"]);
}

#[tokio::test]
async fn j_15_trigger() {
    let mut open = Open::new().await;
    open.shop.replay.maintenance().on(None);
    let (_, queued) = open.call(&open.request()).await;
    let (status, reply) = open.about("11", &id_of(&queued)).await;
    assert_eq!(status, 200);
    compare("", &reply, &vector("12"), &["protocol"]);
    // It is replayed, maintenance or not.
    let (_, event) = open.told.recv().await.unwrap();
    assert_eq!(event["data"]["replay_id"], id_of(&queued));
}

#[tokio::test]
async fn w_8_w_4_the_callback() {
    let mut open = Open::new().await;
    open.shop.replay.maintenance().on(None);
    let (_, queued) = open.call(&open.request()).await;
    open.shop.replay.maintenance().off();
    // The receiver lets only signed ones through.
    let (headers, event) = open.told.recv().await.unwrap();
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["authorization"], "Bearer webhook_token_xyz");
    compare("", &event, &vector("13"), &[]);
    assert_eq!(event["data"]["replay_id"], id_of(&queued));
    assert_eq!(event["data"]["queued_at"], data_of(&queued)["queued_at"]);

    // And its status has the result since.
    let (_, reply) = open.about("05", &id_of(&queued)).await;
    assert_eq!(reply["result"]["status"], "completed");
    assert_eq!(reply["result"]["result"], event["data"]["result"]);
}

#[tokio::test]
async fn j_3_idempotency_integration() {
    let open = Open::new().await;
    open.shop.replay.maintenance().on(None);
    let mut request = vector("14");
    request["call"] = vector("01")["call"].clone();
    let mut ids = Vec::new();
    for id in ["req_1", "req_2"] {
        request["id"] = json!(id);
        let (status, reply) = open.call(&request).await;
        assert_eq!((status, &reply["id"]), (202, &json!(id)));
        ids.push(id_of(&reply));
    }
    assert_eq!(ids[0], ids[1]);
    // The key is preserved in what is replayed: the request is as it came first.
    let payload = open.shop.entry(&ids[0]).await.payload;
    request["id"] = json!("req_1");
    assert!(payload.ends_with(request.to_string().as_bytes()));
}
