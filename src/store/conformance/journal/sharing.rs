use bytes::Bytes;

use super::{Case, KEEP, TTL, ids};
use crate::store::conformance::Backend;
use crate::store::journal::{
    Enqueued, EntryCommand, Journal, NewEntry, Query, Settlement, SharedPayload, Status,
};

impl<B: Backend<Store: Journal>> Case<'_, B> {
    fn sharing(&self, own: &str, shared: &SharedPayload) -> NewEntry {
        let new = NewEntry {
            payload: own.to_owned().into(),
            ..self.entry()
        };
        new.ending_in(shared)
    }

    pub(super) async fn a_shared_end_comes_back_with_each_payload(&self) {
        let bytes: Bytes = (0..=255).cycle().take(50_000).collect::<Vec<u8>>().into();
        let shared = SharedPayload::new(bytes.clone());
        let other = SharedPayload::new(vec![b'o'; 3000]);
        let mut new: Vec<_> = ["first ", "", "third "]
            .map(|own| self.sharing(own, &shared))
            .into();
        new.extend([self.entry(), self.sharing("other ", &other)]);
        new.push(new[0].clone());
        let repeated = new.clone();
        let expected: Vec<_> = new
            .iter()
            .map(|new| (new.id, new.payload.clone()))
            .collect();
        let enqueued = self.store.enqueue_many(new).await.expect("enqueue_many");
        let is_new: Vec<_> = enqueued
            .iter()
            .map(|enqueued| matches!(enqueued, Enqueued::New(_)))
            .collect();
        assert_eq!(is_new, [true, true, true, true, true, false]);
        let again = self
            .other
            .enqueue_many(repeated)
            .await
            .expect("enqueue_many");
        let existing = |enqueued: &Enqueued| matches!(enqueued, Enqueued::Existing(_));
        assert!(again.iter().all(existing), "{again:?}");
        for (id, payload) in &expected {
            let found = self.find(*id).await.expect("an entry");
            assert!(found.payload == payload, "{:?}", found.payload.len());
        }
        let listed = self.list(Query::new(self.queue.clone(), 9)).await;
        assert!(listed.len() == 5 && listed.iter().all(|entry| entry.payload.is_empty()));
        let leased = self.lease(9).await;
        let leased: Vec<_> = leased
            .into_iter()
            .map(|entry| (entry.id, entry.payload))
            .collect();
        assert!(leased == expected[..5], "a payload differs");
    }

    /// However an entry comes and goes, the others keep what they share with it.
    pub(super) async fn a_shared_end_stays_for_those_that_need_it(&self) {
        let shared = SharedPayload::new(vec![b's'; 20_000]);
        let first = self.put(self.sharing("first ", &shared)).await;
        let leased = self.lease_one().await;
        let outbox = [
            self.sharing("outbox ", &shared),
            self.sharing("again ", &shared),
        ];
        let [follow, again] = [outbox[0].id, outbox[1].id];
        let settlement = Settlement::completed("", self.keep()).followed_by(outbox);
        self.settle(&leased, settlement).await;
        let letter = self.sharing("letter ", &shared);
        let buried = letter.id;
        let failed = Settlement::failed("broken", self.keep() * 4);
        let stored = self.store.bury(letter, 3, failed.clone()).await;
        assert!(matches!(stored.expect("bury"), Enqueued::New(_)));

        let leased = self.lease(9).await;
        assert_eq!(ids(&leased), [follow, again]);
        self.settle(&leased[0], failed).await;
        self.settle(&leased[1], Settlement::retry("", self.unit * (KEEP + 1)))
            .await;
        self.pass(KEEP + 1).await;
        // Makes a store that sweeps as it goes do so.
        self.put_with(|new| new.lane = "other".to_owned()).await;
        assert_eq!(self.status(first).await, None, "it was kept for its time");
        let leased = self.lease_one().await;
        assert_eq!((leased.id, leased.payload.len()), (again, 20_006));
        let done = Settlement::completed("", self.keep()).remainder("rest");
        self.settle(&leased, done).await;
        let found = self.find(again).await.expect("an entry");
        assert_eq!(found.payload, "rest", "nothing is added to it");
        let called_off = self.put(self.sharing("", &shared)).await;
        self.command(called_off, self.cancel(), Ok(Status::Cancelled))
            .await;
        let found = self.find(called_off).await.expect("an entry");
        assert_eq!(found.payload, "");
        self.command(buried, EntryCommand::Purge, Ok(Status::Failed))
            .await;
        self.command(
            follow,
            EntryCommand::Redrive(self.unit * TTL),
            Ok(Status::Queued),
        )
        .await;
        let leased = self.lease_one().await;
        let payload = [&b"outbox "[..], &shared.bytes()[..]].concat();
        assert!(leased.id == follow && leased.payload == payload);
        self.complete(&leased).await;
        self.pass(KEEP + 1).await;
        self.put_with(|new| new.lane = "other".to_owned()).await;

        let last = self.put(self.sharing("last ", &shared)).await;
        let found = self.find(last).await.expect("an entry");
        assert_eq!(
            found.payload.len(),
            20_005,
            "an end that went is stored anew"
        );
    }
}
