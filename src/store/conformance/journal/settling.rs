use std::time::Duration;

use super::{Case, TTL, dedup, ids};
use crate::store::conformance::Backend;
use crate::store::{
    Ownership::Lost,
    journal::{EntryCommand, EventKind, Journal, NewEntry, Query, Settlement, Status},
};

impl<B: Backend<Store: Journal>> Case<'_, B> {
    pub(super) async fn a_settlement_can_be_repeated(&self) {
        for settle in [
            Settlement::completed("first", self.keep()),
            Settlement::failed("first", self.keep()),
            Settlement::expired(self.keep()),
            Settlement::retry("first", self.unit * 30),
        ] {
            let id = self.put(self.entry()).await;
            let leased = self.lease_one().await;
            let follow = self.entry();
            let settle = Settlement {
                outbox: vec![NewEntry {
                    delay: self.unit * 40,
                    ..follow.clone()
                }],
                ..settle
            };
            self.settle(&leased, settle.clone()).await;
            let before = self.find(id).await;
            self.settle(&leased, settle).await;
            self.settle(&leased, Settlement::completed("second", Duration::ZERO))
                .await;
            assert_eq!(self.find(id).await, before);
            assert_eq!(self.extend(id, leased.lease_token, self.unit).await, Lost);
        }
    }

    pub(super) async fn a_retry_waits_and_a_release_does_not_count(&self) {
        let id = self.put(self.entry()).await;
        let leased = self.lease_one().await;
        self.settle(&leased, Settlement::retry("503", self.unit * 2))
            .await;
        self.pass(1).await;
        assert_eq!(self.lease(1).await, []);
        self.pass(1).await;
        let leased = self.lease_one().await;
        assert_eq!(leased.attempts, 2);
        assert_eq!(leased.history.len(), 1, "history comes with the lease");
        self.settle(&leased, Settlement::release(Duration::ZERO))
            .await;
        let leased = self.lease_one().await;
        assert_eq!(leased.attempts, 2, "a release does not count");
        self.settle(
            &leased,
            Settlement::retry("reset by peer", self.unit * TTL * 2),
        )
        .await;
        let found = self.find(id).await.expect("an entry");
        assert_eq!(found.due_at, found.expires_at, "not beyond its time");
        let notes: Vec<_> = found.history.iter().map(|n| &*n.note).collect();
        assert_eq!(notes, ["503", "reset by peer"]);
        assert!(found.history.is_sorted_by_key(|n| n.at));
    }

    pub(super) async fn causes_and_redrives_are_counted(&self) {
        let id = self.put(self.entry()).await;
        let retry = || Settlement::retry("broken", Duration::ZERO);
        let failed = || Settlement::failed("broken", self.keep());
        // Some have an outbox, for which stores may have another statement.
        let follows = || {
            let queue = format!("{}-follows", self.queue).into();
            [NewEntry {
                queue,
                ..self.entry()
            }]
        };
        let mut before = (None, 0);
        for (settle, cause, repeats) in [
            (retry().cause("dns"), Some("dns"), 1),
            (retry().cause("dns").followed_by(follows()), Some("dns"), 2),
            (
                Settlement::release(Duration::ZERO).cause("tls"),
                Some("dns"),
                2,
            ),
            (retry().cause("dns"), Some("dns"), 3),
            (
                retry().cause("é'\"%").followed_by(follows()),
                Some("é'\"%"),
                1,
            ),
            (retry(), None, 0),
            (retry().followed_by(follows()), None, 0),
            (retry().cause(""), None, 0),
            (retry().cause("tls"), Some("tls"), 1),
            (failed().cause("tls"), Some("tls"), 2),
        ] {
            let leased = self.lease_one().await;
            assert_eq!((leased.cause.clone(), leased.repeats), before);
            self.settle(&leased, settle).await;
            before = (cause.map(str::to_owned), repeats);
            let found = self.find(id).await.expect("an entry");
            assert_eq!((found.cause, found.repeats), before);
            assert_eq!(found.redrives, 0);
        }
        for redrives in 1..=2 {
            let redrive = EntryCommand::Redrive(self.unit * TTL);
            let redriven = self.store.command(id, redrive).await.expect("command");
            let redriven = redriven.expect("an entry").entry;
            assert_eq!((redriven.redrives, redriven.repeats), (redrives, 0));
            assert_eq!(redriven.cause.as_deref(), Some("tls"), "what it died of");
            let leased = self.lease_one().await;
            self.settle(&leased, failed().cause("tls")).await;
            let listed = self.list(Query::new(self.queue.clone(), 1)).await;
            assert_eq!((listed[0].redrives, listed[0].repeats), (redrives, 1));
        }
        let found = self.find(id).await.expect("an entry");
        let events = found.history.iter().rev();
        let events: Vec<_> = events.map(|n| (n.kind, &*n.note)).take(2).collect();
        let last = (EventKind::Settlement, "broken");
        assert_eq!(events, [last, (EventKind::Command, "redriven")]);
        let id = self.put(self.entry()).await;
        let leased = self.lease_one().await;
        self.settle(&leased, failed().cause("\u{20ac}".repeat(100)))
            .await;
        let cause = self.find(id).await.expect("an entry").cause;
        assert_eq!(cause, Some("\u{20ac}".repeat(42)), "128 bytes are kept");
    }

    pub(super) async fn an_outcome_and_its_outbox_are_one(&self) {
        self.put(self.entry()).await;
        let leased = self.lease_one().await;
        let callback = NewEntry {
            queue: format!("{}-callbacks", self.queue).into(),
            lane: "shop.example".to_owned(),
            payload: "done".into(),
            dedup: dedup(9, 9),
            ..self.entry()
        };
        let alert = NewEntry {
            delay: self.unit,
            ..self.entry()
        };
        let follows = [callback.clone(), alert.clone()];
        self.settle(
            &leased,
            Settlement::failed("broken", self.keep()).followed_by(follows),
        )
        .await;
        let found = self.find(callback.id).await.expect("a callback");
        assert_eq!(
            (found.status, &*found.payload),
            (Status::Queued, &b"done"[..])
        );
        assert_eq!(found.lane, "shop.example");
        assert_eq!(self.lease(9).await, [], "not due");
        self.pass(1).await;
        assert_eq!(ids(&self.lease(9).await), [alert.id]);
    }
}
