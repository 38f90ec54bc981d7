//! The store in memory: the contract of all stores, and its own bounds.

use std::time::Duration;

use bytes::Bytes;
use tower_reprise::store::{
    Claimed, IdempotencyStore, MemoryStore, Ownership, Resolution, Resolved, StoreErrorKind,
    Stored,
    conformance::{self, Backend},
    journal::{EntryCommand, Journal, LeaseRequest, NewEntry, Settlement},
};

use crate::support::{
    races,
    records::{LEASE, RETENTION, claim, complete, own},
};

struct Memory(MemoryStore);

impl Backend for Memory {
    type Store = MemoryStore;

    async fn open(&self) -> MemoryStore {
        self.0.clone()
    }

    async fn pass(&self, time: Duration) {
        tokio::time::advance(time).await;
    }
}

async fn is_new(store: &MemoryStore, key: u64) -> bool {
    matches!(store.claim(claim(key)).await, Ok(Claimed::New(_)))
}

#[tokio::test(start_paused = true)]
async fn t_1_t_2_t_3_the_contract() {
    conformance::run(&Memory(MemoryStore::new())).await;
}

#[tokio::test(start_paused = true)]
async fn i_27_t_2_the_contract_of_unknown_outcomes() {
    conformance::unknown_outcomes(&Memory(MemoryStore::new())).await;
}

#[tokio::test(start_paused = true)]
async fn t_1_t_2_t_3_the_contract_of_a_journal() {
    conformance::journal(&Memory(MemoryStore::new())).await;
}

#[tokio::test(start_paused = true)]
async fn t_1_t_2_the_model() {
    for seed in 0..200 {
        conformance::model(&Memory(MemoryStore::new()), seed, 500).await;
    }
}

/// Claims from many threads at once, not just from many tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i_6_one_claim_wins_on_many_threads() {
    for key in 0..200 {
        let store = MemoryStore::new();
        let mut claims = tokio::task::JoinSet::new();
        for _ in 0..16 {
            let store = store.clone();
            claims.spawn(async move { is_new(&store, key).await });
        }
        let won = claims.join_all().await.into_iter().filter(|won| *won);
        assert_eq!(won.count(), 1);
    }
}

/// I-27: the room of what has expired is taken, as for a completion.
#[tokio::test(start_paused = true)]
async fn i_27_a_resolution_takes_the_room_of_expired_replies() {
    let store = MemoryStore::builder().max_bytes(15).build().unwrap();
    let reply = || Stored::Reply(Bytes::from_static(b"0123456789"));
    let token = own(&store, claim(1)).await;
    complete(&store, 1, token, reply()).await;
    tokio::time::advance(RETENTION - LEASE).await;
    let token = own(&store, claim(2)).await;
    tokio::time::advance(LEASE).await;
    let executed = Resolution::Executed(reply(), RETENTION);
    let resolved = store.resolve(claim(2).key, token, executed).await;
    assert_eq!(resolved.unwrap(), Resolved::Made);
    let found = store.claim(claim(2)).await.unwrap();
    assert_eq!(found, Claimed::done(reply()));
}

#[tokio::test(start_paused = true)]
async fn i_23_full_of_live_records_refuses() {
    let store = MemoryStore::builder().max_records(10).build().unwrap();
    for key in 0..10 {
        assert!(is_new(&store, key).await);
    }
    let error = store.claim(claim(10)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full);
    assert!(!error.may_have_happened());
    for key in 0..10 {
        let claimed = store.claim(claim(key)).await.unwrap();
        assert!(matches!(claimed, Claimed::InFlight { .. }), "{claimed:?}");
    }

    // Past their time, they make room: and only then.
    tokio::time::advance(LEASE + RETENTION - Duration::from_secs(1)).await;
    assert!(!is_new(&store, 10).await);
    tokio::time::advance(Duration::from_secs(2)).await;
    for key in 10..20 {
        assert!(is_new(&store, key).await);
    }
    assert_eq!(store.len(), 10);
}

#[tokio::test(start_paused = true)]
async fn i_23_a_release_makes_room() {
    let store = MemoryStore::builder().max_records(1).build().unwrap();
    let Ok(Claimed::New(lease)) = store.claim(claim(1)).await else {
        panic!("the store is empty");
    };
    assert!(!is_new(&store, 2).await);
    let released = store.release(claim(1).key, lease.token).await;
    assert_eq!(released.unwrap(), Ownership::Held);
    assert!(is_new(&store, 2).await);
}

#[tokio::test(start_paused = true)]
async fn i_23_replies_are_bounded_too() {
    let store = MemoryStore::builder().max_bytes(100).build().unwrap();
    let reply = |len| Stored::Reply(Bytes::from(vec![0; len]));
    let own = async |key| match store.claim(claim(key)).await.unwrap() {
        Claimed::New(lease) => lease.token,
        other => panic!("{other:?}"),
    };
    let complete = async |key, token, stored| {
        store
            .complete(claim(key).key, token, stored, RETENTION)
            .await
    };
    let (one, two) = (own(1).await, own(2).await);
    assert_eq!(complete(1, one, reply(60)).await.unwrap(), Ownership::Held);
    let error = complete(2, two, reply(41)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full);
    // The owner can say at least that it was executed.
    let smaller = complete(2, two, Stored::NotRetained).await;
    assert_eq!(smaller.unwrap(), Ownership::Held);

    // A repeat takes no room, nor does what was lost.
    assert_eq!(complete(1, one, reply(40)).await.unwrap(), Ownership::Held);
    assert_eq!(complete(3, one, reply(40)).await.unwrap(), Ownership::Lost);
    let three = own(3).await;
    assert_eq!(
        complete(3, three, reply(40)).await.unwrap(),
        Ownership::Held
    );
    assert!(!is_new(&store, 4).await, "all bytes are taken");
    tokio::time::advance(RETENTION + Duration::from_secs(1)).await;
    assert!(is_new(&store, 4).await);
}

/// A reply finds the room that others left whose time is past.
#[tokio::test(start_paused = true)]
async fn i_23_a_completion_makes_room_for_itself() {
    let store = MemoryStore::builder().max_bytes(100).build().unwrap();
    let reply = || Stored::Reply(Bytes::from(vec![0; 90]));
    let Claimed::New(lease) = store.claim(claim(1)).await.unwrap() else {
        panic!("the store is empty");
    };
    let completed = store.complete(claim(1).key, lease.token, reply(), LEASE);
    assert_eq!(completed.await.unwrap(), Ownership::Held);
    let Claimed::New(lease) = store.claim(claim(2)).await.unwrap() else {
        panic!("there is room for records");
    };
    let complete = async || {
        store
            .complete(claim(2).key, lease.token, reply(), RETENTION)
            .await
    };
    assert!(complete().await.is_err());
    tokio::time::advance(LEASE + Duration::from_secs(1)).await;
    assert_eq!(complete().await.unwrap(), Ownership::Held);
}

/// T-3: not a microsecond less, though a sweep looks at it again and again, and not one more.
#[tokio::test(start_paused = true)]
async fn t_3_i_23_a_sweep_removes_at_the_time_and_not_before() {
    for lease in [1, 999_999, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 2_500_000] {
        let store = MemoryStore::builder().max_records(1).build().unwrap();
        let lease = Duration::from_micros(lease);
        let mut one = claim(1);
        (one.lease, one.retention) = (lease, Duration::ZERO);
        assert!(matches!(store.claim(one).await, Ok(Claimed::New(_))));
        assert!(!is_new(&store, 2).await);
        tokio::time::advance(lease - Duration::from_micros(1)).await;
        assert!(!is_new(&store, 2).await, "removed before {lease:?}");
        tokio::time::advance(Duration::from_micros(1)).await;
        assert!(is_new(&store, 2).await, "not removed at {lease:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn sweeps_itself_while_others_come_in() {
    let store = MemoryStore::new();
    for key in 0..5_000 {
        assert!(is_new(&store, key).await);
    }
    tokio::time::advance(LEASE + RETENTION).await;
    // One key, again and again: all shards are swept all the same.
    for _ in 0..1_000 {
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(store.claim(claim(7)).await.is_ok());
    }
    assert_eq!(store.len(), 1);
}

#[test]
fn no_room_at_all_is_a_mistake() {
    let error = MemoryStore::builder().max_records(0).build().unwrap_err();
    let message = "memory.max_records is 0, allowed: at least 1";
    assert_eq!(error.to_string(), message);
    let error = MemoryStore::builder().max_bytes(0).build().unwrap_err();
    assert_eq!(error.field(), "memory.max_bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn j_7_cancel_against_start_has_one_winner() {
    let store = MemoryStore::new();
    races::cancel_against_start([store.clone(), store]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn j_5_two_handles_keep_the_order() {
    let store = MemoryStore::new();
    races::leases_keep_the_order([store.clone(), store]).await;
}

/// what is redriven again and again takes no more room for that.
#[tokio::test(start_paused = true)]
async fn q_3_a_result_takes_the_room_of_the_one_before() {
    let store = MemoryStore::builder().max_bytes(100).build().unwrap();
    let new = NewEntry::new("q", vec![0; 10]);
    let id = new.id;
    store.enqueue(new).await.unwrap();
    for _ in 0..10 {
        let leased = store
            .lease(LeaseRequest::new("q", "", 1, LEASE))
            .await
            .unwrap();
        let settle = Settlement {
            result: Some(vec![0; 30].into()),
            ..Settlement::failed("broken", RETENTION)
        };
        let settled = store.settle(id, leased[0].lease_token, settle).await;
        assert_eq!(settled.unwrap(), Ownership::Held);
        store
            .command(id, EntryCommand::Redrive(RETENTION))
            .await
            .unwrap();
    }
    let fits = NewEntry::new("q", vec![0; 60]);
    assert!(store.enqueue(fits).await.is_ok());
    let more = NewEntry::new("q", vec![0; 1]);
    let error = store.enqueue(more).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full);
}

/// T-9: a full journal takes the end of what runs, with what is to be told of it.
#[tokio::test(start_paused = true)]
async fn t_9_a_full_journal_takes_settlements_and_their_outbox() {
    for full in [
        MemoryStore::builder().max_entries(2),
        MemoryStore::builder().max_bytes(20),
    ] {
        let store = full.build().unwrap();
        let runs = NewEntry::new("q", vec![0; 10]);
        let id = runs.id;
        store.enqueue(runs).await.unwrap();
        let request = LeaseRequest::new("q", "", 1, LEASE);
        let leased = store.lease(request).await.unwrap();
        let waits = NewEntry::new("q", vec![0; 10]);
        store.enqueue(waits).await.unwrap();
        let more = NewEntry::new("q", vec![0; 1]);
        let error = store.enqueue(more).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Full);
        let alert = NewEntry::new("alerts", vec![0; 10]);
        let told = alert.id;
        let settlement = Settlement {
            outbox: vec![alert],
            ..Settlement::failed("broken", RETENTION)
        };
        let settled = store.settle(id, leased[0].lease_token, settlement).await;
        assert_eq!(settled.unwrap(), Ownership::Held);
        assert!(store.find(told).await.unwrap().is_some());
    }
}
