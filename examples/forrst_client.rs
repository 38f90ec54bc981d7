//! A forrst client, step by step: what it sends, what comes back, and why.
//!
//! ```text
//! cargo run --release --features full --example forrst_client
//! ```
//!
//! It starts the shop of `forrst_server` itself, or calls one that runs: `--server
//! http://127.0.0.1:8090`. Each line with `→` is one attempt on the wire, each with `←` its reply.
//! You see guidance obeyed, a repeat answered from the cache, a conflict, a call that is still being
//! processed, and calls that are queued in maintenance and replayed, of which a webhook is told. It
//! takes about 4 s, and fails if a step does not show what it says.

#[path = "forrst/caller.rs"]
mod caller;
#[path = "forrst/shop.rs"]
mod shop;

use std::{env, net::Ipv4Addr, time::Duration};

use axum::{Json, Router, routing::post};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::mpsc,
    time::{Instant, timeout},
};
use tower_reprise::{
    delivery::webhooks::verify::{Verifier, WebhookVerifyLayer},
    error::BoxError,
    forrst::{
        Extension, IdempotencyOptions, MaintenanceData, ReplayCallback, ReplayData, ReplayOptions,
        Request, Retry, arguments_hash,
    },
    store::MemoryStore,
};

use crate::{
    caller::Caller,
    shop::{SECRET, Shop},
};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    match &*arguments {
        [] => {
            let shop = Shop::open((Ipv4Addr::LOCALHOST, 0).into(), MemoryStore::new()).await?;
            steps(format!("http://{}", shop.address)).await?;
            shop.close().await;
            Ok(())
        }
        [flag, server] if flag == "--server" => steps(server.trim_end_matches('/').into()).await,
        _ => Err("usage: forrst_client [--server http://127.0.0.1:PORT]".into()),
    }
}

async fn steps(server: String) -> Result<(), BoxError> {
    let caller = Caller::new(server)?;
    guidance(&caller).await?;
    idempotency(&caller).await?;
    replay(&caller).await?;
    println!("\nAll of it.");
    Ok(())
}

async fn guidance(caller: &Caller) -> Result<(), BoxError> {
    println!("\n1. Guidance: the server says when to call again, and the client waits that long");
    let began = Instant::now();
    let counted = caller.call(request("stock.count", json!({}))).await?;
    let [first, second] = &*counted.sent else {
        return Err("it was not called twice".into());
    };
    show(
        "the second attempt succeeds",
        counted.status == StatusCode::OK,
    )?;
    show("a second later", began.elapsed() >= Duration::from_secs(1))?;
    let one = first.key == second.key && first.id != second.id;
    show("with the same key, and an id of its own", one)?;

    println!("\n2. Guidance: what another call does not mend is not called again");
    let call = request("users.create", json!({ "email": "?" }));
    let refused = caller.call(call).await?;
    let retry: Option<Retry> = refused.reply.data_of(Retry::URN)?;
    show("the server says so", retry == Some(Retry::never()))?;
    show("and the client makes one attempt", refused.sent.len() == 1)
}

async fn idempotency(caller: &Caller) -> Result<(), BoxError> {
    println!("\n3. Caching: the second call with a key gets the first one's reply");
    let key = fresh("charge");
    let amount = json!({ "amount": 100, "currency": "USD" });
    let call = || keyed("payments.charge", amount.clone(), &key);
    let charged = caller.call(call()).await?;
    show("processed", charged.idempotency()?.status == "processed")?;
    let repeated = caller.call(call()).await?;
    let told = repeated.idempotency()?;
    show("cached", told.is_cached())?;
    let same = repeated.reply.result == charged.reply.result;
    show("it is the same charge", same)?;
    let original = told.original_request_id;
    show("of the first request", original == charged.reply.id)?;

    println!("\n4. Conflict: a key belongs to its arguments");
    let other = json!({ "amount": 101, "currency": "USD" });
    let call = keyed("payments.charge", other, &key);
    let conflict = caller.call(call).await?;
    let refused = conflict.code() == Some("IDEMPOTENCY_CONFLICT");
    show("it is refused", refused)?;
    let hash = conflict.detail("original_arguments_hash");
    let same = hash == Some(&json!(arguments_hash(&amount)));
    show("with the hash of the first ones", same)?;
    show("and not called again", conflict.sent.len() == 1)?;

    println!("\n5. Processing: two calls at once with one key are one charge");
    let key = fresh("charge");
    let call = || caller.call(keyed("payments.charge", amount.clone(), &key));
    let (one, two) = tokio::try_join!(call(), call())?;
    let told = [&one, &two].map(|called| called.was_told("IDEMPOTENCY_PROCESSING"));
    show("one of them was told to wait", told[0] != told[1])?;
    let same = one.reply.result == two.reply.result;
    show("and got the other one's reply", same)
}

async fn replay(caller: &Caller) -> Result<(), BoxError> {
    println!("\n6. Maintenance: a call that asks for it is queued instead of refused");
    let (hook, mut told) = webhook().await?;
    caller.post("/maintenance/on").await?;
    let key = fresh("order");
    let call = || replayed("orders.create", &key, &hook);
    let queued = caller.call(call()).await?;
    let data = queued.replay()?;
    let accepted = queued.status == StatusCode::ACCEPTED;
    show("accepted", accepted && data.status == "queued")?;
    let reason = data.reason.as_deref();
    show("because of it", reason == Some("SERVER_MAINTENANCE"))?;
    let why: Option<MaintenanceData> = queued.reply.data_of(MaintenanceData::URN)?;
    show("with why and until when", why.is_some())?;
    let again = caller.call(call()).await?.replay()?;
    let same = again.replay_id == data.replay_id;
    show("who asks again is told of the same replay", same)?;

    let call_by_mistake = replayed("orders.create", &fresh("order"), &hook);
    let mistake = caller.call(call_by_mistake).await?.replay()?;
    let one = json!({ "replay_id": mistake.replay_id });
    let cancelled = caller.function("cancel", one).await?;
    show("another is cancelled", cancelled["status"] == "cancelled")?;
    let queue = json!({ "status": "queued" });
    let queue = caller.function("list", queue).await?;
    let queue: Vec<_> = queue["replays"].as_array().into_iter().flatten().collect();
    let waits = |data: &ReplayData| {
        let id = json!(data.replay_id);
        queue.iter().any(|replay| replay["replay_id"] == id)
    };
    let only = waits(&data) && !waits(&mistake);
    show("and only the first is waiting", only)?;

    println!("\n7. Replay: after maintenance it is done, and the webhook is told");
    caller.post("/maintenance/off").await?;
    let event = timeout(Duration::from_secs(30), told.recv()).await?;
    let event = event.ok_or("nobody can be told any more")?;
    println!("   webhook: {event}");
    show("replayed", event["event"] == "replay.completed")?;
    let id = json!(data.replay_id);
    show("the same one", event["data"]["replay_id"] == id)?;
    let one = json!({ "replay_id": id });
    let status = caller.function("status", one).await?;
    let result = &event["data"]["result"];
    show("its status has the result", status["result"] == *result)?;
    let repeated = caller.call(call()).await?;
    let same = repeated.reply.result.as_ref() == Some(result);
    show("and who asks again gets that", same)
}

/// A key of this run, so that it can be run again.
fn fresh(name: &str) -> String {
    format!("{name}_{}", rand::random::<u32>())
}

fn request(function: &str, arguments: Value) -> Request {
    Request::new(function, "1.0.0", arguments)
}

/// A call with a key of its own. One without gets a random one from the layer.
fn keyed(function: &str, arguments: Value, key: &str) -> Request {
    let mut request = request(function, arguments);
    let options = json!(IdempotencyOptions::new(key));
    let extension = Extension::with_options(IdempotencyOptions::URN, options);
    request.extensions.push(extension);
    request
}

/// A call that is to be replayed if it can't be served, and whose webhook is to be told.
fn replayed(function: &str, key: &str, hook: &str) -> Request {
    let mut request = keyed(function, json!({ "sku": "WIDGET-01", "quantity": 2 }), key);
    let mut options = ReplayOptions::default();
    options.callback = Some(ReplayCallback::new(hook));
    let extension = Extension::with_options(ReplayOptions::URN, json!(options));
    request.extensions.push(extension);
    request
}

/// Prints a claim and whether it holds; fails if it does not.
fn show(what: &str, so: bool) -> Result<(), BoxError> {
    println!("   {} {what}", if so { "✓" } else { "✗" });
    so.then_some(())
        .ok_or_else(|| format!("not so: {what}").into())
}

/// The caller's own server, which lets only signed events through.
async fn webhook() -> Result<(String, mpsc::UnboundedReceiver<Value>), BoxError> {
    let (tell, told) = mpsc::unbounded_channel();
    let hook = async move |Json(event): Json<Value>| drop(tell.send(event));
    let app = Router::new()
        .route("/hook", post(hook))
        .layer(WebhookVerifyLayer::new(Verifier::new(SECRET)?));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let url = format!("http://{}/hook", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok((url, told))
}
