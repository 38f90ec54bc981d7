use std::time::Duration;

use super::{Case, TTL, ids};
use crate::store::conformance::Backend;
use crate::store::{
    Ownership::{Held, Lost},
    journal::{
        Entry, EntryCommand, EntryId, Journal, LeaseRequest, LeaseToken, NewEntry, Priority, Query,
        Settlement, Status,
    },
};

pub(super) async fn lists_page_and_filter<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let mut all = Vec::new();
    for n in 0..9 {
        let new = NewEntry {
            owner: ["ada", "bob"][n % 2].to_owned(),
            label: ["orders", "mails", "orders"][n % 3].to_owned(),
            ..case.entry()
        };
        all.push(case.put(new).await);
    }
    case.command(all[2], EntryCommand::Cancel(case.keep()))
        .await;
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
    let nobodys = case.put(case.entry()).await;
    let query = Query {
        owner: Some(String::new()),
        ..query()
    };
    assert_eq!(ids(&case.list(query).await), [nobodys]);
}

pub(super) async fn counts_and_positions_add_up<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
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
    case.settle(&leased, Settlement::failed("broken", case.keep()))
        .await;
    case.command(all[0], EntryCommand::Cancel(case.keep()))
        .await;
    assert_eq!(counts().await.by_status, [3, 0, 0, 1, 0, 1]);
    case.pass(TTL).await;
    let now = counts().await;
    assert_eq!(now.by_status, [0, 0, 0, 0, 3, 0], "past their time");
    assert_eq!(now.oldest, None);
}

pub(super) async fn nothing_is_known_of_what_is_not_there<B: Backend<Store: Journal>>(
    case: &Case<'_, B>,
) {
    let id = EntryId::random();
    let lease_token = LeaseToken::new(1);
    let store = &case.store;
    assert_eq!(case.find(id).await, None);
    assert_eq!(
        store
            .extend(id, lease_token, case.unit)
            .await
            .expect("extend"),
        Lost
    );
    let settled = store
        .settle(id, lease_token, Settlement::release(case.unit))
        .await;
    assert_eq!(settled.expect("settle"), Lost);
    assert_eq!(
        store
            .command(id, EntryCommand::Trigger)
            .await
            .expect("command"),
        None
    );
    assert_eq!(store.position(id, 9).await.expect("position"), None);
    assert_eq!(case.lease(0).await, []);
    case.put(case.entry()).await;
    assert_eq!(case.lease(0).await, [], "none is what was asked for");
}

pub(super) async fn any_duration_is_taken<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let forever = Duration::MAX;
    let id = case
        .put(NewEntry {
            ttl: forever,
            delay: Duration::ZERO,
            ..case.entry()
        })
        .await;
    let want = LeaseRequest {
        lease: forever,
        ..case.want("", 1)
    };
    let leased = case.store.lease(want).await.expect("lease");
    let extended = case.store.extend(id, leased[0].lease_token, forever).await;
    assert_eq!(extended.expect("extend"), Held);
    case.settle(&leased[0], Settlement::retry("later", forever))
        .await;
    assert_eq!(
        case.command(id, EntryCommand::Trigger).await,
        (true, Status::Queued)
    );
    let leased = case.lease_one().await;
    case.settle(&leased, Settlement::failed("broken", forever))
        .await;
    assert_eq!(
        case.command(id, EntryCommand::Redrive(forever)).await,
        (true, Status::Queued)
    );
    assert_eq!(
        case.command(id, EntryCommand::Cancel(forever)).await,
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

pub(super) async fn secrets_are_shared<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let secret = case.store.secret().await.expect("secret");
    assert_eq!(case.other.secret().await.expect("secret"), secret);
    assert_ne!(secret, [0; 32]);
}
