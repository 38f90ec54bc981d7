//! A consumer of events that are delivered more than once.

use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_reprise::{
    server::idempotency::events::{Consumed, EventDedupLayer},
    store::{CrashPolicy, MemoryStore},
};
use tower_reprise_users::Result;

#[derive(Clone)]
struct Paid {
    id: &'static str,
    cents: i64,
}

#[tokio::main]
async fn main() -> Result {
    let once = EventDedupLayer::builder(MemoryStore::new(), "ledger")
        .id(|event: &Paid| Some(event.id))
        .crash_policy(CrashPolicy::Reexecute)
        .build()?;
    let book = service_fn(async |event: Paid| match event.cents {
        ..0 => Err("a negative payment".into()),
        cents => Ok::<_, Box<dyn std::error::Error + Send + Sync>>(cents),
    });
    let mut consumer = ServiceBuilder::new().layer(once).service(book);
    let mut booked = 0;
    for (id, cents) in [("1", 100), ("2", 50), ("1", 100), ("3", -1), ("3", 7)] {
        match consumer.ready().await?.call(Paid { id, cents }).await {
            Ok(Consumed::Processed(cents)) => booked += cents,
            Ok(other) => println!("{id}: {other:?}"),
            // The broker delivers it again.
            Err(error) => println!("{id}: {error}"),
        }
    }
    assert_eq!(booked, 157);
    Ok(())
}
