use std::time::Duration;

use super::{Case, TTL, ids};
use crate::store::conformance::Backend;
use crate::store::{
    Ownership::{Held, Lost},
    journal::{
        EntryCommand, EntryId, Journal, LeaseRequest, LeaseToken, NewEntry, Priority, Query,
        Settlement, Status,
    },
};

impl<B: Backend<Store: Journal>> Case<'_, B> {
    pub(super) async fn lists_page_and_filter(&self) {
        let mut all = Vec::new();
        for n in 0..9 {
            let new = NewEntry {
                owner: ["ada", "bob"][n % 2].to_owned(),
                label: ["orders", "mails", "orders"][n % 3].to_owned(),
                ..self.entry()
            };
            all.push(self.put(new).await);
        }
        self.command(all[2], self.cancel(), Ok(Status::Cancelled))
            .await;
        all.push(self.put(self.entry()).await);
        let query = || Query::new(self.queue.clone(), 4);
        let (mut pages, mut after) = (Vec::new(), 0);
        loop {
            let page = self.list(Query { after, ..query() }).await;
            assert!(
                page.iter()
                    .all(|entry| entry.payload.is_empty() && entry.queue == self.queue)
            );
            let Some(last) = page.last() else { break };
            after = last.sequence;
            pages.push(ids(&page));
        }
        assert_eq!(pages, [&all[..4], &all[4..8], &all[8..]]);
        let first = self.list(query()).await[0].sequence;
        let text = |text: &str| Some(text.to_owned());
        let table: [(Query, &[usize]); 5] = [
            (
                Query {
                    owner: text("ada"),
                    ..query()
                },
                &[0, 2, 4, 6],
            ),
            (
                Query {
                    owner: text(""),
                    ..query()
                },
                &[9],
            ),
            (
                Query {
                    label: text("mails"),
                    ..query()
                },
                &[1, 4, 7],
            ),
            (
                Query {
                    status: Some(Status::Cancelled),
                    ..query()
                },
                &[2],
            ),
            (
                Query {
                    owner: text("ada"),
                    status: Some(Status::Queued),
                    label: text("orders"),
                    after: first,
                    ..query()
                },
                &[6, 8],
            ),
        ];
        for (query, expected) in table {
            let expected: Vec<_> = expected.iter().map(|n| all[*n]).collect();
            assert_eq!(ids(&self.list(query.clone()).await), expected, "{query:?}");
        }
    }

    pub(super) async fn counts_and_positions_add_up(&self) {
        let counts = async || self.other.counts(&self.queue).await.expect("counts");
        assert_eq!(counts().await, Default::default());
        let mut all = Vec::new();
        for priority in [
            Priority::Low,
            Priority::Normal,
            Priority::High,
            Priority::Normal,
        ] {
            all.push(self.put_with(|new| new.priority = priority).await);
        }
        self.put_with(|new| new.lane = "other".to_owned()).await;
        let position = async |n: usize, limit| {
            let position = self.other.position(all[n], limit).await;
            position.expect("position")
        };
        for (n, before) in [3, 1, 0].into_iter().enumerate() {
            assert_eq!(position(n, 9).await, Some(before));
        }
        assert_eq!(position(0, 2).await, Some(2), "counted that far");
        self.pass(2).await;
        let leased = self.lease_one().await;
        assert_eq!(position(2, 9).await, None, "it is not queued any more");
        assert_eq!(position(0, 9).await, Some(2));
        let now = counts().await;
        assert_eq!((now.of(Status::Queued), now.of(Status::Processing)), (4, 1));
        assert!(now.oldest.is_some_and(|age| age >= self.unit * 2));
        self.fail(&leased).await;
        self.command(all[0], self.cancel(), Ok(Status::Cancelled))
            .await;
        assert_eq!(counts().await.by_status, [3, 0, 0, 1, 0, 1]);
        self.pass(TTL).await;
        let now = counts().await;
        assert_eq!(now.by_status, [0, 0, 0, 0, 3, 0], "past their time");
        assert_eq!(now.oldest, None);
    }

    pub(super) async fn nothing_is_known_of_what_is_not_there(&self) {
        let id = EntryId::random();
        let lease_token = LeaseToken::new(1);
        let store = &self.store;
        assert_eq!(self.find(id).await, None);
        assert_eq!(self.extend(id, lease_token, self.unit).await, Lost);
        let release = Settlement::release(self.unit);
        let settled = store.settle(id, lease_token, release).await;
        assert_eq!(settled.expect("settle"), Lost);
        let result = store.command(id, EntryCommand::Trigger).await;
        assert_eq!(result.expect("command"), None);
        assert_eq!(store.position(id, 9).await.expect("position"), None);
        assert_eq!(self.lease(0).await, []);
        self.put(self.entry()).await;
        assert_eq!(self.lease(0).await, [], "none is what was asked for");
    }

    pub(super) async fn any_duration_is_taken(&self) {
        let forever = Duration::MAX;
        let id = self
            .put_with(|new| {
                new.ttl = forever;
                new.delay = Duration::ZERO;
            })
            .await;
        let request = LeaseRequest {
            lease: forever,
            ..self.request("", 1)
        };
        let leased = self.store.lease(request).await.expect("lease");
        assert_eq!(self.extend(id, leased[0].lease_token, forever).await, Held);
        self.settle(&leased[0], Settlement::retry("later", forever))
            .await;
        self.command(id, EntryCommand::Trigger, Ok(Status::Queued))
            .await;
        let leased = self.lease_one().await;
        self.settle(&leased, Settlement::failed("broken", forever))
            .await;
        self.command(id, EntryCommand::Redrive(forever), Ok(Status::Queued))
            .await;
        self.command(id, EntryCommand::Cancel(forever), Ok(Status::Cancelled))
            .await;
        self.put_with(|new| {
            new.ttl = Duration::ZERO;
            new.delay = forever;
        })
        .await;
        assert!(self.lease_one().await.is_past());
    }

    pub(super) async fn secrets_are_shared(&self) {
        let secret = self.store.secret().await.expect("secret");
        assert_eq!(self.other.secret().await.expect("secret"), secret);
        assert_ne!(secret, [0; 32]);
    }
}
