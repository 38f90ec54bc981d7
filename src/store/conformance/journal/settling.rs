use std::time::Duration;

use bytes::Bytes;

use super::{Case, KEEP, TTL, dedup, ids};
use crate::store::conformance::Backend;
use crate::store::{
    Ownership::Lost,
    journal::{
        Enqueued, EntryCommand, EntryId, EventKind, Journal, NewEntry, Query, Settlement,
        SettlementOutcome, Status,
    },
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

    /// Stores may remove it in the settlement.
    pub(super) async fn what_is_kept_for_no_time_is_gone_at_once(&self) {
        let with_key = || NewEntry {
            dedup: dedup(1, 1),
            ..self.entry()
        };
        let id = self.put(with_key()).await;
        let leased = self.lease_one().await;
        self.settle(&leased, Settlement::completed("done", Duration::ZERO))
            .await;
        assert_eq!(self.find(id).await, None);
        assert_eq!(self.list(Query::new(self.queue.clone(), 9)).await, []);
        let counts = self.store.counts(&self.queue).await.expect("counts");
        assert_eq!(counts.by_status, [0; 6]);
        assert_eq!(self.extend(id, leased.lease_token, self.unit).await, Lost);
        self.put(with_key()).await;
        self.put_with(|new| new.id = id).await;
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

    pub(super) async fn a_letter_and_its_outbox_are_one(&self) {
        let letter = NewEntry {
            dedup: dedup(1, 1),
            ..self.entry()
        };
        let alert = || NewEntry {
            lane: "alerts".to_owned(),
            ..self.entry()
        };
        let settlement = || {
            let failed = Settlement::failed("refused: broken pipe", self.keep());
            failed.cause("reset").followed_by([alert()])
        };
        let bury = async |new: NewEntry| {
            let buried = self.store.bury(new, 6, settlement()).await;
            buried.expect("bury")
        };
        let other = NewEntry {
            id: EntryId::random(),
            ..letter.clone()
        };
        let mismatch = NewEntry {
            id: EntryId::random(),
            dedup: dedup(1, 2),
            ..letter.clone()
        };
        let id = letter.id;
        match bury(letter.clone()).await {
            Enqueued::New(entry) => assert_eq!((entry.id, entry.status), (id, Status::Failed)),
            other => panic!("it should be new, but is {other:?}"),
        }
        for repeat in [letter, other] {
            match bury(repeat).await {
                Enqueued::Existing(entry) => assert_eq!(entry.id, id),
                other => panic!("it should be there, but is {other:?}"),
            }
        }
        assert_eq!(bury(mismatch).await, Enqueued::Mismatch);
        assert_eq!(self.lease(9).await, [], "it was never queued");
        let alerts = self.store.lease(self.request("alerts", 9)).await;
        assert_eq!(alerts.expect("lease").len(), 1, "one letter, one alert");
        let entry = self.find(id).await.expect("a letter");
        assert_eq!((entry.attempts, entry.repeats), (6, 1));
        assert_eq!(entry.cause.as_deref(), Some("reset"));
        assert_eq!(&*entry.payload, b"payload");
        let notes: Vec<_> = entry.history.iter().map(|event| &*event.note).collect();
        assert_eq!(notes, ["refused: broken pipe"]);
        let redrive = EntryCommand::Redrive(self.unit * TTL);
        self.command(id, redrive, Ok(Status::Queued)).await;
        let leased = self.lease_one().await;
        assert_eq!((leased.id, leased.attempts), (id, 1));
        self.fail(&leased).await;
        self.pass(KEEP + 1).await;
        assert_eq!(self.status(id).await, None, "it was kept for its time");
    }

    /// T-8: an entry that can't be redriven has no use for its payload.
    pub(super) async fn a_payload_goes_with_the_last_use_for_it(&self) {
        let payload = Bytes::from(vec![7; 10_000]);
        let keep = self.keep();
        let settlements = [
            (Settlement::completed("", keep), &b""[..]),
            (Settlement::completed("", keep).remainder("GET /"), b"GET /"),
            (Settlement::expired(keep).remainder("in vain"), b"in vain"),
            (Settlement::expired(keep), b""),
            (Settlement::failed("", keep).remainder("none"), &payload),
            (Settlement::retry("", self.unit).remainder("none"), &payload),
            (Settlement::release(self.unit).remainder("none"), &payload),
        ];
        for (settlement, remainder) in settlements {
            let outcome = settlement.outcome;
            let id = self.put_with(|new| new.payload = payload.clone()).await;
            let leased = self.lease_one().await;
            self.settle(&leased, settlement.clone()).await;
            // A repeat changes nothing.
            self.settle(&leased, settlement.remainder("repeat")).await;
            let found = self.find(id).await.expect("an entry");
            assert_eq!(found.payload, remainder, "{outcome:?}");
            let redrive = EntryCommand::Redrive(self.unit * TTL);
            match outcome {
                SettlementOutcome::Completed(_) | SettlementOutcome::Expired(_) => continue,
                SettlementOutcome::Failed(_) => {
                    self.command(id, redrive, Ok(Status::Queued)).await;
                }
                SettlementOutcome::Retry(_) | SettlementOutcome::Release(_) => self.pass(1).await,
            }
            let leased = self.lease_one().await;
            assert_eq!((leased.id, &leased.payload), (id, &payload));
            self.complete(&leased).await;
        }
        let id = self.put_with(|new| new.payload = payload.clone()).await;
        self.command(id, self.cancel(), Ok(Status::Cancelled)).await;
        let found = self.find(id).await.expect("an entry");
        assert_eq!(found.payload, "");
        let id = self.put_with(|new| new.ttl = self.unit).await;
        self.pass(2).await;
        let found = self.find(id).await.expect("an entry");
        assert_eq!(
            (found.status, &*found.payload),
            (Status::Expired, &b"payload"[..])
        );
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
