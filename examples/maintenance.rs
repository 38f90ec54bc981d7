//! A shop goes into maintenance under load and comes back: whatever it accepted is done, once.
//!
//! ```text
//! cargo run --release --features full --example maintenance
//! ```
//!
//! An axum router on loopback takes orders, under an `IdempotencyLayer` and a `ReplayLayer` that
//! keep what they know in one SQLite file. Customers place orders all the while, and some of them
//! more than once. In the middle the shop is switched to maintenance: orders are answered with 202
//! and written down. When it is switched back they are replayed, gently at first, and each
//! customer's webhook is told.
//!
//! You see the progress, then a table, and a last line `maintenance {…}` with the same figures as
//! JSON. It takes about 10 s, or 4 s with `--quick`.

use std::{
    env,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Json, Router, body::Body, extract::State, http::HeaderMap, routing::post};
use dashmap::DashMap;
use serde_json::{Value, json};
use tokio::{net::TcpListener, time::Instant};
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    IdempotencyLayer,
    delivery::{
        guard::Guard,
        replay::Replay,
        webhooks::{
            Signer, Webhooks,
            verify::{Verifier, WebhookVerifyLayer},
        },
    },
    error::BoxError,
    store::{
        CrashPolicy, SqliteStore,
        journal::{Journal, Status},
    },
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The orders, and the number of executions of each.
type Ledger = Arc<DashMap<String, u32>>;

async fn place(State(ledger): State<Ledger>, headers: HeaderMap) -> Json<Value> {
    let key = headers["idempotency-key"]
        .to_str()
        .unwrap_or_default()
        .to_owned();
    *ledger.entry(key.clone()).or_default() += 1;
    Json(json!({ "order": key, "status": "created" }))
}

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    match &*env::args().skip(1).collect::<Vec<_>>() {
        [] => run(1500).await,
        [quick] if quick == "--quick" => run(400).await,
        _ => Err("usage: maintenance [--quick]".into()),
    }
}

async fn run(orders: u64) -> Result<ExitCode, BoxError> {
    let folder = env::temp_dir().join(format!("maintenance-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let store = SqliteStore::open(folder.join("shop.db"))?;
    let (callback, told) = receiver().await?;

    // The shop.
    let ledger = Ledger::default();
    let idempotency = IdempotencyLayer::builder(store.clone())
        .scope(Scope::new(|_| Some("shop")))
        .crash_policy(CrashPolicy::Reexecute)
        .wait(Duration::from_secs(10)) // who sends an order twice at once gets one reply twice
        .build()?;
    let guard = Guard::new().allow_http().allow("127.0.0.1")?;
    let webhooks = Webhooks::builder(store.clone(), Signer::new(SECRET)?)
        .guard(guard)
        .build()?;
    let replay = Replay::builder(store.clone(), Scope::new(|_| Some("shop")))
        .callbacks(webhooks.clone())
        .location("/replays")
        .build()?;
    let shop = Router::new()
        .route("/orders", post(place))
        .with_state(ledger.clone());
    let shop = shop.layer(idempotency);
    let workers = [
        replay.worker::<Body, _>(shop.clone()).start()?,
        webhooks.worker().start()?,
    ];
    let app = shop
        .layer(replay.layer())
        .nest_service("/replays", replay.routes());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/orders", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });

    // Its customers.
    let (served, accepted) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let started = Instant::now();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::new();
    for n in 0..orders {
        match n {
            n if n == orders / 4 => replay.maintenance().on(None),
            n if n == orders * 3 / 4 => replay.maintenance().off(),
            _ => {}
        }
        // One in five is sent twice.
        for _ in 0..1 + u64::from(n % 5 == 0) {
            let request = client
                .post(&url)
                .header("idempotency-key", n.to_string())
                .header("replay", "true")
                .header("replay-callback", &callback)
                .body("{}");
            let (served, accepted) = (served.clone(), accepted.clone());
            tokio::spawn(async move {
                match request.send().await.map(|reply| reply.status().as_u16()) {
                    Ok(200) => served.fetch_add(1, Ordering::Relaxed),
                    Ok(202) => accepted.fetch_add(1, Ordering::Relaxed),
                    other => {
                        eprintln!("\na customer was told {other:?}");
                        0
                    }
                };
            });
        }
        tokio::time::sleep(Duration::from_millis(4)).await;
        if n % 20 == 0 {
            progress(n, orders, &store, replay.maintenance().is_on()).await?;
        }
    }
    let requests = orders + orders.div_ceil(5);
    let sent = || served.load(Ordering::Relaxed) + accepted.load(Ordering::Relaxed);
    let until = Instant::now() + Duration::from_secs(60);
    let counts = loop {
        let counts = store.counts("replay").await?;
        let open = counts.of(Status::Queued) + counts.of(Status::Processing);
        let told = told.len() as u64;
        if sent() == requests && open == 0 && told >= counts.of(Status::Completed) {
            break counts;
        }
        if Instant::now() > until {
            return Err("what was accepted was not done in a minute".into());
        }
        progress(orders, orders, &store, false).await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    eprintln!();
    for worker in workers {
        worker.shutdown(Duration::from_secs(5)).await;
    }

    let once = ledger.iter().filter(|times| *times.value() == 1).count() as u64;
    let twice = ledger.len() as u64 - once;
    let missing = orders - ledger.len() as u64;
    let (completed, failed) = (counts.of(Status::Completed), counts.of(Status::Failed));
    let told = told.len();
    println!("orders                               {orders:>6}");
    println!("requests                             {requests:>6}");
    println!(
        "served at once                       {:>6}",
        served.load(Ordering::Relaxed)
    );
    println!(
        "accepted with 202                    {:>6}",
        accepted.load(Ordering::Relaxed)
    );
    println!("replayed                             {completed:>6}");
    println!("replays that failed                  {failed:>6}");
    println!("replays that a webhook was told of   {told:>6}");
    println!("in the ledger: once {once}, more often {twice}, missing {missing}");
    println!(
        r#"maintenance {{"orders":{orders},"requests":{requests},"served":{},"accepted":{},"replayed":{completed},"failed":{failed},"told":{told},"once":{once},"twice":{twice},"missing":{missing},"seconds":{:.1}}}"#,
        served.load(Ordering::Relaxed),
        accepted.load(Ordering::Relaxed),
        started.elapsed().as_secs_f64()
    );
    drop(store);
    std::fs::remove_dir_all(&folder)?;
    let good = once == orders && told as u64 == completed && failed == 0;
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn progress(n: u64, orders: u64, store: &SqliteStore, closed: bool) -> Result<(), BoxError> {
    let waiting = store.counts("replay").await?.of(Status::Queued);
    let filled = usize::try_from(n * 30 / orders)?;
    let state = if closed { "maintenance" } else { "open" };
    let bar = format!("{:<30}", "#".repeat(filled));
    eprint!("\r[{bar}] {n:>5} of {orders} ordered, {waiting:>5} waiting, {state:<12}");
    Ok(())
}

/// The customers' webhook: it verifies what it is told, and remembers which replays it was told of.
async fn receiver() -> Result<(String, Arc<DashMap<String, Value>>), BoxError> {
    let told: Arc<DashMap<String, Value>> = Arc::default();
    let remembers = told.clone();
    let hook = move |Json(event): Json<Value>| async move {
        let id = event["data"]["replay_id"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        remembers.insert(id, event);
    };
    let app = Router::new()
        .route("/hook", post(hook))
        .layer(WebhookVerifyLayer::new(Verifier::new(SECRET)?));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/hook", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok((url, told))
}
