//! S-2: what alerts say of a letter.

use std::time::Duration;

use tower::{Layer as _, ServiceExt, service_fn};
use tower_reprise::error::BoxError;
use tower_reprise::{
    delivery::{
        dead_letter::{DeadLetterLayer, DeadLetters, Delivered, Letter, LogAlert},
        worker::{Handler, WorkerBuilder},
    },
    store::{
        MemoryStore,
        journal::{Entry, Journal, NewEntry, Settlement, Status},
    },
};

use crate::{
    secrets::assert_no_secrets,
    support::telemetry::{Log, keep_tests_apart},
};

const SECRET: &str = "s3cret-body";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Consumes numbers, and quotes what is none.
async fn consume(event: String) -> Result<u64, BoxError> {
    Ok(serde_json::from_str(&event)?)
}

struct Quoting;

impl Handler for Quoting {
    async fn handle(&self, entry: Entry) -> Settlement {
        match &*entry.payload {
            b"status" => Settlement::failed("replied 422", DAY).cause("replied 422"),
            _ => Settlement::failed(format!("no account of {SECRET}"), DAY),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn s_2_q_2_an_alert_quotes_nothing_of_the_letter() {
    keep_tests_apart();
    let (log, _listening) = Log::listen();
    let journal = MemoryStore::new();
    let letter = |event: &String| Letter {
        label: "order.paid".to_owned(),
        payload: event.clone().into(),
        ..Letter::default()
    };
    let layer = DeadLetterLayer::new(journal.clone(), "orders", letter);
    let consumer = layer.layer(service_fn(consume));
    let buried = consumer.oneshot(format!("\"{SECRET}\"")).await.unwrap();
    let Delivered::DeadLettered(id) = buried else {
        panic!("it can't be processed");
    };
    for payload in ["status", "words"] {
        let entry = NewEntry::new("jobs", payload);
        journal.enqueue(entry).await.unwrap();
    }
    let letters = DeadLetters::new(journal.clone());
    let alerts = letters.alerts(LogAlert).start().unwrap();
    let worker = WorkerBuilder::new(journal.clone(), "jobs", Quoting).start();
    while {
        let alerts = journal.counts("reprise.alerts").await.unwrap();
        alerts.of(Status::Completed) < 3
    } {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    drop((alerts, worker));
    let logged = log.with_message("dead letter");
    let mut causes: Vec<_> = logged.iter().map(|event| &*event.fields["cause"]).collect();
    causes.sort_unstable();
    assert_eq!(causes, ["failed", "failed", "replied 422"]);
    assert_no_secrets(&format!("{:?}", log.all()));
    // The letter itself holds the whole reason.
    let letter = letters.get(id).await.unwrap().unwrap();
    assert!(letter.reason.contains(SECRET), "{}", letter.reason);
}
