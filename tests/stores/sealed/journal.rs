//! T-7, J-13: the same for the entries of a journal.

use std::time::Duration;

use tower_reprise::store::journal::{
    Entry, EntryId, Journal, LeaseRequest, NewEntry, Query, Settlement, SharedPayload, Status,
};
use tower_reprise::store::{MemoryStore, Ownership, SealKeys, Sealed, StoreErrorKind, conformance};

use super::{Memory, NEW, OLD, SECRET, keys};
use crate::support::records::{LEASE, RETENTION};

fn sealed(store: &MemoryStore, keys: SealKeys) -> Sealed<MemoryStore> {
    Sealed::new(store.clone(), keys)
}

fn want() -> LeaseRequest {
    LeaseRequest::new("mails", "", 9, LEASE)
}

async fn put(store: &impl Journal, payload: &'static [u8]) -> EntryId {
    let new = NewEntry::new("mails", payload);
    let id = new.id;
    assert!(store.enqueue(new).await.is_ok());
    id
}

async fn found(store: &impl Journal, id: EntryId) -> Entry {
    store.find(id).await.unwrap().unwrap()
}

fn shows_secret(bytes: &[u8]) -> bool {
    bytes.windows(8).any(|seen| {
        let mut secret = SECRET.windows(8);
        secret.any(|secret| secret == seen)
    })
}

#[tokio::test(start_paused = true)]
async fn t_7_a_sealed_journal_keeps_the_contract() {
    conformance::journal(&Memory(MemoryStore::new())).await;
}

#[tokio::test(start_paused = true)]
async fn t_7_j_13_the_store_never_sees_what_is_asked_for() {
    let below = MemoryStore::new();
    let store = sealed(&below, keys());
    assert!(store.is_sealed() && !below.is_sealed());
    let id = put(&store, SECRET).await;
    let leased = store.lease(want()).await.unwrap();
    assert_eq!(&*leased[0].payload, SECRET);
    let callback = NewEntry::new("callbacks", SECRET);
    let follow = callback.id;
    let settle = Settlement::completed(SECRET, RETENTION)
        .remainder(SECRET)
        .followed_by([callback]);
    let settled = store
        .settle(id, leased[0].lease_token, settle)
        .await
        .unwrap();
    assert_eq!(settled, Ownership::Held);

    let (entry, follow) = (found(&below, id).await, found(&below, follow).await);
    let result = entry.result.unwrap();
    for bytes in [&entry.payload, &result, &follow.payload] {
        assert!(!bytes.is_empty() && !shows_secret(bytes));
    }
    let opened = found(&store, id).await;
    assert_eq!(&*opened.payload, SECRET);
    assert_eq!(opened.result.as_deref(), Some(SECRET));
    assert_eq!(&*found(&store, follow.id).await.payload, SECRET);
    let listed = store.list(Query::new("mails", 9)).await.unwrap();
    assert!(listed[0].payload.is_empty(), "lists have none");
}

/// An entry that is done may be without its payload, and one that can be leased may not.
#[tokio::test(start_paused = true)]
async fn t_7_t_8_a_payload_is_gone_only_where_it_is_dropped() {
    let below = MemoryStore::new();
    let store = sealed(&below, keys());
    let id = put(&store, SECRET).await;
    let leased = store.lease(want()).await.unwrap();
    let done = Settlement::completed("", RETENTION);
    let settled = store.settle(id, leased[0].lease_token, done).await;
    assert_eq!(settled.unwrap(), Ownership::Held);
    assert!(found(&store, id).await.payload.is_empty());
    // Somebody with access to the store took it away.
    let blank = put(&below, b"").await;
    let error = store.find(blank).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    assert!(store.lease(want()).await.unwrap().is_empty());
}

/// Each is bound to its entry, and to which of the two it is.
#[tokio::test(start_paused = true)]
async fn t_7_what_was_moved_is_refused() {
    let below = MemoryStore::new();
    let store = sealed(&below, keys());
    let id = put(&store, SECRET).await;
    let payload = found(&below, id).await.payload;
    let moved = NewEntry::new("mails", payload.clone());
    let elsewhere = moved.id;
    assert!(below.enqueue(moved).await.is_ok());
    let error = store.find(elsewhere).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    let message = error.to_string();
    assert!(
        message.contains("an entry's payload can't be opened with key 'old'"),
        "{message}"
    );

    let leased = below.lease(want()).await.unwrap();
    let leased = leased.iter().find(|entry| entry.id == id).unwrap();
    let settle = Settlement::completed(payload, RETENTION);
    let settled = below.settle(id, leased.lease_token, settle).await.unwrap();
    assert_eq!(settled, Ownership::Held);
    let error = store.find(id).await.unwrap_err();
    assert!(error.to_string().contains("an entry's result"), "{error}");
}

/// It is sealed once, opens for each entry that names it, and for no other.
#[tokio::test(start_paused = true)]
async fn t_7_a_shared_end_is_bound_to_the_entries_that_share_it() {
    let below = MemoryStore::new();
    let store = sealed(&below, keys());
    let ends = [SECRET, &[b'x'; SECRET.len()]].map(SharedPayload::new);
    let [first, second, other] =
        [0, 0, 1].map(|end| NewEntry::new("mails", "own secret").ending_in(&ends[end]));
    let ids = [first.id, second.id, other.id];
    let put = store.enqueue_many(vec![first, second, other]).await;
    assert_eq!(put.unwrap().len(), 3);
    let mut payloads = Vec::new();
    for (id, end) in ids.into_iter().zip([0, 0, 1]) {
        let whole = [&b"own secret"[..], &ends[end].bytes()[..]].concat();
        assert_eq!(found(&store, id).await.payload, whole);
        let payload = found(&below, id).await.payload;
        assert!(!shows_secret(&payload));
        payloads.push(payload);
    }
    let cut = payloads[0].len() - SECRET.len();
    assert_eq!(payloads[0][cut..], payloads[1][cut..], "it is sealed once");
    // The length of an own part is the same for all.
    let own = payloads[0].len() - (SECRET.len() + 2 + "old".len() + 24 + 16);
    let moved = [
        // The end of another one, with its id or without.
        [&payloads[0][..own], &payloads[2][own..]].concat(),
        [
            &payloads[2][..17],
            &payloads[0][17..own],
            &payloads[2][own..],
        ]
        .concat(),
        // The part of another entry.
        payloads[1].to_vec(),
        // Cut.
        payloads[0][..20].to_vec(),
        payloads[0][..own].to_vec(),
    ];
    for (n, payload) in moved.into_iter().enumerate() {
        let below = MemoryStore::new();
        let store = sealed(&below, keys());
        let mut entry = NewEntry::new("mails", payload);
        entry.id = ids[0];
        assert!(below.enqueue(entry).await.is_ok());
        let error = store.find(ids[0]).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{n}: {error}");
    }
}

/// T-7: an end that is used for longer than a key is sealed with the next one.
#[tokio::test(start_paused = true)]
async fn t_7_a_shared_end_outlives_the_key_that_sealed_it() {
    let below = MemoryStore::new();
    let new_key = || SealKeys::try_new("new", &NEW).unwrap();
    let rotated = sealed(&below, new_key().try_opening("old", &OLD).unwrap());
    let end = SharedPayload::new(SECRET);
    let [first, second] = [(); 2].map(|()| NewEntry::new("mails", "own ").ending_in(&end));
    let ids = [first.id, second.id];
    assert!(sealed(&below, keys()).enqueue(first).await.is_ok());
    assert!(rotated.enqueue(second).await.is_ok());
    let whole = [b"own ", SECRET].concat();
    assert_eq!(found(&rotated, ids[0]).await.payload, whole);
    let leased = rotated.lease(want()).await.unwrap();
    let first = leased.iter().find(|entry| entry.id == ids[0]).unwrap();
    let done = Settlement::completed("", RETENTION);
    let settled = rotated.settle(first.id, first.lease_token, done).await;
    assert_eq!(settled.unwrap(), Ownership::Held);
    // The old key is not needed any more.
    let entry = found(&sealed(&below, new_key()), ids[1]).await;
    assert_eq!(entry.payload, whole);
}

/// One that can't be opened keeps nobody from the others, and waits for who has its key.
#[tokio::test(start_paused = true)]
async fn t_7_an_entry_of_another_key_is_put_aside() {
    let below = MemoryStore::new();
    let store = sealed(&below, keys());
    let other = sealed(&below, SealKeys::try_new("new", &NEW).unwrap());
    let foreign = put(&other, SECRET).await;
    let mine = put(&store, SECRET).await;
    let leased = store.lease(want()).await.unwrap();
    let leased: Vec<_> = leased.iter().map(|entry| entry.id).collect();
    assert_eq!(leased, [mine]);
    let entry = found(&other, foreign).await;
    assert_eq!((entry.status, entry.attempts), (Status::Queued, 0));
    let note = &entry.history[0].note;
    assert!(note.contains("key 'new', which is not among"), "{note}");

    tokio::time::advance(Duration::from_secs(5 * 60)).await;
    let leased = other.lease(want()).await.unwrap();
    let leased: Vec<_> = leased.iter().map(|entry| entry.id).collect();
    assert_eq!(leased, [foreign], "and the other way round");
    // Past its time it ends, whoever leases it.
    tokio::time::advance(Duration::from_secs(24 * 60 * 60)).await;
    store.lease(want()).await.unwrap();
    let entry = found(&other, foreign).await;
    assert_eq!(entry.status, Status::Expired);
    assert_eq!(entry.history.len(), 2);
}
