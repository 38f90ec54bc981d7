use bytes::Bytes;
use tokio::task::JoinSet;

use super::{Case, dedup, ids};
use crate::store::conformance::Backend;
use crate::store::journal::{
    Enqueued, Journal, LeaseToken, NewEntry, Priority, Settlement, Status,
};
use crate::store::{Fingerprint, RecordKey};

impl<B: Backend<Store: Journal>> Case<'_, B> {
    pub(super) async fn what_is_queued_comes_back_whole(&self) {
        let payload: Bytes = (0..=255).cycle().take(100_000).collect::<Vec<u8>>().into();
        let new = NewEntry {
            lane: "https://shop.example:8443".to_owned(),
            owner: "tenant/é'\"%".to_owned(),
            label: "POST /orders".to_owned(),
            reason: Some("the shop's closed".to_owned()),
            priority: Priority::High,
            delay: self.unit,
            payload: payload.clone(),
            ..self.entry()
        };
        let id = self.put(new.clone()).await;
        let found = self.find(id).await.expect("an entry");
        assert_eq!(found.payload, payload);
        let text = [&found.queue, &found.lane, &found.owner, &found.label];
        assert_eq!(text, [&self.queue, &new.lane, &new.owner, &new.label]);
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
        assert_eq!(found.reason, new.reason);
        assert!(found.history.is_empty());
        self.pass(1).await;
        let leased = self.store.lease(self.request(&new.lane, 5)).await;
        let leased = leased.expect("lease");
        assert_eq!(ids(&leased), [id]);
        assert_eq!((&leased[0].payload, leased[0].attempts), (&payload, 1));
        assert_eq!(
            (leased[0].status, leased[0].is_past()),
            (Status::Processing, false)
        );
        self.settle(
            &leased[0],
            Settlement::completed(payload.clone(), self.keep()),
        )
        .await;
        let found = self.find(id).await.expect("an entry");
        assert_eq!(found.result.as_ref(), Some(&payload));
        let notes: Vec<_> = found.history.iter().map(|n| (n.at, &*n.note)).collect();
        assert_eq!(notes, [(found.changed_at, "completed")]);
    }

    pub(super) async fn enqueuing_can_be_repeated(&self) {
        let new = self.entry();
        let id = self.put(new.clone()).await;
        let again = self.other.enqueue(new).await.expect("enqueue");
        assert!(matches!(again, Enqueued::Existing(entry) if entry.id == id));
        assert_eq!(ids(&self.lease(5).await), [id]);
    }

    pub(super) async fn the_same_operation_is_queued_once(&self) {
        let with = |key, fingerprint| NewEntry {
            dedup: dedup(key, fingerprint),
            ..self.entry()
        };
        let mut tasks = JoinSet::new();
        for n in 0..16 {
            let store = if n % 2 == 0 { &self.store } else { &self.other };
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
                other => panic!("the fingerprint is the same: {other:?}"),
            });
        }
        assert_eq!(new, 1, "one is new");
        assert!(
            found.iter().all(|id| *id == found[0]),
            "and all are that one"
        );
        let enqueue = async |entry| self.store.enqueue(entry).await.expect("enqueue");
        assert_eq!(enqueue(with(1, 2)).await, Enqueued::Mismatch);
        assert!(matches!(enqueue(with(2, 2)).await, Enqueued::New(_)));
        let elsewhere = NewEntry {
            queue: format!("{}x", self.queue).into(),
            ..with(1, 2)
        };
        assert!(
            matches!(enqueue(elsewhere).await, Enqueued::New(_)),
            "another queue"
        );
        // In any state but cancelled and expired.
        let entry = self.lease_one().await;
        let find = async |key| {
            let key = RecordKey::new([key; 32]);
            let found = self.other.find_duplicate(&self.queue, key).await;
            found.expect("find_duplicate")
        };
        let found = find(1).await.expect("a duplicate");
        assert_eq!(
            (found.entry.id, found.entry.status),
            (entry.id, entry.status)
        );
        assert_eq!(found.fingerprint, Fingerprint::new([1; 32]));
        assert!(found.entry.payload.is_empty());
        assert_eq!(find(3).await, None);
        assert!(matches!(enqueue(with(1, 1)).await, Enqueued::Existing(e) if e.id == entry.id));
        self.fail(&entry).await;
        let existing = enqueue(with(1, 1)).await;
        assert!(
            matches!(&existing, Enqueued::Existing(e) if e.id == entry.id && e.status == Status::Failed),
            "{existing:?}"
        );
    }

    pub(super) async fn what_was_called_off_frees_its_key(&self) {
        let with = |key| NewEntry {
            dedup: dedup(key, 1),
            ttl: self.unit,
            ..self.entry()
        };
        let first = self.put(with(1)).await;
        self.command(first, self.cancel(), Ok(Status::Cancelled))
            .await;
        let second = self.put(with(1)).await;
        self.pass(1).await;
        assert_eq!(self.status(second).await, Some(Status::Expired));
        let third = self.put(with(1)).await;
        let again = self.store.enqueue(with(1)).await.expect("enqueue");
        assert!(matches!(again, Enqueued::Existing(entry) if entry.id == third));
    }

    pub(super) async fn many_are_queued_at_once(&self) {
        let known = self.put(self.entry()).await;
        let keyed = |fingerprint| NewEntry {
            dedup: dedup(1, fingerprint),
            ..self.entry()
        };
        let mut entries: Vec<_> = (0..2100).map(|_| self.entry()).collect();
        (entries[0].id, entries[5], entries[1200], entries[1201]) =
            (known, keyed(1), keyed(1), keyed(2));
        let all: Vec<_> = entries.iter().map(|new| new.id).collect();
        let enqueued = self
            .store
            .enqueue_many(entries)
            .await
            .expect("enqueue_many");
        assert_eq!(enqueued.len(), all.len());
        for (n, enqueued) in enqueued.into_iter().enumerate() {
            match (n, enqueued) {
                (0, Enqueued::Existing(entry)) => assert_eq!(entry.id, known),
                (1200, Enqueued::Existing(entry)) => assert_eq!(entry.id, all[5]),
                (1201, Enqueued::Mismatch) => {}
                (_, Enqueued::New(entry)) => assert_eq!(entry.id, all[n]),
                (n, other) => panic!("{n} is {other:?}"),
            }
        }
        let counts = self.other.counts(&self.queue).await.expect("counts");
        assert_eq!(counts.of(Status::Queued), 2098);
    }
}
