//! Workers that are stopped past their lease, and then go on: they are too late.

use std::{collections::HashSet, time::Duration};

use serde_json::Value;
use tower_reprise::store::{
    Ownership,
    journal::{Journal, LeaseRequest, LeaseToken, NewEntry, Settlement, Status},
};

use crate::{
    backend::{Backend, Site},
    killed,
    ledger::Ledger,
    receiver::Receiver,
    shop::Shop,
    support::{
        database::eventually,
        process::{Process, listen, say},
    },
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
const SHORT: Duration = Duration::from_millis(200);

/// The lines of a worker that is too late.
const LATE: [&str; 2] = ["log lease lost to another worker", "ran 1"];

fn want(lease: Duration) -> LeaseRequest {
    LeaseRequest::new("stalled", "", 1, lease)
}

/// A process that settles what it leased when it is told to.
pub(crate) async fn stall<B: Backend>(site: &Site) {
    let store = B::open(&site.address).await;
    let leased = store.lease(want(SHORT)).await.unwrap().pop().unwrap();
    say(&format!("owns {}", leased.lease_token.get()));
    listen();
    let extended = store
        .extend(leased.id, leased.lease_token, HOUR)
        .await
        .unwrap();
    let late = Settlement::completed("stale", HOUR).followed_by([NewEntry::new("after", "stale")]);
    let settled = store
        .settle(leased.id, leased.lease_token, late)
        .await
        .unwrap();
    say(&format!("got {extended:?} {settled:?}"));
}

/// Stops a process, but not while it is in the middle of a transaction: then nobody could go on.
async fn stop(process: &Process, store: &impl Journal) {
    eventually("it holds no lock", async || {
        process.signal("STOP").await;
        let writes = store.enqueue(NewEntry::new("probe", ""));
        let wrote = tokio::time::timeout(SECOND, writes).await;
        let free = matches!(wrote, Ok(Ok(_)));
        if !free {
            process.signal("CONT").await;
        }
        free
    })
    .await;
}

/// The verbs alone: what was not settled in time is another's, and so is what follows from it.
pub(crate) async fn too_late<B: Backend>(address: &str) {
    let site = Site::new(address, "", SECOND);
    let store = B::open(address).await;
    store.enqueue(NewEntry::new("stalled", "")).await.unwrap();
    let mut owner = site.start::<B>("stall", "stall", "");
    let lease_token: u64 = owner.expect("owns").await.parse().unwrap();
    stop(&owner, &store).await;
    let mut taken = None;
    eventually("the lease ran out", async || {
        taken = store.lease(want(HOUR)).await.unwrap().pop();
        taken.is_some()
    })
    .await;
    let entry = taken.unwrap();
    assert!(
        entry.lease_token > LeaseToken::new(lease_token),
        "{entry:?}"
    );
    assert_eq!(entry.attempts, 2, "J-11: the one that vanished counts");
    owner.signal("CONT").await;
    owner.tell().await;
    assert_eq!(owner.expect("got").await, "Lost Lost");
    let mine = Settlement::completed("mine", HOUR).followed_by([NewEntry::new("after", "mine")]);
    let settled = store
        .settle(entry.id, entry.lease_token, mine)
        .await
        .unwrap();
    assert_eq!(settled, Ownership::Held);
    let found = store.find(entry.id).await.unwrap().unwrap();
    assert_eq!(found.result.as_deref(), Some(&b"mine"[..]));
    let after = LeaseRequest::new("after", "", 9, HOUR);
    let after = store.lease(after).await.unwrap();
    let after: Vec<&[u8]> = after.iter().map(|it| &*it.payload).collect();
    assert_eq!(after, [b"mine"], "W-8: no callback without its result");
}

/// All of it: one worker is stopped while its handler runs, another one takes over, and the first
/// goes on and ends. Its reply is nobody's.
pub(crate) async fn taken_over<B: Backend>(address: &str) {
    let receiver = Receiver::start().await;
    let site = Site::new(address, &receiver.url, SECOND);
    let shop = Shop::new(B::open(address).await, &site, "parent", false);
    let id = shop.queue("1", "slow").await;
    let mut first = site.start::<B>("work", "first", "");
    first.expect("running 1").await;
    stop(&first, &shop.store).await;
    let mut second = site.start::<B>("work", "second", "");
    second.expect("running 1").await;
    second.tell().await;
    killed::ended(&shop).await;
    first.signal("CONT").await;
    first.tell().await;
    // In any order. The handler is not interrupted: what it began it ends, for nothing.
    let mut said = HashSet::new();
    while !LATE.iter().all(|line| said.contains(*line)) {
        said.insert(first.expect("").await);
    }

    let entry = shop.entry(id).await;
    assert_eq!((entry.status, entry.attempts), (Status::Completed, 2));
    let reply = shop.replay.reply("ada", id).await.unwrap().unwrap();
    let reply: Value = serde_json::from_slice(reply.body()).unwrap();
    let execution = reply["execution"].as_str().unwrap();
    assert!(execution.starts_with("second "), "{execution}");
    let record = shop.send_inside("1", "slow").await;
    assert_eq!(record.execution(), Some(execution));
    let ledger = Ledger::read(&site.ledger);
    let lives: Vec<&str> = ledger.iter().map(|words| &*words[1]).collect();
    assert_eq!(lives, ["second", "first"]);
    let callbacks = shop.all("webhooks").await;
    assert_eq!(callbacks.len(), 1, "W-8: {callbacks:?}");
    let messages = receiver.messages();
    let deliveries = &messages[&callbacks[0].id.to_string()];
    assert_eq!(deliveries[0]["data"]["result"], reply);
}
