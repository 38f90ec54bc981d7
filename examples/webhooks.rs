//! A sender of webhooks and three receivers: one good, one flaky, one gone.
//!
//! ```text
//! cargo run --release --features full --example webhooks
//! ```
//!
//! Events are written to a SQLite file and delivered, signed, each target in a lane of its own. The
//! flaky receiver refuses the first deliveries of each event; the one that is gone answers 410,
//! so that its events become dead letters at once. An alert is sent, the receiver is repaired, and
//! the dead letters are redriven, so that everything arrives. You see the progress, and a last line
//! `webhooks {…}` with figures as JSON. It takes a few seconds.

use std::{
    env,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Router, extract::State, http::HeaderMap, http::StatusCode, routing::post};
use dashmap::DashMap;
use tokio::{net::TcpListener, time::Instant};
use tower_reprise::{
    Dependencies, Policy,
    delivery::{
        dead_letter::{Alert, DeadLetter, DeadLetters, Selection},
        guard::Guard,
        webhooks::{
            Signer, Webhook, Webhooks,
            verify::{Verifier, WebhookVerifyLayer},
        },
    },
    error::{BoxError, Rule},
    store::{
        SqliteStore,
        journal::{Journal, Status},
    },
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const EVENTS: u64 = 20;

/// A receiver, and what it got.
#[derive(Clone, Default)]
struct Receiver {
    /// The number of first deliveries of each event that it refuses.
    refuses: u32,
    gone: Arc<AtomicBool>,
    deliveries: Arc<DashMap<String, u32>>,
}

impl Receiver {
    async fn take(State(this): State<Self>, headers: HeaderMap) -> StatusCode {
        if this.gone.load(Ordering::Relaxed) {
            return StatusCode::GONE;
        }
        let id = headers["webhook-id"]
            .to_str()
            .unwrap_or_default()
            .to_owned();
        let mut times = this.deliveries.entry(id).or_default();
        *times += 1;
        match *times <= this.refuses {
            true => StatusCode::SERVICE_UNAVAILABLE,
            false => StatusCode::NO_CONTENT,
        }
    }

    async fn listen(&self) -> Result<String, BoxError> {
        let app = Router::new()
            .route("/hook", post(Self::take))
            .with_state(self.clone())
            .layer(WebhookVerifyLayer::new(Verifier::new(SECRET)?));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/hook", listener.local_addr()?);
        tokio::spawn(async move { axum::serve(listener, app).await });
        Ok(url)
    }

    fn events(&self) -> usize {
        self.deliveries.len()
    }

    fn deliveries(&self) -> u32 {
        self.deliveries.iter().map(|times| *times).sum()
    }
}

/// An alert that counts, and prints the first letter.
#[derive(Clone, Default)]
struct Pager(Arc<AtomicU64>);

impl Alert for Pager {
    async fn fire(&self, letter: &DeadLetter) -> Result<(), BoxError> {
        if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
            println!(
                "alert: {} in {}: {}",
                letter.label,
                letter.queue,
                letter.cause()
            );
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let folder = env::temp_dir().join(format!("webhooks-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let store = SqliteStore::open(folder.join("webhooks.db"))?;

    let good = Receiver::default();
    let flaky = Receiver {
        refuses: 1,
        ..Receiver::default()
    };
    let gone = Receiver::default();
    gone.gone.store(true, Ordering::Relaxed);

    let guard = Guard::new().allow_http().allow("127.0.0.1")?;
    // All that fails here fails at once, and is to be over in a minute.
    let policy = Policy::http()
        .budget_floor(100)
        .approve(Rule::R7, "a demonstration");
    let webhooks = Webhooks::builder(store.clone(), Signer::new(SECRET)?)
        .guard(guard)
        .dependencies(Dependencies::new(policy.build()?))
        .build()?;
    let letters = DeadLetters::new(store.clone());
    let pager = Pager::default();
    let workers = [
        webhooks.worker().start()?,
        letters.alerts(pager.clone()).start()?,
    ];

    let started = Instant::now();
    for receiver in [&good, &flaky, &gone] {
        let url = receiver.listen().await?;
        for n in 0..EVENTS {
            let event = Webhook::new(&*url, format!(r#"{{"event":"order.paid","order":{n}}}"#));
            webhooks.send(event.label("order.paid")).await?;
        }
    }
    let done = async |completed, failed| {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let counts = store.counts("webhooks").await?;
            let (arrived, dead) = (counts.of(Status::Completed), counts.of(Status::Failed));
            eprint!("\r{arrived:>3} delivered, {dead:>3} dead letters ");
            if (arrived, dead) == (completed, failed) {
                eprintln!();
                return Ok::<_, BoxError>(());
            }
            if Instant::now() > until {
                return Err("not delivered within a minute".into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    done(2 * EVENTS, EVENTS).await?;
    while pager.0.load(Ordering::Relaxed) < EVENTS {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    let counted = letters
        .redrive_all(Selection::queue("webhooks").dry_run())
        .await?;
    println!(
        "{} dead letters, {} alerts",
        counted.matched,
        pager.0.load(Ordering::Relaxed)
    );
    println!("the receiver is mended, and the letters are redriven");
    gone.gone.store(false, Ordering::Relaxed);
    let redriven = letters
        .redrive_all(Selection::queue("webhooks").per_second(50))
        .await?;
    done(3 * EVENTS, 0).await?;
    for worker in workers {
        worker.shutdown(Duration::from_secs(5)).await;
    }

    for (name, receiver) in [("good", &good), ("flaky", &flaky), ("mended", &gone)] {
        println!(
            "{name:<7} {:>3} events in {:>3} deliveries",
            receiver.events(),
            receiver.deliveries()
        );
    }
    println!(
        r#"webhooks {{"events":{},"good":{},"flaky":{},"mended":{},"alerts":{},"redriven":{},"seconds":{:.1}}}"#,
        3 * EVENTS,
        good.events(),
        flaky.events(),
        gone.events(),
        pager.0.load(Ordering::Relaxed),
        redriven.changed,
        started.elapsed().as_secs_f64()
    );
    drop(store);
    std::fs::remove_dir_all(&folder)?;
    let all = [&good, &flaky, &gone].map(Receiver::events);
    let arrived = all.iter().all(|events| *events as u64 == EVENTS);
    Ok(if arrived {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
