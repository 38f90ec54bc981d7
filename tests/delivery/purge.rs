//! Letters that an operator removes.

use std::time::{Duration, UNIX_EPOCH};

use tower_reprise::{
    delivery::dead_letter::{DeadLetters, Purged, Selection},
    store::{
        MemoryStore,
        journal::{EntryId, Journal, NewEntry, Settlement, Status},
    },
};

const HOUR: Duration = Duration::from_secs(3600);

/// Dead-letters an event of an owner.
async fn letter(journal: &MemoryStore, owner: &str, cause: &'static str) -> EntryId {
    let new = NewEntry {
        owner: owner.to_owned(),
        ..NewEntry::new("jobs", "")
    };
    let id = new.id;
    let failed = Settlement::failed(cause, HOUR * 24).cause(cause);
    journal.bury(new, 1, failed).await.unwrap();
    id
}

#[tokio::test(start_paused = true)]
async fn q_7_a_purge_removes_a_dead_letter_and_nothing_else() {
    let journal = MemoryStore::new();
    let letters = DeadLetters::new(journal.clone());
    let id = letter(&journal, "", "gone").await;
    assert_eq!(letters.purge(id).await.unwrap(), Purged::Removed);
    assert!(journal.find(id).await.unwrap().is_none());
    assert_eq!(letters.purge(id).await.unwrap(), Purged::Unknown);

    let redriven = letter(&journal, "", "gone").await;
    letters.redrive(redriven).await.unwrap();
    assert_eq!(
        letters.purge(redriven).await.unwrap(),
        Purged::NotDead(Status::Queued)
    );
    assert!(journal.find(redriven).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn q_7_many_are_purged_by_filter_or_only_counted() {
    let journal = MemoryStore::new();
    let letters = DeadLetters::new(journal.clone());
    let early = letter(&journal, "ada", "gone").await;
    tokio::time::sleep(HOUR).await;
    let failed_at = journal.find(early).await.unwrap().unwrap().changed_at;
    let since = UNIX_EPOCH + Duration::from_micros(failed_at.as_micros()) + HOUR / 2;
    for n in 0..250 {
        letter(
            &journal,
            ["ada", "bob"][n % 2],
            ["gone", "refused"][n / 125],
        )
        .await;
    }
    let which = Selection::queue("jobs")
        .owner("ada")
        .cause("gone")
        .since(since);
    let counted = letters.purge_all(which.clone().dry_run()).await.unwrap();
    assert_eq!((counted.matched, counted.changed), (63, 0));
    let purged = letters.purge_all(which.clone()).await.unwrap();
    assert_eq!((purged.matched, purged.changed), (63, 63));
    assert_eq!(letters.purge_all(which).await.unwrap().matched, 0);
    let left = journal.counts("jobs").await.unwrap().of(Status::Failed);
    assert_eq!(left, 251 - 63);
    assert!(
        journal.find(early).await.unwrap().is_some(),
        "failed before"
    );
}
