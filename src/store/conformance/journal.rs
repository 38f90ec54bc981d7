use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::task::JoinSet;

use super::Backend;
use crate::store::{
    Fingerprint,
    Ownership::{Held, Lost},
    RecordKey,
    journal::{
        Dedup, Enqueued, Entry, EntryId, Journal, NewEntry, Priority, Query, Settle, Status, Steer,
        Turn, Want,
    },
};

const LEASE: u32 = 5;
const KEEP: u32 = 20;
const TTL: u32 = 50;

/// Runs every case of a [`Journal`], one after the other. Queues have random names, so that the
/// journal need not be empty.
///
/// # Panics
///
/// When the store breaks the contract.
pub async fn journal<B: Backend<Store: Journal>>(backend: &B) {
    let new = async || Case {
        store: Arc::new(backend.open().await),
        other: Arc::new(backend.open().await),
        backend,
        unit: backend.unit(),
        queue: format!("q{:016x}", rand::random::<u64>()),
    };
    what_is_queued_comes_back_whole(&new().await).await;
    enqueuing_can_be_repeated(&new().await).await;
    the_same_operation_is_queued_once(&new().await).await;
    what_was_called_off_frees_its_key(&new().await).await;
    order_is_priority_then_due_then_sequence(&new().await).await;
    lanes_are_independent(&new().await).await;
    many_workers_share_without_overlap(&new().await).await;
    a_lease_runs_out_and_counts(&new().await).await;
    a_lease_that_ran_out_is_its_owners_until_taken(&new().await).await;
    a_stale_turn_changes_nothing(&new().await).await;
    a_settlement_can_be_repeated(&new().await).await;
    a_retry_waits_and_a_release_does_not_count(&new().await).await;
    an_outcome_and_its_outbox_are_one(&new().await).await;
    cancel_and_lease_have_one_winner(&new().await).await;
    what_is_triggered_goes_first(&new().await).await;
    what_is_past_its_time_is_only_leased_to_be_told_so(&new().await).await;
    a_dead_letter_is_redriven_once(&new().await).await;
    what_is_over_is_kept_for_its_time(&new().await).await;
    lists_page_and_filter(&new().await).await;
    counts_and_positions_add_up(&new().await).await;
    nothing_is_known_of_what_is_not_there(&new().await).await;
    any_duration_is_taken(&new().await).await;
    secrets_are_shared(&new().await).await;
}

struct Case<'a, B: Backend> {
    backend: &'a B,
    store: Arc<B::Store>,
    /// The same journal, through another handle.
    other: Arc<B::Store>,
    unit: Duration,
    queue: String,
}

impl<B: Backend<Store: Journal>> Case<'_, B> {
    fn entry(&self) -> NewEntry {
        NewEntry {
            ttl: self.unit * TTL,
            ..NewEntry::new(self.queue.clone(), "payload")
        }
    }

    fn keep(&self) -> Duration {
        self.unit * KEEP
    }

    async fn pass(&self, units: u32) {
        self.backend.pass(self.unit * units).await;
    }

    async fn put(&self, entry: NewEntry) -> EntryId {
        let id = entry.id;
        match self.store.enqueue(entry).await.expect("enqueue") {
            Enqueued::New(entry) if entry.id == id => id,
            other => panic!("it should be new, but is {other:?}"),
        }
    }

    fn want(&self, lane: &str, limit: u32) -> Want {
        Want::new(self.queue.clone(), lane, limit, self.unit * LEASE)
    }

    async fn lease(&self, limit: u32) -> Vec<Entry> {
        self.store.lease(self.want("", limit)).await.expect("lease")
    }

    async fn lease_one(&self) -> Entry {
        let mut leased = self.lease(1).await;
        leased.pop().expect("something to lease")
    }

    async fn settle(&self, entry: &Entry, settle: Settle) {
        let settled = self.store.settle(entry.id, entry.turn, settle).await;
        assert_eq!(settled.expect("settle"), Held);
    }

    async fn steer(&self, id: EntryId, steer: Steer) -> (bool, Status) {
        let steered = self.store.steer(id, steer).await.expect("steer");
        let steered = steered.expect("an entry");
        (steered.applied, steered.entry.status)
    }

    async fn find(&self, id: EntryId) -> Option<Entry> {
        self.other.find(id).await.expect("find")
    }

    async fn status(&self, id: EntryId) -> Option<Status> {
        self.find(id).await.map(|entry| entry.status)
    }

    async fn list(&self, query: Query) -> Vec<Entry> {
        self.other.list(query).await.expect("list")
    }
}

fn ids(entries: &[Entry]) -> Vec<EntryId> {
    entries.iter().map(|entry| entry.id).collect()
}

fn dedup(key: u8, fingerprint: u8) -> Option<Dedup> {
    Some(Dedup {
        key: RecordKey::new([key; 32]),
        fingerprint: Fingerprint::new([fingerprint; 32]),
    })
}

async fn what_is_queued_comes_back_whole<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
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
        (found.attempts, found.turn, &found.result),
        (0, Turn::new(0), &None)
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
    case.settle(&leased[0], Settle::completed(payload.clone(), case.keep()))
        .await;
    let found = case.find(id).await.expect("an entry");
    assert_eq!(
        (found.result.as_ref(), &found.payload),
        (Some(&payload), &payload)
    );
    let notes: Vec<_> = found.history.iter().map(|n| (n.at, &*n.note)).collect();
    assert_eq!(notes, [(found.changed_at, "completed")]);
}

async fn enqueuing_can_be_repeated<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let new = case.entry();
    let id = case.put(new.clone()).await;
    let again = case.other.enqueue(new).await.expect("enqueue");
    assert!(matches!(again, Enqueued::Existing(entry) if entry.id == id));
    assert_eq!(ids(&case.lease(5).await), [id]);
}

async fn the_same_operation_is_queued_once<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
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
    case.settle(&entry, Settle::failed("broken", case.keep()))
        .await;
    let existing = enqueue(with(1, 1)).await;
    assert!(
        matches!(&existing, Enqueued::Existing(e) if e.id == entry.id && e.status == Status::Failed),
        "{existing:?}"
    );
}

async fn what_was_called_off_frees_its_key<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let with = |key| NewEntry {
        dedup: dedup(key, 1),
        ttl: case.unit,
        ..case.entry()
    };
    let first = case.put(with(1)).await;
    assert_eq!(
        case.steer(first, Steer::Cancel(case.keep())).await,
        (true, Status::Cancelled)
    );
    let second = case.put(with(1)).await;
    case.pass(1).await;
    assert_eq!(case.status(second).await, Some(Status::Expired));
    let third = case.put(with(1)).await;
    let again = case.store.enqueue(with(1)).await.expect("enqueue");
    assert!(matches!(again, Enqueued::Existing(entry) if entry.id == third));
}

async fn order_is_priority_then_due_then_sequence<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let with = |priority, delay| NewEntry {
        priority,
        delay: case.unit * delay,
        ..case.entry()
    };
    let low = case.put(with(Priority::Low, 0)).await;
    let late = case.put(with(Priority::High, 2)).await;
    let first = case.put(with(Priority::Normal, 0)).await;
    let second = case.put(with(Priority::Normal, 0)).await;
    let early = case.put(with(Priority::High, 1)).await;
    let future = case.put(with(Priority::High, 10)).await;
    case.pass(2).await;
    let third = case.put(with(Priority::Normal, 0)).await;
    let order = [early, late, first, second, third, low];
    assert_eq!(ids(&case.lease(2).await), order[..2]);
    assert_eq!(ids(&case.lease(9).await), order[2..]);
    assert_eq!(case.status(future).await, Some(Status::Queued));
    case.pass(8).await;
    let want = Want {
        through: Priority::Urgent,
        ..case.want("", 9)
    };
    assert_eq!(case.store.lease(want).await.expect("lease"), []);
    let again = case.lease(9).await;
    assert_eq!(again.len(), 7, "leases ran out, and one came due");
    assert_eq!(again[2].id, future);
}

async fn lanes_are_independent<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let with = |lane: &str, delay| NewEntry {
        lane: lane.to_owned(),
        delay: case.unit * delay,
        ..case.entry()
    };
    let lanes = async |after: Option<&str>, limit| {
        let lanes = case.other.lanes(&case.queue, after, limit).await;
        lanes.expect("lanes")
    };
    assert_eq!(lanes(None, 9).await, [""; 0]);
    for lane in ["b", "", "c", "a", "b"] {
        case.put(with(lane, 0)).await;
    }
    case.put(with("d", 1)).await;
    assert_eq!(lanes(None, 9).await, ["", "a", "b", "c"]);
    assert_eq!(lanes(None, 2).await, ["", "a"]);
    assert_eq!(lanes(Some("a"), 9).await, ["b", "c"]);
    assert_eq!(lanes(Some(""), 1).await, ["a"]);
    assert_eq!(
        case.store
            .lease(case.want("b", 9))
            .await
            .expect("lease")
            .len(),
        2
    );
    assert_eq!(lanes(None, 9).await, ["", "a", "c"], "nothing is left in b");
    case.pass(LEASE).await;
    assert_eq!(
        lanes(None, 9).await,
        ["", "a", "b", "c", "d"],
        "leases ran out, d is due"
    );
}

async fn many_workers_share_without_overlap<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let mut all = Vec::new();
    for _ in 0..40 {
        all.push(case.put(case.entry()).await);
    }
    let mut tasks = JoinSet::new();
    for n in 0..8 {
        let store = if n % 2 == 0 { &case.store } else { &case.other };
        let (store, want) = (store.clone(), case.want("", 3));
        tasks.spawn(async move {
            let mut mine = Vec::new();
            loop {
                let leased = store.lease(want.clone()).await.expect("lease");
                if leased.is_empty() {
                    return mine;
                }
                mine.push(leased);
            }
        });
    }
    let mut seen = Vec::new();
    while let Some(leases) = tasks.join_next().await {
        for leased in leases.expect("a task") {
            assert!(leased.is_sorted_by_key(|entry| entry.sequence), "in order");
            seen.extend(ids(&leased));
        }
    }
    seen.sort();
    all.sort();
    assert_eq!(seen, all, "each is leased once");
}

async fn a_lease_runs_out_and_counts<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let id = case.put(case.entry()).await;
    let first = case.lease_one().await;
    case.pass(LEASE - 1).await;
    let extended = case.store.extend(id, first.turn, case.unit * LEASE).await;
    assert_eq!(extended.expect("extend"), Held);
    case.pass(LEASE - 1).await;
    assert_eq!(case.lease(1).await, [], "it was extended");
    case.pass(1).await;
    // Nobody took it, so it is still its owner's.
    let extended = case.store.extend(id, first.turn, case.unit).await;
    assert_eq!(extended.expect("extend"), Held);
    case.pass(1).await;
    assert_eq!(case.status(id).await, Some(Status::Processing));
    let second = case.lease_one().await;
    assert!(second.turn > first.turn);
    assert_eq!((first.attempts, second.attempts), (1, 2));
}

async fn a_lease_that_ran_out_is_its_owners_until_taken<B: Backend<Store: Journal>>(
    case: &Case<'_, B>,
) {
    for _ in 0..4 {
        case.put(case.entry()).await;
    }
    let leased = case.lease(4).await;
    case.pass(LEASE).await;
    assert_eq!(ids(&case.lease(1).await), [leased[0].id]);
    assert_eq!(case.status(leased[1].id).await, Some(Status::Processing));
    let extended = case
        .store
        .extend(leased[1].id, leased[1].turn, case.unit * LEASE)
        .await;
    assert_eq!(extended.expect("extend"), Held);
    case.settle(&leased[2], Settle::completed("done", case.keep()))
        .await;
    let found = case.find(leased[2].id).await.expect("an entry");
    assert_eq!(found.status, Status::Completed, "it was not too late");
    assert_eq!(found.result.as_deref(), Some(&b"done"[..]));
    assert_eq!(ids(&case.lease(9).await), [leased[3].id]);
}

async fn a_stale_turn_changes_nothing<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let id = case.put(case.entry()).await;
    let stale = case.lease_one().await.turn;
    case.pass(LEASE).await;
    let owner = case.lease_one().await;
    let extended = case.store.extend(id, stale, case.unit * TTL).await;
    assert_eq!(extended.expect("extend"), Lost);
    let follow = case.entry();
    for settle in [
        Settle::completed("late", case.keep()).followed_by([follow.clone()]),
        Settle::retry("late", Duration::ZERO),
        Settle::release(Duration::ZERO),
    ] {
        assert_eq!(
            case.store.settle(id, stale, settle).await.expect("settle"),
            Lost
        );
    }
    assert_eq!(case.status(follow.id).await, None, "nothing follows");
    let found = case.find(id).await.expect("an entry");
    assert_eq!((found.status, found.attempts), (Status::Processing, 2));
    assert!(found.history.is_empty());
    case.settle(&owner, Settle::completed("", case.keep()))
        .await;
}

async fn a_settlement_can_be_repeated<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    for settle in [
        Settle::completed("first", case.keep()),
        Settle::failed("first", case.keep()),
        Settle::expired(case.keep()),
        Settle::retry("first", case.unit * 30),
    ] {
        let id = case.put(case.entry()).await;
        let leased = case.lease_one().await;
        let follow = case.entry();
        let settle = Settle {
            outbox: vec![NewEntry {
                delay: case.unit * 40,
                ..follow.clone()
            }],
            ..settle
        };
        case.settle(&leased, settle.clone()).await;
        let before = case.find(id).await;
        case.settle(&leased, settle).await;
        case.settle(&leased, Settle::completed("second", Duration::ZERO))
            .await;
        assert_eq!(case.find(id).await, before);
        let extended = case.store.extend(id, leased.turn, case.unit).await;
        assert_eq!(extended.expect("extend"), Lost);
    }
}

async fn a_retry_waits_and_a_release_does_not_count<B: Backend<Store: Journal>>(
    case: &Case<'_, B>,
) {
    let id = case.put(case.entry()).await;
    let leased = case.lease_one().await;
    case.settle(&leased, Settle::retry("503", case.unit * 2))
        .await;
    case.pass(1).await;
    assert_eq!(case.lease(1).await, []);
    case.pass(1).await;
    let leased = case.lease_one().await;
    assert_eq!(leased.attempts, 2);
    assert_eq!(leased.history.len(), 1, "history comes with the lease");
    case.settle(&leased, Settle::release(Duration::ZERO)).await;
    let leased = case.lease_one().await;
    assert_eq!(leased.attempts, 2, "a release does not count");
    case.settle(&leased, Settle::retry("reset by peer", case.unit * TTL * 2))
        .await;
    let found = case.find(id).await.expect("an entry");
    assert_eq!(found.due_at, found.expires_at, "not beyond its time");
    let notes: Vec<_> = found.history.iter().map(|n| &*n.note).collect();
    assert_eq!(notes, ["503", "reset by peer"]);
    assert!(found.history.is_sorted_by_key(|n| n.at));
}

async fn an_outcome_and_its_outbox_are_one<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    case.put(case.entry()).await;
    let leased = case.lease_one().await;
    let callback = NewEntry {
        queue: format!("{}-callbacks", case.queue).into(),
        lane: "shop.example".to_owned(),
        payload: "done".into(),
        dedup: dedup(9, 9),
        ..case.entry()
    };
    let alert = NewEntry {
        delay: case.unit,
        ..case.entry()
    };
    let follows = [callback.clone(), alert.clone()];
    case.settle(
        &leased,
        Settle::failed("broken", case.keep()).followed_by(follows),
    )
    .await;
    let found = case.find(callback.id).await.expect("a callback");
    assert_eq!(
        (found.status, &*found.payload),
        (Status::Queued, &b"done"[..])
    );
    assert_eq!(found.lane, "shop.example");
    assert_eq!(case.lease(9).await, [], "not due");
    case.pass(1).await;
    assert_eq!(ids(&case.lease(9).await), [alert.id]);
}

async fn cancel_and_lease_have_one_winner<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    for _ in 0..20 {
        let id = case.put(case.entry()).await;
        let (store, want) = (case.store.clone(), case.want("", 1));
        let lease = tokio::spawn(async move { store.lease(want).await.expect("lease") });
        let (other, keep) = (case.other.clone(), case.keep());
        let cancel = tokio::spawn(async move { other.steer(id, Steer::Cancel(keep)).await });
        let leased = lease.await.expect("a task");
        let steered = cancel
            .await
            .expect("a task")
            .expect("steer")
            .expect("an entry");
        assert_ne!(leased.len() == 1, steered.applied, "exactly one wins");
        let status = case.status(id).await;
        match leased.first() {
            Some(leased) => {
                assert_eq!(status, Some(Status::Processing));
                assert_eq!(steered.entry.status, Status::Processing);
                case.settle(leased, Settle::completed("", case.keep()))
                    .await;
                let late = case.steer(id, Steer::Cancel(case.keep())).await;
                assert_eq!(late, (false, Status::Completed));
            }
            None => {
                assert_eq!(status, Some(Status::Cancelled));
                let again = case.steer(id, Steer::Cancel(case.keep())).await;
                assert_eq!(again, (false, Status::Cancelled));
            }
        }
    }
}

async fn what_is_triggered_goes_first<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let high = case
        .put(NewEntry {
            priority: Priority::High,
            ..case.entry()
        })
        .await;
    let late = case
        .put(NewEntry {
            delay: case.unit * 9,
            ..case.entry()
        })
        .await;
    assert_eq!(
        case.steer(late, Steer::Trigger).await,
        (true, Status::Queued)
    );
    let want = Want {
        through: Priority::Urgent,
        ..case.want("", 9)
    };
    let leased = case.store.lease(want).await.expect("lease");
    assert_eq!(ids(&leased), [late], "even while all else is held back");
    assert_eq!(
        case.steer(late, Steer::Trigger).await,
        (false, Status::Processing)
    );
    assert_eq!(ids(&case.lease(9).await), [high]);
    case.settle(&leased[0], Settle::completed("", case.keep()))
        .await;
    assert_eq!(
        case.steer(late, Steer::Trigger).await,
        (false, Status::Completed)
    );
}

async fn what_is_past_its_time_is_only_leased_to_be_told_so<B: Backend<Store: Journal>>(
    case: &Case<'_, B>,
) {
    let short = NewEntry {
        ttl: case.unit * 2,
        priority: Priority::Low,
        delay: case.unit * 9,
        ..case.entry()
    };
    let id = case.put(short).await;
    case.pass(1).await;
    assert_eq!(case.lease(9).await, []);
    case.pass(1).await;
    assert_eq!(case.status(id).await, Some(Status::Expired));
    assert_eq!(
        case.steer(id, Steer::Cancel(case.keep())).await,
        (false, Status::Expired)
    );
    assert_eq!(
        case.steer(id, Steer::Trigger).await,
        (false, Status::Expired)
    );
    let live = case
        .put(NewEntry {
            priority: Priority::High,
            ..case.entry()
        })
        .await;
    assert_eq!(
        case.store.lanes(&case.queue, None, 9).await.expect("lanes"),
        [""]
    );
    let want = Want {
        through: Priority::Urgent,
        ..case.want("", 9)
    };
    let leased = case.store.lease(want).await.expect("lease");
    assert_eq!(
        ids(&leased),
        [id],
        "of any priority, and while all else is held back"
    );
    assert!(leased[0].is_past());
    assert_eq!(leased[0].attempts, 0, "it was not attempted");
    case.settle(&leased[0], Settle::expired(case.keep())).await;
    assert_eq!(case.status(id).await, Some(Status::Expired));
    assert_eq!(ids(&case.lease(9).await), [live]);
}

async fn a_dead_letter_is_redriven_once<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let id = case
        .put(NewEntry {
            ttl: case.unit * 3,
            ..case.entry()
        })
        .await;
    assert_eq!(
        case.steer(id, Steer::Redrive(case.unit)).await,
        (false, Status::Queued)
    );
    let leased = case.lease_one().await;
    case.settle(&leased, Settle::failed("broken", case.keep()))
        .await;
    case.pass(4).await;
    assert_eq!(
        case.status(id).await,
        Some(Status::Failed),
        "it can't expire any more"
    );
    let ttl = case.unit * TTL;
    assert_eq!(
        case.steer(id, Steer::Redrive(ttl)).await,
        (true, Status::Queued)
    );
    assert_eq!(
        case.steer(id, Steer::Redrive(ttl)).await,
        (false, Status::Queued)
    );
    let again = case.lease_one().await;
    assert_eq!((again.id, again.attempts), (id, 1), "with no attempts made");
    assert!(again.turn > leased.turn);
    assert!(!again.is_past());
    let notes: Vec<_> = again.history.iter().map(|n| &*n.note).collect();
    assert_eq!(notes, ["broken", "redriven"], "history is kept");
    // What is queued again is not swept when it was once to be.
    case.settle(&again, Settle::retry("503", case.unit * 30))
        .await;
    case.pass(KEEP).await;
    assert_eq!(case.status(id).await, Some(Status::Queued));
}

async fn what_is_over_is_kept_for_its_time<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let keep = case.keep();
    let mut over = Vec::new();
    for settle in [
        Settle::completed("done", keep),
        Settle::failed("broken", keep),
        Settle::expired(keep),
    ] {
        over.push(case.put(case.entry()).await);
        let leased = case.lease_one().await;
        case.settle(&leased, settle).await;
    }
    let with_key = || NewEntry {
        dedup: dedup(1, 1),
        ..case.entry()
    };
    over.push(case.put(with_key()).await);
    let leased = case.lease_one().await;
    case.settle(&leased, Settle::failed("broken", keep)).await;
    over.push(case.put(case.entry()).await);
    case.steer(over[4], Steer::Cancel(keep)).await;
    case.pass(KEEP - 1).await;
    for id in &over {
        assert!(case.status(*id).await.is_some_and(Status::is_over));
    }
    case.pass(1).await;
    for id in &over {
        assert_eq!(case.status(*id).await, None);
        let redriven = case.store.steer(*id, Steer::Redrive(keep)).await;
        assert_eq!(redriven.expect("steer"), None);
    }
    assert_eq!(case.list(Query::new(case.queue.clone(), 9)).await, []);
    // Neither its key nor its id is taken any more.
    case.put(with_key()).await;
    case.put(NewEntry {
        id: over[0],
        ..case.entry()
    })
    .await;
}

async fn lists_page_and_filter<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let mut all = Vec::new();
    for n in 0..9 {
        let new = NewEntry {
            owner: ["ada", "bob"][n % 2].to_owned(),
            label: ["orders", "mails", "orders"][n % 3].to_owned(),
            ..case.entry()
        };
        all.push(case.put(new).await);
    }
    case.steer(all[2], Steer::Cancel(case.keep())).await;
    let query = || Query::new(case.queue.clone(), 4);
    let first = case.list(query()).await;
    assert_eq!(ids(&first), all[..4]);
    assert!(
        first
            .iter()
            .all(|entry| entry.payload.is_empty() && entry.queue == case.queue)
    );
    let after = |entries: &[Entry]| entries.last().expect("a page").sequence;
    let second = case
        .list(Query {
            after: after(&first),
            ..query()
        })
        .await;
    assert_eq!(ids(&second), all[4..8]);
    let last = case
        .list(Query {
            after: after(&second),
            ..query()
        })
        .await;
    assert_eq!(ids(&last), all[8..]);
    let ada = Query {
        owner: Some("ada".to_owned()),
        ..query()
    };
    assert_eq!(
        ids(&case.list(ada.clone()).await),
        [0, 2, 4, 6].map(|n| all[n])
    );
    let mails = Query {
        label: Some("mails".to_owned()),
        ..query()
    };
    assert_eq!(ids(&case.list(mails).await), [1, 4, 7].map(|n| all[n]));
    let cancelled = Query {
        status: Some(Status::Cancelled),
        ..query()
    };
    assert_eq!(ids(&case.list(cancelled).await), [all[2]]);
    let both = Query {
        status: Some(Status::Queued),
        label: Some("orders".to_owned()),
        after: first[0].sequence,
        ..ada
    };
    assert_eq!(ids(&case.list(both).await), [6, 8].map(|n| all[n]));
}

async fn counts_and_positions_add_up<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let counts = async || case.other.counts(&case.queue).await.expect("counts");
    assert_eq!(counts().await, Default::default());
    let mut all = Vec::new();
    for priority in [
        Priority::Low,
        Priority::Normal,
        Priority::High,
        Priority::Normal,
    ] {
        all.push(
            case.put(NewEntry {
                priority,
                ..case.entry()
            })
            .await,
        );
    }
    case.put(NewEntry {
        lane: "other".to_owned(),
        ..case.entry()
    })
    .await;
    let position = async |n: usize, limit| {
        let position = case.other.position(all[n], limit).await;
        position.expect("position")
    };
    let positions = [
        position(0, 9).await,
        position(1, 9).await,
        position(2, 9).await,
    ];
    assert_eq!(positions, [Some(3), Some(1), Some(0)]);
    assert_eq!(position(0, 2).await, Some(2), "counted that far");
    case.pass(2).await;
    let leased = case.lease_one().await;
    assert_eq!(position(2, 9).await, None, "it is not queued any more");
    assert_eq!(position(0, 9).await, Some(2));
    let now = counts().await;
    assert_eq!((now.of(Status::Queued), now.of(Status::Processing)), (4, 1));
    assert!(now.oldest.is_some_and(|age| age >= case.unit * 2));
    case.settle(&leased, Settle::failed("broken", case.keep()))
        .await;
    case.steer(all[0], Steer::Cancel(case.keep())).await;
    assert_eq!(counts().await.by_status, [3, 0, 0, 1, 0, 1]);
    case.pass(TTL).await;
    let now = counts().await;
    assert_eq!(now.by_status, [0, 0, 0, 0, 3, 0], "past their time");
    assert_eq!(now.oldest, None);
}

async fn nothing_is_known_of_what_is_not_there<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let id = EntryId::random();
    let turn = Turn::new(1);
    let store = &case.store;
    assert_eq!(case.find(id).await, None);
    assert_eq!(
        store.extend(id, turn, case.unit).await.expect("extend"),
        Lost
    );
    let settled = store.settle(id, turn, Settle::release(case.unit)).await;
    assert_eq!(settled.expect("settle"), Lost);
    assert_eq!(store.steer(id, Steer::Trigger).await.expect("steer"), None);
    assert_eq!(store.position(id, 9).await.expect("position"), None);
    assert_eq!(case.lease(0).await, []);
    case.put(case.entry()).await;
    assert_eq!(case.lease(0).await, [], "none is what was asked for");
}

async fn any_duration_is_taken<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let forever = Duration::MAX;
    let id = case
        .put(NewEntry {
            ttl: forever,
            delay: Duration::ZERO,
            ..case.entry()
        })
        .await;
    let want = Want {
        lease: forever,
        ..case.want("", 1)
    };
    let leased = case.store.lease(want).await.expect("lease");
    let extended = case.store.extend(id, leased[0].turn, forever).await;
    assert_eq!(extended.expect("extend"), Held);
    case.settle(&leased[0], Settle::retry("later", forever))
        .await;
    assert_eq!(case.steer(id, Steer::Trigger).await, (true, Status::Queued));
    let leased = case.lease_one().await;
    case.settle(&leased, Settle::failed("broken", forever))
        .await;
    assert_eq!(
        case.steer(id, Steer::Redrive(forever)).await,
        (true, Status::Queued)
    );
    assert_eq!(
        case.steer(id, Steer::Cancel(forever)).await,
        (true, Status::Cancelled)
    );
    case.put(NewEntry {
        ttl: Duration::ZERO,
        delay: forever,
        ..case.entry()
    })
    .await;
    assert!(case.lease_one().await.is_past());
}

async fn secrets_are_shared<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let secret = case.store.secret().await.expect("secret");
    assert_eq!(case.other.secret().await.expect("secret"), secret);
    assert_ne!(secret, [0; 32]);
}
