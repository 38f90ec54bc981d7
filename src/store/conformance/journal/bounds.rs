use tokio::task::JoinSet;

use super::{Case, dedup};
use crate::store::conformance::Backend;
use crate::store::journal::{
    Enqueued, Entry, EntryCommand, Journal, NewEntry, QueueBounds, Settlement, Status,
};

impl<B: Backend<Store: Journal>> Case<'_, B> {
    fn bounded(&self, owner: &str, in_all: u32, per_owner: u32) -> NewEntry {
        NewEntry {
            owner: owner.to_owned(),
            bounds: Some(QueueBounds { in_all, per_owner }),
            ..self.entry()
        }
    }

    /// Enqueues so many entries at once, through two handles, and returns how many were taken.
    async fn taken(&self, entries: impl IntoIterator<Item = NewEntry>) -> usize {
        let mut tasks = JoinSet::new();
        for (n, entry) in entries.into_iter().enumerate() {
            let store = if n % 2 == 0 { &self.store } else { &self.other };
            let store = store.clone();
            tasks.spawn(async move { store.enqueue(entry).await.expect("enqueue") });
        }
        let mut taken = 0;
        while let Some(enqueued) = tasks.join_next().await {
            match enqueued.expect("a task") {
                Enqueued::New(_) => taken += 1,
                Enqueued::Full => {}
                other => panic!("it is new, but is {other:?}"),
            }
        }
        taken
    }

    /// J-18: of one owner, of all owners, and what was refused is not there.
    pub(super) async fn bounds_hold_for_concurrent_callers(&self) {
        let of_one = (0..20).map(|_| self.bounded("ada", 30, 7));
        assert_eq!(self.taken(of_one).await, 7, "of one owner");
        let of_many = (0..40).map(|n| self.bounded(&format!("owner {n}"), 30, 7));
        assert_eq!(self.taken(of_many).await, 23, "of all owners");
        let unbounded = (0..3).map(|_| self.entry());
        assert_eq!(
            self.taken(unbounded).await,
            3,
            "one without bounds is always taken"
        );
        let counts = self.other.counts(&self.queue).await.expect("counts");
        assert_eq!(counts.of(Status::Queued), 33);
        let none = [self.bounded("eve", 0, 1), self.bounded("eve", 1000, 0)];
        assert_eq!(self.taken(none).await, 0);
        let elsewhere = NewEntry {
            queue: format!("{}x", self.queue).into(),
            ..self.bounded("ada", 1, 1)
        };
        assert_eq!(self.taken([elsewhere]).await, 1, "another queue");
    }

    /// J-18: what waits, is processed or is past its time counts; what is over does not.
    pub(super) async fn bounds_count_what_is_not_over(&self) {
        let new = |owner| self.bounded(owner, 4, 2);
        let is_full = async |owner| {
            let enqueued = self.other.enqueue(new(owner)).await.expect("enqueue");
            enqueued == Enqueued::Full
        };
        let keyed = NewEntry {
            dedup: dedup(1, 1),
            ..new("ada")
        };
        let first = self.put(keyed.clone()).await;
        let second = self.put(new("ada")).await;
        assert!(is_full("ada").await, "two wait");
        // Neither a repeat nor a duplicate needs room, and another operation is told so.
        let again = self.store.enqueue(keyed.clone()).await.expect("enqueue");
        assert!(matches!(again, Enqueued::Existing(entry) if entry.id == first));
        let other = |fingerprint| NewEntry {
            dedup: dedup(1, fingerprint),
            ..new("ada")
        };
        let found = self.store.enqueue(other(1)).await.expect("enqueue");
        assert!(matches!(found, Enqueued::Existing(entry) if entry.id == first));
        let found = self.store.enqueue(other(2)).await.expect("enqueue");
        assert_eq!(found, Enqueued::Mismatch);

        let leased = self.lease_one().await;
        assert!(is_full("ada").await, "one is processed");
        self.settle(&leased, Settlement::retry("busy", self.unit))
            .await;
        assert!(is_full("ada").await, "it waits again");
        self.command(second, self.cancel(), Ok(Status::Cancelled))
            .await;
        let third = self.put(new("ada")).await;
        assert!(is_full("ada").await, "the third took the place");
        let leased = self.lease_one().await;
        assert_eq!(leased.id, third);
        self.fail(&leased).await;
        let redrive = EntryCommand::Redrive(self.unit * super::TTL);
        self.command(third, redrive, Ok(Status::Queued)).await;
        assert!(is_full("ada").await, "a redriven one counts");
        let leased = self.lease_one().await;
        self.fail(&leased).await;
        self.command(third, EntryCommand::Purge, Ok(Status::Failed))
            .await;
        self.put(new("ada")).await;
        assert!(
            is_full("ada").await,
            "a letter that is removed frees nothing twice"
        );

        let brief = NewEntry {
            ttl: self.unit,
            ..new("bob")
        };
        self.put(brief).await;
        self.pass(2).await;
        self.put(new("bob")).await;
        assert!(
            is_full("bob").await,
            "one past its time waits to be settled"
        );
        assert!(is_full("eve").await, "four in all");
        let past = self.lease(9).await;
        let past = past.into_iter().find(Entry::is_past);
        let past = past.expect("an entry past its time");
        self.settle(&past, Settlement::expired(self.keep())).await;
        // An outbox is always taken, and does not count.
        let one = self.put(new("eve")).await;
        self.command(one, self.cancel(), Ok(Status::Cancelled))
            .await;
        let letter = Settlement::failed("broken", self.keep())
            .followed_by([self.bounded("eve", 0, 0), self.bounded("eve", 0, 0)]);
        let buried = self.store.bury(self.bounded("eve", 0, 0), 1, letter).await;
        assert!(matches!(buried, Ok(Enqueued::New(_))), "{buried:?}");
        self.put(new("eve")).await;
    }
}
