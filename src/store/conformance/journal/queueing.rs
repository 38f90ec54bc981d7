use bytes::Bytes;
use tokio::task::JoinSet;

use super::{Case, dedup, ids};
use crate::store::conformance::Backend;
use crate::store::journal::{
    Enqueued, EntryCommand, Journal, LeaseToken, NewEntry, Priority, Settlement, Status,
};

pub(super) async fn what_is_queued_comes_back_whole<B: Backend<Store: Journal>>(
    case: &Case<'_, B>,
) {
    let payload: Bytes = (0..=255).cycle().take(100_000).collect::<Vec<u8>>().into();
    let new = NewEntry {
        lane: "https://shop.example:8443".to_owned(),
        owner: "tenant/é'\"%".to_owned(),
        label: "POST /orders".to_owned(),
        priority: Priority::High,
        delay: case.unit,
        payload: payload.clone(),
        ..case.entry()
    };
    let id = case.put(new.clone()).await;
    let found = case.find(id).await.expect("an entry");
    assert_eq!(found.payload, payload);
    let text = [&found.queue, &found.lane, &found.owner, &found.label];
    assert_eq!(text, [&case.queue, &new.lane, &new.owner, &new.label]);
    assert_eq!(
        (found.status, found.priority),
        (Status::Queued, Priority::High)
    );
    assert_eq!(
        (found.attempts, found.lease_token, &found.result),
        (0, LeaseToken::new(0), &None)
    );
    assert_eq!(found.due_at, found.queued_at.after(new.delay));
    assert_eq!(found.expires_at, found.queued_at.after(new.ttl));
    assert!(found.history.is_empty());
    case.pass(1).await;
    let leased = case
        .store
        .lease(case.want(&new.lane, 5))
        .await
        .expect("lease");
    assert_eq!(ids(&leased), [id]);
    assert_eq!((&leased[0].payload, leased[0].attempts), (&payload, 1));
    assert_eq!(
        (leased[0].status, leased[0].is_past()),
        (Status::Processing, false)
    );
    case.settle(
        &leased[0],
        Settlement::completed(payload.clone(), case.keep()),
    )
    .await;
    let found = case.find(id).await.expect("an entry");
    assert_eq!(
        (found.result.as_ref(), &found.payload),
        (Some(&payload), &payload)
    );
    let notes: Vec<_> = found.history.iter().map(|n| (n.at, &*n.note)).collect();
    assert_eq!(notes, [(found.changed_at, "completed")]);
}

pub(super) async fn enqueuing_can_be_repeated<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let new = case.entry();
    let id = case.put(new.clone()).await;
    let again = case.other.enqueue(new).await.expect("enqueue");
    assert!(matches!(again, Enqueued::Existing(entry) if entry.id == id));
    assert_eq!(ids(&case.lease(5).await), [id]);
}

pub(super) async fn the_same_operation_is_queued_once<B: Backend<Store: Journal>>(
    case: &Case<'_, B>,
) {
    let with = |key, fingerprint| NewEntry {
        dedup: dedup(key, fingerprint),
        ..case.entry()
    };
    let mut tasks = JoinSet::new();
    for n in 0..16 {
        let store = if n % 2 == 0 { &case.store } else { &case.other };
        let (store, new) = (store.clone(), with(1, 1));
        tasks.spawn(async move { store.enqueue(new).await.expect("enqueue") });
    }
    let mut found = Vec::new();
    let mut new = 0;
    while let Some(enqueued) = tasks.join_next().await {
        found.push(match enqueued.expect("a task") {
            Enqueued::New(entry) => {
                new += 1;
                entry.id
            }
            Enqueued::Existing(entry) => entry.id,
            Enqueued::Mismatch => panic!("the fingerprint is the same"),
        });
    }
    assert_eq!(new, 1, "one is new");
    assert!(
        found.iter().all(|id| *id == found[0]),
        "and all are that one"
    );
    let enqueue = async |entry| case.store.enqueue(entry).await.expect("enqueue");
    assert_eq!(enqueue(with(1, 2)).await, Enqueued::Mismatch);
    assert!(matches!(enqueue(with(2, 2)).await, Enqueued::New(_)));
    let elsewhere = NewEntry {
        queue: format!("{}x", case.queue).into(),
        ..with(1, 2)
    };
    assert!(
        matches!(enqueue(elsewhere).await, Enqueued::New(_)),
        "another queue"
    );
    // In whatever state it is, but called off.
    let entry = case.lease_one().await;
    assert!(matches!(enqueue(with(1, 1)).await, Enqueued::Existing(e) if e.id == entry.id));
    case.settle(&entry, Settlement::failed("broken", case.keep()))
        .await;
    let existing = enqueue(with(1, 1)).await;
    assert!(
        matches!(&existing, Enqueued::Existing(e) if e.id == entry.id && e.status == Status::Failed),
        "{existing:?}"
    );
}

pub(super) async fn what_was_called_off_frees_its_key<B: Backend<Store: Journal>>(
    case: &Case<'_, B>,
) {
    let with = |key| NewEntry {
        dedup: dedup(key, 1),
        ttl: case.unit,
        ..case.entry()
    };
    let first = case.put(with(1)).await;
    assert_eq!(
        case.command(first, EntryCommand::Cancel(case.keep())).await,
        (true, Status::Cancelled)
    );
    let second = case.put(with(1)).await;
    case.pass(1).await;
    assert_eq!(case.status(second).await, Some(Status::Expired));
    let third = case.put(with(1)).await;
    let again = case.store.enqueue(with(1)).await.expect("enqueue");
    assert!(matches!(again, Enqueued::Existing(entry) if entry.id == third));
}
