//! The lock of the file, the queue of the writer and its batches.

use std::{fs, time::Duration};

use rusqlite::Connection;
use tokio::task::JoinSet;
use tower_reprise::store::{
    Claim, Claimed, FencingToken, Fingerprint, IdempotencyStore, Note, Ownership, SqliteStore,
    StoreError, StoreErrorKind, Stored,
};

use super::{Folder, Sqlite, reply};
use crate::support::records::{LEASE, RETENTION, claim, complete, own};

/// Keeps everybody else from writing.
struct Lock(Connection);

impl Lock {
    fn take(folder: &Folder) -> Self {
        let connection = Connection::open(folder.file()).unwrap();
        connection.busy_timeout(Duration::from_secs(10)).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        Self(connection)
    }

    fn release(self) {
        self.0.execute_batch("ROLLBACK").unwrap();
    }
}

type Completed = (u64, Result<Ownership, StoreError>);

/// Starts completions, each of which is in the writer's queue when this returns: the runtime has
/// one thread, and polls in order.
pub(super) async fn queue(
    store: &SqliteStore,
    owned: impl IntoIterator<Item = (u64, FencingToken, Stored)>,
) -> JoinSet<Completed> {
    let mut queued = JoinSet::new();
    for (key, token, stored) in owned {
        let store = store.clone();
        queued.spawn(async move {
            let completed = store.complete(claim(key).key, token, stored, RETENTION);
            (key, completed.await)
        });
    }
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    queued
}

/// Returns the number of transactions in the log: a frame ends one if it names the database's size.
fn commits(folder: &Folder) -> usize {
    let log = fs::read(folder.file().with_extension("db-wal")).unwrap();
    let page = u32::from_be_bytes(log[8..12].try_into().unwrap()) as usize;
    let frames = log[32..].chunks_exact(24 + page);
    frames.filter(|frame| frame[4..8] != [0; 4]).count()
}

/// The transactions that it takes to complete what queued up behind the lock.
async fn commits_of_a_hundred(sqlite: &Sqlite, store: &SqliteStore) -> usize {
    let mut owned = Vec::new();
    for key in 0..100 {
        owned.push((key, own(store, claim(key)).await, reply(10)));
    }
    let before = commits(&sqlite.folder);
    let lock = Lock::take(&sqlite.folder);
    let queued = queue(store, owned).await;
    lock.release();
    for (key, completed) in queued.join_all().await {
        assert_eq!(completed.unwrap(), Ownership::Held, "{key}");
    }
    commits(&sqlite.folder) - before
}

#[tokio::test]
async fn t_4_what_queued_up_is_committed_together() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let commits = commits_of_a_hundred(&sqlite, &store).await;
    // The first commands wait for the lock and are one commit; the rest is the second.
    assert!((1..=2).contains(&commits), "{commits} commits");
}

#[tokio::test]
async fn t_4_a_batch_has_a_bound() {
    let sqlite = Sqlite::new();
    let store = sqlite.time.store().batch(10);
    let store = store.open(sqlite.folder.file()).unwrap();
    let commits = commits_of_a_hundred(&sqlite, &store).await;
    assert!((10..=11).contains(&commits), "{commits} commits");
}

#[tokio::test]
async fn t_4_one_that_fails_does_not_fail_its_batch() {
    let sqlite = Sqlite::new();
    let store = sqlite.time.store().max_bytes(1 << 20);
    let store = store.open(sqlite.folder.file()).unwrap();
    let mut owned = Vec::new();
    for key in 0..30 {
        let bytes = if key % 10 == 5 { 2 << 20 } else { 100 };
        owned.push((key, own(&store, claim(key)).await, reply(bytes)));
    }
    let lock = Lock::take(&sqlite.folder);
    let queued = queue(&store, owned).await;
    lock.release();
    for (key, completed) in queued.join_all().await {
        assert_eq!(completed.unwrap(), Ownership::Held);
        let stored = match key % 10 {
            5 => Stored::NotRetained,
            _ => reply(100),
        };
        let claimed = store.claim(claim(key)).await.unwrap();
        assert_eq!(claimed, Claimed::done(stored));
    }
}

#[tokio::test]
async fn t_4_waiting_for_the_lock_is_bounded_and_readers_do_not() {
    let sqlite = Sqlite::new();
    let patient = sqlite.open();
    let (done, in_flight) = (own(&patient, claim(1)).await, own(&patient, claim(2)).await);
    complete(&patient, 1, done, reply(10)).await;
    let store = sqlite.time.store().busy_timeout(Duration::from_millis(250));
    let store = store.open(sqlite.folder.file()).unwrap();
    let lock = Lock::take(&sqlite.folder);

    let error = store.claim(claim(3)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    assert!(error.is_transient() && !error.may_have_happened());
    let message = error.to_string();
    assert!(message.contains("no lock within 250ms"), "{message}");
    let renewed = store.renew(claim(2).key, in_flight, LEASE, RETENTION).await;
    assert_eq!(renewed.unwrap_err().kind(), StoreErrorKind::Timeout);

    // Claims that change nothing are answered without the lock.
    let claimed = store.claim(claim(1)).await.unwrap();
    assert_eq!(claimed, Claimed::done(reply(10)));
    let claimed = store.claim(claim(2)).await.unwrap();
    let (remaining, note) = (LEASE, Note::NONE);
    assert_eq!(claimed, Claimed::InFlight { remaining, note });
    let other = Claim {
        fingerprint: Fingerprint::new([9; 32]),
        ..claim(1)
    };
    let claimed = store.claim(other).await.unwrap();
    assert!(matches!(claimed, Claimed::Mismatch { .. }), "{claimed:?}");

    lock.release();
    own(&patient, claim(3)).await;
}

/// Nobody waits for the lock longer than that, however many are in front of it.
#[tokio::test]
async fn t_4_what_waited_behind_a_timeout_is_refused_with_it() {
    let sqlite = Sqlite::new();
    let patience = Duration::from_millis(250);
    let store = sqlite.time.store().busy_timeout(patience).batch(1);
    let store = store.open(sqlite.folder.file()).unwrap();
    let token = FencingToken::new(1);
    let lock = Lock::take(&sqlite.folder);
    let mut queued = queue(&store, (0..5).map(|key| (key, token, reply(1)))).await;
    let (_, first) = queued.join_next().await.unwrap().unwrap();
    lock.release();
    let rest = queued
        .join_all()
        .await
        .into_iter()
        .map(|(_, answer)| answer);
    for answer in rest.chain([first]) {
        assert_eq!(answer.unwrap_err().kind(), StoreErrorKind::Timeout);
    }
}

#[tokio::test]
async fn t_4_too_many_are_refused_at_once() {
    let sqlite = Sqlite::new();
    let store = sqlite.time.store().queue(4).batch(1);
    let store = store.open(sqlite.folder.file()).unwrap();
    let mut owned = Vec::new();
    for key in 0..20 {
        owned.push((key, own(&store, claim(key)).await, reply(10)));
    }
    let lock = Lock::take(&sqlite.folder);
    let mut queued = queue(&store, owned).await;
    // One may be in the writer's hands, four wait.
    for _ in 0..15 {
        let (_, refused) = queued.join_next().await.unwrap().unwrap();
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::PoolExhausted);
        assert!(error.is_transient() && !error.may_have_happened());
        let message = error.to_string();
        assert!(
            message.contains("4 transitions are waiting already"),
            "{message}"
        );
    }
    lock.release();
    let rest = queued.join_all().await.into_iter();
    let held = rest.filter(|(_, completed)| matches!(completed, Ok(Ownership::Held)));
    assert!(held.count() >= 4);
}

#[tokio::test]
async fn what_nobody_waits_for_is_not_done() {
    let sqlite = Sqlite::new();
    let store = sqlite.time.store().batch(1);
    let store = store.open(sqlite.folder.file()).unwrap();
    let lock = Lock::take(&sqlite.folder);
    let first = tokio::spawn({
        let store = store.clone();
        async move { own(&store, claim(1)).await }
    });
    tokio::task::yield_now().await;
    // The future is polled once, so that the claim is queued behind the first, and then dropped.
    let second = tokio::time::timeout(Duration::ZERO, store.claim(claim(2)));
    assert!(second.await.is_err());
    lock.release();
    first.await.unwrap();
    own(&store, claim(2)).await;
}

#[tokio::test]
async fn t_4_what_is_queued_is_answered_after_the_store_is_dropped() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let token = own(&store, claim(1)).await;
    let lock = Lock::take(&sqlite.folder);
    let queued = queue(&store, [(1, token, reply(10))]).await;
    drop(store);
    lock.release();
    let answers = queued.join_all().await;
    assert!(matches!(answers[..], [(1, Ok(Ownership::Held))]));
    let claimed = sqlite.open().claim(claim(1)).await.unwrap();
    assert_eq!(claimed, Claimed::done(reply(10)));
}
