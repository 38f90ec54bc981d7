//! Races on one journal. The stores are handles on the same journal, as in two processes.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinSet;
use tower_reprise::store::{
    Ownership,
    journal::{
        Enqueued, EntryCommand, EntryId, Journal, LeaseRequest, NewEntry, Priority, Settlement,
        Status,
    },
};

const LEASE: Duration = Duration::from_secs(60);
const KEEP: Duration = Duration::from_secs(60);

fn queue() -> String {
    format!("q{:016x}", rand::random::<u64>())
}

async fn put(store: &impl Journal, new: NewEntry) -> EntryId {
    let id = new.id;
    let enqueued = store.enqueue(new).await.expect("enqueue");
    assert!(matches!(enqueued, Enqueued::New(_)), "{enqueued:?}");
    id
}

/// A thousand rounds of cancel against start, several at a time: one of them wins, never both.
pub(crate) async fn cancel_against_start<J: Journal>(stores: [J; 2]) {
    let [one, other] = stores.map(Arc::new);
    let mut rounds = JoinSet::new();
    for task in 0..20 {
        let (one, other) = (Arc::clone(&one), Arc::clone(&other));
        rounds.spawn(async move {
            let queue = queue();
            let mut started = 0;
            for round in 0..50 {
                let id = put(&*one, NewEntry::new(queue.clone(), "payload")).await;
                let (leaser, canceller) = match (task + round) % 2 {
                    0 => (&one, &other),
                    _ => (&other, &one),
                };
                let (leaser, want) = (
                    Arc::clone(leaser),
                    LeaseRequest::new(queue.clone(), "", 1, LEASE),
                );
                let canceller = Arc::clone(canceller);
                let start = async move { leaser.lease(want).await.expect("lease") };
                let cancel = async move { canceller.command(id, EntryCommand::Cancel(KEEP)).await };
                // Each has the head start at times.
                let (start, cancel) = if round % 4 < 2 {
                    let start = tokio::spawn(start);
                    (start, tokio::spawn(cancel))
                } else {
                    let cancel = tokio::spawn(cancel);
                    (tokio::spawn(start), cancel)
                };
                let steered = cancel.await.unwrap().expect("steer").expect("an entry");
                let leased = start.await.unwrap();
                assert_ne!(leased.len() == 1, steered.applied, "exactly one wins");
                let status = one.find(id).await.expect("find").map(|entry| entry.status);
                if let [leased] = &leased[..] {
                    started += 1;
                    assert_eq!(
                        (leased.id, status, steered.entry.status),
                        (id, Some(Status::Processing), Status::Processing)
                    );
                    let done = Settlement::completed("", KEEP);
                    let settled = other.settle(id, leased.lease_token, done).await;
                    assert_eq!(settled.expect("settle"), Ownership::Held);
                } else {
                    assert_eq!(status, Some(Status::Cancelled));
                }
            }
            started
        });
    }
    let started: i32 = rounds.join_all().await.into_iter().sum();
    assert!(
        (1..1000).contains(&started),
        "each wins at times: {started}"
    );
}

/// One lease: when it was asked for and answered, and what it took.
struct Took {
    when: Range<u64>,
    entries: Vec<(Priority, u64)>,
}

/// Workers that take what is next, as fast as they can: whoever asks after another was answered
/// gets what comes after it.
pub(crate) async fn leases_keep_the_order<J: Journal>(stores: [J; 2]) {
    const ENTRIES: usize = 240;
    let stores = stores.map(Arc::new);
    let queue = queue();
    for n in 0..ENTRIES {
        let priority = [Priority::Normal, Priority::High, Priority::Low][n % 3];
        let new = NewEntry {
            priority,
            ..NewEntry::new(queue.clone(), "payload")
        };
        put(&*stores[n % 2], new).await;
    }
    let clock = Arc::new(AtomicU64::new(0));
    let mut workers = JoinSet::new();
    for n in 0..6 {
        let (store, clock) = (Arc::clone(&stores[n % 2]), Arc::clone(&clock));
        let want = LeaseRequest::new(queue.clone(), "", 1 + n as u32 % 3, LEASE);
        workers.spawn(async move {
            let mut took = Vec::new();
            loop {
                let asked = clock.fetch_add(1, Ordering::SeqCst);
                let leased = store.lease(want.clone()).await.expect("lease");
                let answered = clock.fetch_add(1, Ordering::SeqCst);
                if leased.is_empty() {
                    return took;
                }
                let entries = leased.iter().map(|e| (e.priority, e.sequence));
                took.push(Took {
                    when: asked..answered,
                    entries: entries.collect(),
                });
            }
        });
    }
    let took: Vec<Took> = workers.join_all().await.into_iter().flatten().collect();
    let mut all: Vec<_> = took.iter().flat_map(|took| &took.entries).collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), ENTRIES, "each is leased once");
    for later in &took {
        assert!(later.entries.is_sorted());
        for earlier in took.iter().filter(|t| t.when.end < later.when.start) {
            assert!(
                earlier.entries.last() < later.entries.first(),
                "{:?} was left for {:?}",
                later.entries,
                earlier.entries
            );
        }
    }
}
