use super::{Case, KEEP, TTL, dedup, ids};
use crate::store::conformance::Backend;
use crate::store::journal::{
    EntryCommand, Journal, LeaseRequest, NewEntry, Priority, Query, Settlement, Status,
};

pub(super) async fn cancel_and_lease_have_one_winner<B: Backend<Store: Journal>>(
    case: &Case<'_, B>,
) {
    for _ in 0..20 {
        let id = case.put(case.entry()).await;
        let (store, want) = (case.store.clone(), case.want("", 1));
        let lease = tokio::spawn(async move { store.lease(want).await.expect("lease") });
        let (other, keep) = (case.other.clone(), case.keep());
        let cancel =
            tokio::spawn(async move { other.command(id, EntryCommand::Cancel(keep)).await });
        let leased = lease.await.expect("a task");
        let result = cancel
            .await
            .expect("a task")
            .expect("command")
            .expect("an entry");
        assert_ne!(leased.len() == 1, result.applied, "exactly one wins");
        let status = case.status(id).await;
        match leased.first() {
            Some(leased) => {
                assert_eq!(status, Some(Status::Processing));
                assert_eq!(result.entry.status, Status::Processing);
                case.settle(leased, Settlement::completed("", case.keep()))
                    .await;
                let late = case.command(id, EntryCommand::Cancel(case.keep())).await;
                assert_eq!(late, (false, Status::Completed));
            }
            None => {
                assert_eq!(status, Some(Status::Cancelled));
                let again = case.command(id, EntryCommand::Cancel(case.keep())).await;
                assert_eq!(again, (false, Status::Cancelled));
            }
        }
    }
}

pub(super) async fn what_is_triggered_goes_first<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let high = case
        .put(NewEntry {
            priority: Priority::High,
            ..case.entry()
        })
        .await;
    let late = case
        .put(NewEntry {
            delay: case.unit * 9,
            ..case.entry()
        })
        .await;
    assert_eq!(
        case.command(late, EntryCommand::Trigger).await,
        (true, Status::Queued)
    );
    let want = LeaseRequest {
        through: Priority::Urgent,
        ..case.want("", 9)
    };
    let leased = case.store.lease(want).await.expect("lease");
    assert_eq!(ids(&leased), [late], "even while all else is held back");
    assert_eq!(
        case.command(late, EntryCommand::Trigger).await,
        (false, Status::Processing)
    );
    assert_eq!(ids(&case.lease(9).await), [high]);
    case.settle(&leased[0], Settlement::completed("", case.keep()))
        .await;
    assert_eq!(
        case.command(late, EntryCommand::Trigger).await,
        (false, Status::Completed)
    );
}

pub(super) async fn what_is_past_its_time_is_only_leased_to_be_told_so<
    B: Backend<Store: Journal>,
>(
    case: &Case<'_, B>,
) {
    let short = NewEntry {
        ttl: case.unit * 2,
        priority: Priority::Low,
        delay: case.unit * 9,
        ..case.entry()
    };
    let id = case.put(short).await;
    case.pass(1).await;
    assert_eq!(case.lease(9).await, []);
    case.pass(1).await;
    assert_eq!(case.status(id).await, Some(Status::Expired));
    assert_eq!(
        case.command(id, EntryCommand::Cancel(case.keep())).await,
        (false, Status::Expired)
    );
    assert_eq!(
        case.command(id, EntryCommand::Trigger).await,
        (false, Status::Expired)
    );
    let live = case
        .put(NewEntry {
            priority: Priority::High,
            ..case.entry()
        })
        .await;
    assert_eq!(
        case.store.lanes(&case.queue, None, 9).await.expect("lanes"),
        [""]
    );
    let want = LeaseRequest {
        through: Priority::Urgent,
        ..case.want("", 9)
    };
    let leased = case.store.lease(want).await.expect("lease");
    assert_eq!(
        ids(&leased),
        [id],
        "of any priority, and while all else is held back"
    );
    assert!(leased[0].is_past());
    assert_eq!(leased[0].attempts, 0, "it was not attempted");
    case.settle(&leased[0], Settlement::expired(case.keep()))
        .await;
    assert_eq!(case.status(id).await, Some(Status::Expired));
    assert_eq!(ids(&case.lease(9).await), [live]);
}

pub(super) async fn a_dead_letter_is_redriven_once<B: Backend<Store: Journal>>(case: &Case<'_, B>) {
    let id = case
        .put(NewEntry {
            ttl: case.unit * 3,
            ..case.entry()
        })
        .await;
    assert_eq!(
        case.command(id, EntryCommand::Redrive(case.unit)).await,
        (false, Status::Queued)
    );
    let leased = case.lease_one().await;
    case.settle(&leased, Settlement::failed("broken", case.keep()))
        .await;
    case.pass(4).await;
    assert_eq!(
        case.status(id).await,
        Some(Status::Failed),
        "it can't expire any more"
    );
    let ttl = case.unit * TTL;
    assert_eq!(
        case.command(id, EntryCommand::Redrive(ttl)).await,
        (true, Status::Queued)
    );
    assert_eq!(
        case.command(id, EntryCommand::Redrive(ttl)).await,
        (false, Status::Queued)
    );
    let again = case.lease_one().await;
    assert_eq!((again.id, again.attempts), (id, 1), "with no attempts made");
    assert!(again.lease_token > leased.lease_token);
    assert!(!again.is_past());
    let notes: Vec<_> = again.history.iter().map(|n| &*n.note).collect();
    assert_eq!(notes, ["broken", "redriven"], "history is kept");
    // What is queued again is not swept when it was once to be.
    case.settle(&again, Settlement::retry("503", case.unit * 30))
        .await;
    case.pass(KEEP).await;
    assert_eq!(case.status(id).await, Some(Status::Queued));
}

pub(super) async fn what_is_over_is_kept_for_its_time<B: Backend<Store: Journal>>(
    case: &Case<'_, B>,
) {
    let keep = case.keep();
    let mut over = Vec::new();
    for settle in [
        Settlement::completed("done", keep),
        Settlement::failed("broken", keep),
        Settlement::expired(keep),
    ] {
        over.push(case.put(case.entry()).await);
        let leased = case.lease_one().await;
        case.settle(&leased, settle).await;
    }
    let with_key = || NewEntry {
        dedup: dedup(1, 1),
        ..case.entry()
    };
    over.push(case.put(with_key()).await);
    let leased = case.lease_one().await;
    case.settle(&leased, Settlement::failed("broken", keep))
        .await;
    over.push(case.put(case.entry()).await);
    case.command(over[4], EntryCommand::Cancel(keep)).await;
    case.pass(KEEP - 1).await;
    for id in &over {
        assert!(case.status(*id).await.is_some_and(Status::is_over));
    }
    case.pass(1).await;
    for id in &over {
        assert_eq!(case.status(*id).await, None);
        let redriven = case.store.command(*id, EntryCommand::Redrive(keep)).await;
        assert_eq!(redriven.expect("command"), None);
    }
    assert_eq!(case.list(Query::new(case.queue.clone(), 9)).await, []);
    // Neither its key nor its id is taken any more.
    case.put(with_key()).await;
    case.put(NewEntry {
        id: over[0],
        ..case.entry()
    })
    .await;
}
