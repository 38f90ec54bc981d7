use super::{Case, KEEP, LEASE, TTL, dedup, ids};
use crate::store::conformance::Backend;
use crate::store::journal::{
    EntryCommand, Journal, NewEntry, Priority, Query, QueueBounds, Settlement, Status,
};

impl<B: Backend<Store: Journal>> Case<'_, B> {
    pub(super) async fn cancel_and_lease_have_one_winner(&self) {
        for _ in 0..20 {
            let id = self.put(self.entry()).await;
            let (store, request) = (self.store.clone(), self.request("", 1));
            let lease = tokio::spawn(async move { store.lease(request).await.expect("lease") });
            let (other, keep) = (self.other.clone(), self.keep());
            let cancel =
                tokio::spawn(async move { other.command(id, EntryCommand::Cancel(keep)).await });
            let leased = lease.await.expect("a task");
            let result = cancel
                .await
                .expect("a task")
                .expect("command")
                .expect("an entry");
            assert_ne!(leased.len() == 1, result.applied, "exactly one wins");
            let status = self.status(id).await;
            match leased.first() {
                Some(leased) => {
                    assert_eq!(status, Some(Status::Processing));
                    assert_eq!(result.entry.status, Status::Processing);
                    self.complete(leased).await;
                    self.command(id, self.cancel(), Err(Status::Completed))
                        .await;
                }
                None => {
                    assert_eq!(status, Some(Status::Cancelled));
                    self.command(id, self.cancel(), Err(Status::Cancelled))
                        .await;
                }
            }
        }
    }

    pub(super) async fn what_is_triggered_goes_first(&self) {
        let high = self.put_with(|new| new.priority = Priority::High).await;
        let late = self.put_with(|new| new.delay = self.unit * 9).await;
        self.command(late, EntryCommand::Trigger, Ok(Status::Queued))
            .await;
        let leased = self.lease_urgent().await;
        assert_eq!(ids(&leased), [late], "even while all else is held back");
        self.command(late, EntryCommand::Trigger, Err(Status::Processing))
            .await;
        assert_eq!(ids(&self.lease(9).await), [high]);
        self.complete(&leased[0]).await;
        self.command(late, EntryCommand::Trigger, Err(Status::Completed))
            .await;
    }

    pub(super) async fn what_is_past_its_time_is_only_leased_to_be_told_so(&self) {
        let short = NewEntry {
            ttl: self.unit * 2,
            priority: Priority::Low,
            delay: self.unit * 9,
            ..self.entry()
        };
        let id = self.put(short).await;
        self.pass(1).await;
        assert_eq!(self.lease(9).await, []);
        self.pass(1).await;
        assert_eq!(self.status(id).await, Some(Status::Expired));
        self.command(id, self.cancel(), Err(Status::Expired)).await;
        self.command(id, EntryCommand::Trigger, Err(Status::Expired))
            .await;
        let live = self.put_with(|new| new.priority = Priority::High).await;
        assert_eq!(
            self.store.lanes(&self.queue, None, 9).await.expect("lanes"),
            [""]
        );
        let leased = self.lease_urgent().await;
        assert_eq!(
            ids(&leased),
            [id],
            "of any priority, and while all else is held back"
        );
        assert!(leased[0].is_past());
        assert_eq!(leased[0].attempts, 0, "it was not attempted");
        self.settle(&leased[0], Settlement::expired(self.keep()))
            .await;
        assert_eq!(self.status(id).await, Some(Status::Expired));
        assert_eq!(ids(&self.lease(9).await), [live]);
    }

    pub(super) async fn a_dead_letter_is_redriven_once(&self) {
        let id = self.put_with(|new| new.ttl = self.unit * 3).await;
        self.command(id, EntryCommand::Redrive(self.unit), Err(Status::Queued))
            .await;
        let leased = self.lease_one().await;
        self.fail(&leased).await;
        self.pass(4).await;
        assert_eq!(
            self.status(id).await,
            Some(Status::Failed),
            "it can't expire any more"
        );
        let ttl = self.unit * TTL;
        self.command(id, EntryCommand::Redrive(ttl), Ok(Status::Queued))
            .await;
        self.command(id, EntryCommand::Redrive(ttl), Err(Status::Queued))
            .await;
        let again = self.lease_one().await;
        assert_eq!((again.id, again.attempts), (id, 1), "with no attempts made");
        assert!(again.lease_token > leased.lease_token);
        assert!(!again.is_past());
        let notes: Vec<_> = again.history.iter().map(|n| &*n.note).collect();
        assert_eq!(notes, ["broken", "redriven"], "history is kept");
        // The time to which it was kept as a dead letter means nothing any more.
        self.settle(&again, Settlement::retry("503", self.unit * 30))
            .await;
        self.pass(KEEP).await;
        assert_eq!(self.status(id).await, Some(Status::Queued));
    }

    pub(super) async fn only_a_dead_letter_is_purged(&self) {
        let with_key = |new: &mut NewEntry| new.dedup = dedup(7, 7);
        let id = self.put_with(with_key).await;
        self.command(id, EntryCommand::Purge, Err(Status::Queued))
            .await;
        let leased = self.lease_one().await;
        self.command(id, EntryCommand::Purge, Err(Status::Processing))
            .await;
        self.fail(&leased).await;
        let done = self.put(self.entry()).await;
        let leased = self.lease_one().await;
        self.complete(&leased).await;
        self.command(done, EntryCommand::Purge, Err(Status::Completed))
            .await;

        self.command(id, EntryCommand::Purge, Ok(Status::Failed))
            .await;
        assert_eq!(self.status(id).await, None);
        let again = self.store.command(id, EntryCommand::Purge).await;
        assert_eq!(again.expect("command"), None);
        let left = self.list(Query::new(self.queue.clone(), 9)).await;
        assert_eq!(ids(&left), [done]);
        let counts = self.other.counts(&self.queue).await.expect("counts");
        assert_eq!(counts.of(Status::Failed), 0);
        // Neither its key nor its id is taken any more.
        self.put_with(with_key).await;
        self.put_with(|new| new.id = id).await;
    }

    /// what runs is left to end, and then goes with the rest.
    pub(super) async fn an_owner_is_erased_whatever_the_states(&self) {
        let keep = self.keep();
        let of = async |owner: &str, lane: &str| {
            let (owner, lane) = (owner.to_owned(), lane.to_owned());
            let new = NewEntry {
                owner,
                lane,
                ..self.entry()
            };
            self.put(new).await
        };
        let erase = async |owner: &str, limit: u32| {
            let erased = self.store.erase(&self.queue, owner, limit).await;
            let erased = erased.expect("erase");
            (erased.removed, erased.left)
        };
        let bounds = Some(QueueBounds {
            in_all: 99,
            per_owner: 1,
        });
        let with_key = || NewEntry {
            owner: "ada".to_owned(),
            dedup: dedup(1, 1),
            bounds,
            ..self.entry()
        };
        for end in [
            Settlement::failed("", keep),
            Settlement::completed("", keep),
        ] {
            of("ada", "").await;
            let leased = self.lease_one().await;
            self.settle(&leased, end).await;
        }
        let cancelled = of("ada", "").await;
        self.command(cancelled, self.cancel(), Ok(Status::Cancelled))
            .await;
        of("ada", "lapsed").await;
        let lapses = self.store.lease(self.request("lapsed", 1)).await;
        assert_eq!(lapses.expect("lease").len(), 1);
        let past = NewEntry {
            owner: "ada".to_owned(),
            lane: "past".to_owned(),
            ttl: self.unit,
            ..self.entry()
        };
        self.put(past).await;
        self.pass(LEASE).await;
        of("ada", "").await;
        let leased = self.lease_one().await;
        let queued = self.put(with_key()).await;
        let others = [of("bob", "").await, of("", "").await];

        assert_eq!(erase("", 9).await, (0, 0), "no owner");
        assert_eq!(erase("eve", 9).await, (0, 0));
        assert_eq!(erase("ada", 0).await, (0, 0));
        assert_eq!(erase("ada", 2).await, (2, 2));
        assert_eq!(erase("ada", 9).await, (4, 1));
        assert_eq!(erase("ada", 9).await, (0, 1), "one is leased");
        assert_eq!(self.status(leased.id).await, Some(Status::Processing));
        assert_eq!(self.status(queued).await, None);
        // Neither its key nor its place is taken any more.
        let again = self.put(with_key()).await;
        self.fail(&leased).await;
        assert_eq!(erase("ada", 9).await, (2, 0));
        for id in [leased.id, again] {
            assert_eq!(self.status(id).await, None);
        }
        let left = self.list(Query::new(self.queue.clone(), 9)).await;
        assert_eq!(ids(&left), others);
        let counts = self.other.counts(&self.queue).await.expect("counts");
        assert_eq!(counts.by_status, [2, 0, 0, 0, 0, 0]);
        assert_eq!(ids(&self.lease(9).await), others);
    }

    /// more entries run than one call removes.
    pub(super) async fn what_runs_takes_no_place_in_an_erasure(&self) {
        let of_ada = |new: &mut NewEntry| "ada".clone_into(&mut new.owner);
        for _ in 0..3 {
            self.put_with(of_ada).await;
        }
        let leased = self.lease(9).await;
        assert_eq!(leased.len(), 3);
        for _ in 0..3 {
            self.put_with(of_ada).await;
        }
        for expected in [(2, 2), (1, 2), (0, 2)] {
            let erased = self.store.erase(&self.queue, "ada", 2).await;
            let erased = erased.expect("erase");
            assert_eq!((erased.removed, erased.left), expected);
        }
        for entry in leased {
            assert_eq!(self.status(entry.id).await, Some(Status::Processing));
        }
    }

    pub(super) async fn what_is_over_is_kept_for_its_time(&self) {
        let keep = self.keep();
        let mut over = Vec::new();
        for settle in [
            Settlement::completed("done", keep),
            Settlement::failed("broken", keep),
            Settlement::expired(keep),
        ] {
            over.push(self.put(self.entry()).await);
            let leased = self.lease_one().await;
            self.settle(&leased, settle).await;
        }
        let with_key = || NewEntry {
            dedup: dedup(1, 1),
            ..self.entry()
        };
        over.push(self.put(with_key()).await);
        let leased = self.lease_one().await;
        self.fail(&leased).await;
        over.push(self.put(self.entry()).await);
        self.command(over[4], self.cancel(), Ok(Status::Cancelled))
            .await;
        self.pass(KEEP - 1).await;
        for id in &over {
            assert!(self.status(*id).await.is_some_and(Status::is_over));
        }
        self.pass(1).await;
        for id in &over {
            assert_eq!(self.status(*id).await, None);
            let redriven = self.store.command(*id, EntryCommand::Redrive(keep)).await;
            assert_eq!(redriven.expect("command"), None);
        }
        assert_eq!(self.list(Query::new(self.queue.clone(), 9)).await, []);
        // Neither its key nor its id is taken any more.
        self.put(with_key()).await;
        self.put_with(|new| new.id = over[0]).await;
    }
}
