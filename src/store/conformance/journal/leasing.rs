use std::time::Duration;

use tokio::task::JoinSet;

use super::{Case, LEASE, TTL, ids};
use crate::store::conformance::Backend;
use crate::store::{
    Ownership::{Held, Lost},
    journal::{Journal, LeaseRequest, NewEntry, Priority, Settlement, Status},
};

pub(super) async fn order_is_priority_then_due_then_sequence<B: Backend<Store: Journal>>(
    case: &Case<'_, B>,
) {
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
    let want = LeaseRequest {
        through: Priority::Urgent,
        ..case.want("", 9)
    };
    assert_eq!(case.store.lease(want).await.expect("lease"), []);
    let again = case.lease(9).await;
    assert_eq!(again.len(), 7, "leases ran out, and one came due");
    assert_eq!(again[2].id, future);
}

pub(super) async fn lanes_are_independent<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
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

pub(super) async fn many_workers_share_without_overlap<B: Backend<Store: Journal>>(
    case: &Case<'_, B>,
) {
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

pub(super) async fn a_lease_runs_out_and_counts<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let id = case.put(case.entry()).await;
    let first = case.lease_one().await;
    case.pass(LEASE - 1).await;
    let extended = case
        .store
        .extend(id, first.lease_token, case.unit * LEASE)
        .await;
    assert_eq!(extended.expect("extend"), Held);
    case.pass(LEASE - 1).await;
    assert_eq!(case.lease(1).await, [], "it was extended");
    case.pass(1).await;
    // Nobody took it, so it is still its owner's.
    let extended = case.store.extend(id, first.lease_token, case.unit).await;
    assert_eq!(extended.expect("extend"), Held);
    case.pass(1).await;
    assert_eq!(case.status(id).await, Some(Status::Processing));
    let second = case.lease_one().await;
    assert!(second.lease_token > first.lease_token);
    assert_eq!((first.attempts, second.attempts), (1, 2));
}

pub(super) async fn a_lease_that_ran_out_is_its_owners_until_taken<B: Backend<Store: Journal>>(
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
        .extend(leased[1].id, leased[1].lease_token, case.unit * LEASE)
        .await;
    assert_eq!(extended.expect("extend"), Held);
    case.settle(&leased[2], Settlement::completed("done", case.keep()))
        .await;
    let found = case.find(leased[2].id).await.expect("an entry");
    assert_eq!(found.status, Status::Completed, "it was not too late");
    assert_eq!(found.result.as_deref(), Some(&b"done"[..]));
    assert_eq!(ids(&case.lease(9).await), [leased[3].id]);
}

pub(super) async fn a_stale_turn_changes_nothing<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let id = case.put(case.entry()).await;
    let stale = case.lease_one().await.lease_token;
    case.pass(LEASE).await;
    let owner = case.lease_one().await;
    let extended = case.store.extend(id, stale, case.unit * TTL).await;
    assert_eq!(extended.expect("extend"), Lost);
    let follow = case.entry();
    for settle in [
        Settlement::completed("late", case.keep()).followed_by([follow.clone()]),
        Settlement::retry("late", Duration::ZERO),
        Settlement::release(Duration::ZERO),
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
    case.settle(&owner, Settlement::completed("", case.keep()))
        .await;
}
