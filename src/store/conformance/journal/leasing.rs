use std::time::Duration;

use tokio::task::JoinSet;

use super::{Case, LEASE, TTL, ids};
use crate::store::conformance::Backend;
use crate::store::{
    Ownership::{Held, Lost},
    journal::{EntryCommand, Journal, LeaseRequest, NewEntry, Priority, Settlement, Status},
};

impl<B: Backend<Store: Journal>> Case<'_, B> {
    pub(super) async fn order_is_priority_then_due_then_sequence(&self) {
        let with = |priority, delay| NewEntry {
            priority,
            delay: self.unit * delay,
            ..self.entry()
        };
        let low = self.put(with(Priority::Low, 0)).await;
        let late = self.put(with(Priority::High, 2)).await;
        let first = self.put(with(Priority::Normal, 0)).await;
        let second = self.put(with(Priority::Normal, 0)).await;
        let early = self.put(with(Priority::High, 1)).await;
        let future = self.put(with(Priority::High, 10)).await;
        self.pass(2).await;
        let third = self.put(with(Priority::Normal, 0)).await;
        let order = [early, late, first, second, third, low];
        assert_eq!(ids(&self.lease(2).await), order[..2]);
        assert_eq!(ids(&self.lease(9).await), order[2..]);
        assert_eq!(self.status(future).await, Some(Status::Queued));
        self.pass(8).await;
        assert_eq!(self.lease_urgent().await, []);
        let again = self.lease(9).await;
        assert_eq!(again.len(), 7, "leases ran out, and one came due");
        assert_eq!(again[2].id, future);
    }

    pub(super) async fn a_lane_in_order_waits_for_its_first(&self) {
        let request = || LeaseRequest {
            in_order: true,
            ..self.request("", 9)
        };
        let lease = async || self.store.lease(request()).await.expect("lease");
        let again = |settlement| Settlement {
            keeps_place: true,
            ..settlement
        };
        let first = self.put(self.entry()).await;
        let second = self.put(self.entry()).await;
        let third = self.put(self.entry()).await;
        let leased = lease().await;
        assert_eq!(ids(&leased), [first], "one at a time");
        assert_eq!(lease().await, [], "it is leased");
        let retry = again(Settlement::retry("timeout", self.unit * 2));
        self.settle(&leased[0], retry).await;
        assert_eq!(lease().await, [], "the first waits");
        let position = self.store.position(second, 9).await;
        assert_eq!(position.expect("position"), Some(1));
        self.pass(3).await;
        let leased = lease().await;
        assert_eq!((ids(&leased), leased[0].attempts), (vec![first], 2));
        let release = again(Settlement::release(self.unit * 4));
        self.settle(&leased[0], release).await;
        assert_eq!(lease().await, [], "a release holds the lane as well");

        // More urgent entries come first, and a triggered one does not wait.
        let urgent = self.put_with(|new| new.priority = Priority::High).await;
        let leased = lease().await;
        assert_eq!(ids(&leased), [urgent]);
        self.complete(&leased[0]).await;
        assert_eq!(lease().await, []);
        self.command(first, EntryCommand::Trigger, Ok(Status::Queued))
            .await;
        let leased = lease().await;
        assert_eq!((ids(&leased), leased[0].attempts), (vec![first], 2));

        // A lease that ran out holds nobody up, and comes before what came later.
        self.pass(LEASE + 1).await;
        let leased = lease().await;
        assert_eq!(ids(&leased), [first]);
        self.fail(&leased[0]).await;
        let leased = lease().await;
        assert_eq!(ids(&leased), [second]);
        self.complete(&leased[0]).await;
        self.command(
            first,
            EntryCommand::Redrive(self.unit * TTL),
            Ok(Status::Queued),
        )
        .await;
        for _ in 0..2 {
            let leased = lease().await;
            assert!(leased.len() == 1 && [first, third].contains(&leased[0].id));
            self.complete(&leased[0]).await;
        }
        assert_eq!(lease().await, []);

        // Of many workers that ask at the same time, one gets the first entry.
        let head = self.put(self.entry()).await;
        self.put(self.entry()).await;
        let mut asking = JoinSet::new();
        for n in 0..8 {
            let store = if n % 2 == 0 { &self.store } else { &self.other };
            let (store, request) = (store.clone(), request());
            asking.spawn(async move { store.lease(request).await.expect("lease") });
        }
        let leased = asking.join_all().await.concat();
        assert_eq!(ids(&leased), [head]);
    }

    pub(super) async fn a_lane_in_order_waits_for_one_past_its_time(&self) {
        let request = || LeaseRequest {
            in_order: true,
            ..self.request("", 9)
        };
        let lease = async || self.store.lease(request()).await.expect("lease");
        let first = self.put_with(|new| new.ttl = self.unit * 2).await;
        let second = self.put(self.entry()).await;
        let leased = lease().await;
        assert_eq!(ids(&leased), [first]);
        self.pass(LEASE - 1).await;
        let lease_token = leased[0].lease_token;
        let extended = self.extend(first, lease_token, self.unit * LEASE).await;
        assert_eq!(extended, Held);
        assert_eq!(lease().await, [], "it is past its time, and leased");
        self.pass(2).await;
        assert_eq!(lease().await, [], "its lease was extended");
        self.complete(&leased[0]).await;
        assert_eq!(ids(&lease().await), [second]);
    }

    pub(super) async fn lanes_are_independent(&self) {
        let with = |lane: &str, delay| NewEntry {
            lane: lane.to_owned(),
            delay: self.unit * delay,
            ..self.entry()
        };
        let lanes = async |after: Option<&str>, limit| {
            let lanes = self.other.lanes(&self.queue, after, limit).await;
            lanes.expect("lanes")
        };
        assert_eq!(lanes(None, 9).await, [""; 0]);
        for lane in ["b", "", "c", "a", "b"] {
            self.put(with(lane, 0)).await;
        }
        self.put(with("d", 1)).await;
        assert_eq!(lanes(None, 9).await, ["", "a", "b", "c"]);
        assert_eq!(lanes(None, 2).await, ["", "a"]);
        assert_eq!(lanes(Some("a"), 9).await, ["b", "c"]);
        assert_eq!(lanes(Some(""), 1).await, ["a"]);
        let leased = self.store.lease(self.request("b", 9)).await;
        assert_eq!(leased.expect("lease").len(), 2);
        assert_eq!(lanes(None, 9).await, ["", "a", "c"], "nothing is left in b");
        self.pass(LEASE).await;
        assert_eq!(
            lanes(None, 9).await,
            ["", "a", "b", "c", "d"],
            "leases ran out, d is due"
        );
    }

    pub(super) async fn many_workers_share_without_overlap(&self) {
        let mut all = Vec::new();
        for _ in 0..40 {
            all.push(self.put(self.entry()).await);
        }
        let mut tasks = JoinSet::new();
        for n in 0..8 {
            let store = if n % 2 == 0 { &self.store } else { &self.other };
            let (store, request) = (store.clone(), self.request("", 3));
            tasks.spawn(async move {
                let mut mine = Vec::new();
                loop {
                    let leased = store.lease(request.clone()).await.expect("lease");
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

    pub(super) async fn a_lease_runs_out_and_counts(&self) {
        let id = self.put(self.entry()).await;
        let first = self.lease_one().await;
        self.pass(LEASE - 1).await;
        assert_eq!(
            self.extend(id, first.lease_token, self.unit * LEASE).await,
            Held
        );
        self.pass(LEASE - 1).await;
        assert_eq!(self.lease(1).await, [], "it was extended");
        self.pass(1).await;
        // It was not leased again, so it is still its owner's.
        assert_eq!(self.extend(id, first.lease_token, self.unit).await, Held);
        self.pass(1).await;
        assert_eq!(self.status(id).await, Some(Status::Processing));
        let second = self.lease_one().await;
        assert!(second.lease_token > first.lease_token);
        assert_eq!((first.attempts, second.attempts), (1, 2));
    }

    pub(super) async fn a_lease_that_ran_out_is_its_owners_until_taken(&self) {
        for _ in 0..4 {
            self.put(self.entry()).await;
        }
        let leased = self.lease(4).await;
        self.pass(LEASE).await;
        assert_eq!(ids(&self.lease(1).await), [leased[0].id]);
        assert_eq!(self.status(leased[1].id).await, Some(Status::Processing));
        assert_eq!(
            self.extend(leased[1].id, leased[1].lease_token, self.unit * LEASE)
                .await,
            Held
        );
        self.settle(&leased[2], Settlement::completed("done", self.keep()))
            .await;
        let found = self.find(leased[2].id).await.expect("an entry");
        assert_eq!(found.status, Status::Completed, "it was not too late");
        assert_eq!(found.result.as_deref(), Some(&b"done"[..]));
        assert_eq!(ids(&self.lease(9).await), [leased[3].id]);
    }

    pub(super) async fn a_stale_lease_changes_nothing(&self) {
        let id = self.put(self.entry()).await;
        let stale = self.lease_one().await.lease_token;
        self.pass(LEASE).await;
        let owner = self.lease_one().await;
        assert_eq!(self.extend(id, stale, self.unit * TTL).await, Lost);
        let follow = self.entry();
        for settle in [
            Settlement::completed("late", self.keep()).followed_by([follow.clone()]),
            Settlement::retry("late", Duration::ZERO),
            Settlement::release(Duration::ZERO),
        ] {
            assert_eq!(
                self.store.settle(id, stale, settle).await.expect("settle"),
                Lost
            );
        }
        assert_eq!(self.status(follow.id).await, None, "nothing follows");
        let found = self.find(id).await.expect("an entry");
        assert_eq!((found.status, found.attempts), (Status::Processing, 2));
        assert!(found.history.is_empty());
        self.complete(&owner).await;
    }
}
