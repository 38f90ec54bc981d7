//! The store in a SQLite file: the contract of all stores, several processes, kills, and disks
//! that are full, gone or broken.
#![cfg(feature = "sqlite")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

#[path = "support/crash.rs"]
mod crash;
#[path = "store_sqlite/journal.rs"]
mod journal;
#[path = "support/process.rs"]
mod process;
#[path = "support/races.rs"]
mod races;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use rusqlite::Connection;
use tokio::task::JoinSet;
use tower_reprise::{
    error::ConfigError,
    store::{
        Claim, ClaimId, Claimed, CrashPolicy, FencingToken, Fingerprint, IdempotencyStore, Note,
        Ownership, RecordKey, SqliteStore, SqliteStoreBuilder, StoreError, StoreErrorKind, Stored,
        conformance::{self, Backend},
    },
};

const LEASE: Duration = Duration::from_secs(30);
const RETENTION: Duration = Duration::from_secs(60 * 60);

/// A folder that is removed with all that is in it.
struct Folder(PathBuf);

impl Folder {
    fn under(parent: &str) -> Self {
        let name = format!("sqlite-{:016x}", rand::random::<u64>());
        let folder = Path::new(parent).join(name);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn on_disk() -> Self {
        Self::under(env!("CARGO_TARGET_TMPDIR"))
    }

    /// Where commits are quick: for tests that are not about what is on disk.
    fn new() -> Self {
        let memory = "/dev/shm";
        Self::under(match Path::new(memory).is_dir() {
            true => memory,
            false => env!("CARGO_TARGET_TMPDIR"),
        })
    }

    fn file(&self) -> PathBuf {
        self.0.join("idempotency.db")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A clock that stands still until it is moved.
#[derive(Clone)]
struct Time(Arc<AtomicU64>);

impl Time {
    fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1_700_000_000_000_000)))
    }

    fn pass(&self, time: Duration) {
        self.0.fetch_add(micros(time), Ordering::SeqCst);
    }

    fn go_back(&self, time: Duration) {
        self.0.fetch_sub(micros(time), Ordering::SeqCst);
    }

    fn store(&self) -> SqliteStoreBuilder {
        let micros = Arc::clone(&self.0);
        SqliteStore::builder().clock(move || {
            SystemTime::UNIX_EPOCH + Duration::from_micros(micros.load(Ordering::SeqCst))
        })
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap()
}

struct Sqlite {
    folder: Folder,
    time: Time,
}

impl Sqlite {
    fn new() -> Self {
        Self {
            folder: Folder::new(),
            time: Time::new(),
        }
    }

    fn open(&self) -> SqliteStore {
        self.time.store().open(self.folder.file()).unwrap()
    }
}

impl Backend for Sqlite {
    type Store = SqliteStore;

    async fn open(&self) -> SqliteStore {
        self.open()
    }

    async fn pass(&self, time: Duration) {
        self.time.pass(time);
    }
}

/// The machine's clock, as in other processes.
impl crash::Shared for Sqlite {
    type Store = SqliteStore;

    async fn open(address: &str) -> SqliteStore {
        SqliteStore::open(address).unwrap()
    }
}

fn claim(key: u64) -> Claim {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&key.to_le_bytes());
    Claim {
        key: RecordKey::new(bytes),
        fingerprint: Fingerprint::new([1; 32]),
        id: ClaimId::random(),
        lease: LEASE,
        retention: RETENTION,
        orphans: CrashPolicy::Reexecute,
        note: Note::NONE,
    }
}

fn reply(len: usize) -> Stored {
    Stored::Reply(Bytes::from(vec![7; len]))
}

async fn own(store: &SqliteStore, key: u64) -> FencingToken {
    match store.claim(claim(key)).await.unwrap() {
        Claimed::New(lease) => lease.token,
        other => panic!("{key} is {other:?}"),
    }
}

async fn complete(store: &SqliteStore, key: u64, token: FencingToken, stored: Stored) {
    let completed = store.complete(claim(key).key, token, stored, RETENTION);
    assert_eq!(completed.await.unwrap(), Ownership::Held);
}

#[tokio::test]
async fn t_1_t_2_t_3_the_contract() {
    conformance::run(&Sqlite::new()).await;
}

#[tokio::test]
async fn t_1_t_2_the_model() {
    for seed in 0..20 {
        conformance::model(&Sqlite::new(), seed, 500).await;
    }
}

#[test]
#[ignore = "the others run it, in processes of their own"]
fn child() {
    crash::child::<Sqlite>();
}

#[tokio::test]
async fn i_6_one_of_two_processes_wins() {
    let folder = Folder::on_disk();
    crash::race::<Sqlite>(folder.file().to_str().unwrap()).await;
}

#[tokio::test]
async fn t_4_i_14_nothing_acknowledged_is_lost_to_a_kill() {
    let folder = Folder::on_disk();
    crash::killed::<Sqlite>(folder.file().to_str().unwrap(), 50).await;
}

#[tokio::test]
async fn i_15_a_stopped_owner_is_too_late() {
    let folder = Folder::on_disk();
    crash::stopped::<Sqlite>(folder.file().to_str().unwrap()).await;
}

/// Claims from many threads at once, not just from many tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i_6_one_of_a_hundred_claims_wins() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    for key in 0..20 {
        let mut claims = JoinSet::new();
        for _ in 0..100 {
            let store = store.clone();
            claims.spawn(async move { store.claim(claim(key)).await.unwrap() });
        }
        let claimed = claims.join_all().await.into_iter();
        let won = claimed.filter(|claimed| matches!(claimed, Claimed::New(_)));
        assert_eq!(won.count(), 1);
    }
}

// --- the lock, the queue and the batch ----------------------------------------------------------

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
async fn queue(
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

/// How many transactions there are in the log: a frame ends one if it names the database's size.
fn commits(folder: &Folder) -> usize {
    let log = fs::read(folder.file().with_extension("db-wal")).unwrap();
    let page = u32::from_be_bytes(log[8..12].try_into().unwrap()) as usize;
    let frames = log[32..].chunks_exact(24 + page);
    frames.filter(|frame| frame[4..8] != [0; 4]).count()
}

#[tokio::test]
async fn t_4_what_queued_up_is_committed_together() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let mut owned = Vec::new();
    for key in 0..100 {
        owned.push((key, own(&store, key).await, reply(10)));
    }
    let before = commits(&sqlite.folder);
    let lock = Lock::take(&sqlite.folder);
    let queued = queue(&store, owned).await;
    lock.release();
    for (key, completed) in queued.join_all().await {
        assert_eq!(completed.unwrap(), Ownership::Held, "{key}");
    }
    // What came first waits for the lock, alone or with some others; the rest is the second.
    let commits = commits(&sqlite.folder) - before;
    assert!((1..=2).contains(&commits), "{commits} commits");
}

#[tokio::test]
async fn t_4_a_batch_has_a_bound() {
    let sqlite = Sqlite::new();
    let store = sqlite.time.store().batch(10);
    let store = store.open(sqlite.folder.file()).unwrap();
    let mut owned = Vec::new();
    for key in 0..100 {
        owned.push((key, own(&store, key).await, reply(10)));
    }
    let before = commits(&sqlite.folder);
    let lock = Lock::take(&sqlite.folder);
    let queued = queue(&store, owned).await;
    lock.release();
    queued.join_all().await;
    let commits = commits(&sqlite.folder) - before;
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
        owned.push((key, own(&store, key).await, reply(bytes)));
    }
    let lock = Lock::take(&sqlite.folder);
    let queued = queue(&store, owned).await;
    lock.release();
    for (key, completed) in queued.join_all().await {
        let claimed = store.claim(claim(key)).await.unwrap();
        if key % 10 == 5 {
            assert_eq!(completed.unwrap_err().kind(), StoreErrorKind::Full);
            assert!(matches!(claimed, Claimed::InFlight { .. }), "{claimed:?}");
        } else {
            assert_eq!(completed.unwrap(), Ownership::Held);
            assert_eq!(claimed, Claimed::done(reply(100)));
        }
    }
}

#[tokio::test]
async fn t_4_waiting_for_the_lock_is_bounded_and_readers_do_not() {
    let sqlite = Sqlite::new();
    let patient = sqlite.open();
    let (done, in_flight) = (own(&patient, 1).await, own(&patient, 2).await);
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

    // What changes nothing is answered all the same.
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
    own(&patient, 3).await;
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
        owned.push((key, own(&store, key).await, reply(10)));
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
        async move { own(&store, 1).await }
    });
    tokio::task::yield_now().await;
    // The future is polled once, so that the claim is queued behind the first, and then dropped.
    let second = tokio::time::timeout(Duration::ZERO, store.claim(claim(2)));
    assert!(second.await.is_err());
    lock.release();
    first.await.unwrap();
    own(&store, 2).await;
}

#[tokio::test]
async fn t_4_what_is_queued_is_answered_after_the_store_is_dropped() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let token = own(&store, 1).await;
    let lock = Lock::take(&sqlite.folder);
    let queued = queue(&store, [(1, token, reply(10))]).await;
    drop(store);
    lock.release();
    let answers = queued.join_all().await;
    assert!(matches!(answers[..], [(1, Ok(Ownership::Held))]));
    let claimed = sqlite.open().claim(claim(1)).await.unwrap();
    assert_eq!(claimed, Claimed::done(reply(10)));
}

// --- time ---------------------------------------------------------------------------------------

#[tokio::test]
async fn t_3_a_clock_that_is_set_back_gives_no_smaller_tokens() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let before = own(&store, 1).await;
    let released = store.release(claim(1).key, before).await;
    assert_eq!(released.unwrap(), Ownership::Held);
    sqlite.time.go_back(Duration::from_secs(24 * 60 * 60));
    assert!(own(&store, 1).await > before);
    assert!(own(&sqlite.open(), 2).await > before);
}

#[tokio::test]
async fn t_3_a_clock_that_is_set_forward_fences_the_owner() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let stale = own(&store, 1).await;
    sqlite.time.pass(LEASE);
    let token = own(&store, 1).await;
    let late = store.complete(claim(1).key, stale, reply(1), RETENTION);
    assert_eq!(late.await.unwrap(), Ownership::Lost);
    complete(&store, 1, token, reply(2)).await;
}

fn rows(folder: &Folder) -> i64 {
    let connection = Connection::open(folder.file()).unwrap();
    let count = "SELECT count(*) FROM idempotency";
    connection.query_row(count, [], |row| row.get(0)).unwrap()
}

async fn until_rows_are(count: i64, folder: &Folder) {
    let swept = async {
        while rows(folder) != count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let patience = Duration::from_secs(30);
    tokio::time::timeout(patience, swept).await.expect("swept");
}

#[tokio::test]
async fn t_3_what_is_past_its_time_is_swept() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let mut claims = JoinSet::new();
    for key in 0..1_000 {
        let store = store.clone();
        claims.spawn(async move { own(&store, key).await });
    }
    let tokens = claims.join_all().await;
    sqlite.time.pass(RETENTION);
    let live = own(&store, 5_000).await;
    assert_eq!(rows(&sqlite.folder), 1_001, "none is past its time");
    sqlite.time.pass(LEASE);

    // It sweeps when it is opened, whether or not anybody asks for anything.
    drop(store);
    let store = sqlite.open();
    until_rows_are(1, &sqlite.folder).await;
    complete(&store, 5_000, live, reply(1)).await;
    assert!(own(&store, 1).await > tokens.into_iter().max().unwrap());
}

// --- the schema ---------------------------------------------------------------------------------

fn set_version(folder: &Folder, version: i64) {
    let connection = Connection::open(folder.file()).unwrap();
    connection
        .pragma_update(None, "user_version", version)
        .unwrap();
}

#[tokio::test]
async fn t_5_a_newer_schema_is_refused() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let token = own(&store, 1).await;
    set_version(&sqlite.folder, 4);

    let error = SqliteStore::open(sqlite.folder.file()).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NewerSchema);
    let message = error.to_string();
    assert!(
        message.contains("idempotency.db: the schema is version 4, written by a newer release; this one knows up to 3"),
        "{message}"
    );

    // Also if the newer one came while this one was running.
    for error in [
        store.claim(claim(1)).await.unwrap_err(),
        store.claim(claim(2)).await.unwrap_err(),
        store.release(claim(1).key, token).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::NewerSchema);
        assert!(!error.may_have_happened());
    }
    // Nothing is kept locked meanwhile.
    set_version(&sqlite.folder, 3);
    complete(&store, 1, token, reply(1)).await;
}

/// Schemas were changed before they were released.
#[test]
fn t_5_a_file_of_before_the_release_is_refused_when_it_is_opened() {
    for column in ["idempotency.note", "journal.label"] {
        let folder = Folder::new();
        drop(SqliteStore::open(folder.file()).unwrap());
        drop(SqliteStore::open(folder.file()).unwrap());
        let (table, name) = column.split_once('.').unwrap();
        let connection = Connection::open(folder.file()).unwrap();
        connection
            .execute_batch(&format!("ALTER TABLE {table} DROP COLUMN {name}"))
            .unwrap();
        let error = SqliteStore::open(folder.file()).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Other);
        let message = error.to_string();
        let says = format!("says version 3, and has no {column}");
        assert!(message.contains(&says), "{message}");
    }
}

#[test]
fn t_5_another_applications_database_is_left_alone() {
    let folder = Folder::new();
    let connection = Connection::open(folder.file()).unwrap();
    connection
        .execute_batch("CREATE TABLE accounts (id)")
        .unwrap();
    let error = SqliteStore::open(folder.file()).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("another application's database"),
        "{message}"
    );
    let mode: String = connection
        .pragma_query_value(None, "journal_mode", |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "delete", "nothing was changed");
}

#[test]
fn t_5_many_that_create_the_file_at_once() {
    for _ in 0..20 {
        let folder = Folder::new();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| SqliteStore::open(folder.file()).unwrap());
            }
        });
    }
}

// --- disks --------------------------------------------------------------------------------------

#[tokio::test]
async fn t_4_a_full_file_refuses_and_still_answers() {
    let sqlite = Sqlite::new();
    let store = sqlite.time.store().max_bytes(1 << 20);
    let store = store.open(sqlite.folder.file()).unwrap();
    let mut last = 0;
    let error = loop {
        let token = match store.claim(claim(last)).await {
            Ok(Claimed::New(lease)) => lease.token,
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        };
        let completed = store.complete(claim(last).key, token, reply(10_000), RETENTION);
        match completed.await {
            Ok(ownership) => assert_eq!(ownership, Ownership::Held),
            Err(error) => break error,
        }
        last += 1;
    };
    assert_eq!(error.kind(), StoreErrorKind::Full);
    assert!(last > 50);
    for key in 0..last {
        let claimed = store.claim(claim(key)).await.unwrap();
        assert_eq!(claimed, Claimed::done(reply(10_000)), "{key}");
    }
    // What is past its time makes room again.
    sqlite.time.pass(RETENTION + LEASE);
    drop(store);
    let store = sqlite.time.store().max_bytes(1 << 20);
    let store = store.open(sqlite.folder.file()).unwrap();
    until_rows_are(0, &sqlite.folder).await;
    let token = own(&store, 1).await;
    complete(&store, 1, token, reply(10_000)).await;
}

#[tokio::test]
async fn t_4_a_file_that_is_gone_refuses() {
    for replaced in [false, true] {
        let sqlite = Sqlite::new();
        let store = sqlite.open();
        let token = own(&store, 1).await;
        fs::remove_dir_all(&sqlite.folder.0).unwrap();
        fs::create_dir(&sqlite.folder.0).unwrap();
        if replaced {
            drop(sqlite.open());
        }
        for error in [
            store.claim(claim(1)).await.unwrap_err(),
            store.claim(claim(2)).await.unwrap_err(),
            store.release(claim(1).key, token).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), StoreErrorKind::Unavailable);
            assert!(!error.may_have_happened());
            let message = error.to_string();
            assert!(message.contains("moved or deleted"), "{message}");
        }
        own(&sqlite.open(), 1).await;
    }
}

#[test]
fn t_4_a_file_that_is_none_is_refused() {
    let folder = Folder::new();
    fs::write(folder.file(), vec![b'x'; 10_000]).unwrap();
    let error = SqliteStore::open(folder.file()).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    assert!(error.to_string().contains("idempotency.db"), "{error}");
}

#[test]
fn t_4_a_file_that_can_t_be_made_is_refused() {
    let folder = Folder::new();
    // Not even root can create files there.
    for path in [
        Path::new("/proc/idempotency.db"),
        &folder.0,
        &folder.0.join("no/such.db"),
    ] {
        let error = SqliteStore::open(path).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        let message = error.to_string();
        assert!(message.contains(path.to_str().unwrap()), "{message}");
    }
    let error = SqliteStore::open(":memory:").unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("journal mode is memory, allowed: wal"),
        "{message}"
    );
}

#[cfg(unix)]
#[test]
fn t_4_a_file_that_can_only_be_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;

    let folder = Folder::new();
    drop(SqliteStore::open(folder.file()).unwrap());
    let permit = |mode| {
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o111 | mode)).unwrap();
        let files = fs::read_dir(&folder.0).into_iter().flatten().flatten();
        files.for_each(|file| {
            let _ = fs::set_permissions(file.path(), fs::Permissions::from_mode(mode));
        });
    };
    permit(0o444);
    // To some users permissions mean nothing.
    if fs::write(folder.0.join("new"), "").is_err() {
        let error = SqliteStore::open(folder.file()).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    }
    permit(0o644);
}

/// Everything after the first page is garbage: nothing is found, and nothing is taken for free.
#[tokio::test]
async fn t_4_a_corrupt_file_never_gives_a_wrong_answer() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let mut owned = Vec::new();
    for key in 0..300 {
        owned.push((key, own(&store, key).await, reply(500)));
    }
    queue(&store, owned).await.join_all().await;
    drop(store);
    let connection = Connection::open(sqlite.folder.file()).unwrap();
    connection.busy_timeout(Duration::from_secs(10)).unwrap();
    let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
    let busy: i64 = connection
        .query_row(checkpoint, [], |row| row.get(0))
        .unwrap();
    assert_eq!(busy, 0);
    drop(connection);
    let mut bytes = fs::read(sqlite.folder.file()).unwrap();
    for from in [200_000, 4096] {
        bytes[from..].fill(0xff);
        fs::write(sqlite.folder.file(), &bytes).unwrap();
        let store = sqlite.open();
        let mut corrupt = 0;
        for key in 0..300 {
            match store.claim(claim(key)).await {
                Ok(claimed) => assert_eq!(claimed, Claimed::done(reply(500)), "{key}"),
                Err(error) => {
                    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
                    corrupt += 1;
                }
            }
        }
        assert!(corrupt > 0, "from {from}");
    }
}

#[tokio::test]
async fn t_4_a_row_that_makes_no_sense_is_corrupt() {
    for nonsense in [
        "state = 9",
        "state = 1",
        "fingerprint = x'01'",
        "claim = x'01'",
    ] {
        let sqlite = Sqlite::new();
        let store = sqlite.open();
        own(&store, 1).await;
        let sql = format!("UPDATE idempotency SET {nonsense}");
        let connection = Connection::open(sqlite.folder.file()).unwrap();
        connection.execute_batch(&sql).unwrap();
        let error = store.claim(claim(1)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{nonsense}: {error}");
        own(&store, 2).await;
    }
}

/// In a process that may write no file beyond a size, so that a commit fails halfway.
#[cfg(unix)]
#[test]
fn t_4_a_commit_that_fails_on_disk_is_in_doubt() {
    let folder = Folder::new();
    let output = std::process::Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 4000; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["child_with_little_room", "--exact", "--ignored"])
        .env("REPRISE_LITTLE_ROOM", folder.file())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
    // What was acknowledged is there for others too, and the rest is free to be claimed.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(folder.file()).unwrap();
        let claimed = store.claim(claim(0)).await.unwrap();
        assert_eq!(claimed, Claimed::done(reply(100_000)));
        own(&store, u64::MAX).await;
    });
}

#[tokio::test]
#[ignore = "another test runs it, in a process of its own"]
async fn child_with_little_room() {
    let Some(path) = std::env::var_os("REPRISE_LITTLE_ROOM") else {
        return;
    };
    let store = SqliteStore::open(path).unwrap();
    // Claimed together while there is room, so that it is a completion that fails.
    let mut claims = JoinSet::new();
    for key in 0..50 {
        let store = store.clone();
        claims.spawn(async move { (key, own(&store, key).await) });
    }
    let mut owned = claims.join_all().await;
    owned.sort();
    let mut key = 0;
    let error = loop {
        let token = owned[usize::try_from(key).unwrap()].1;
        let completed = store.complete(claim(key).key, token, reply(100_000), RETENTION);
        match completed.await {
            Ok(ownership) => assert_eq!(ownership, Ownership::Held),
            Err(error) => break error,
        }
        key += 1;
    };
    assert!(key > 2);
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.may_have_happened(), "{error}");
    for key in 0..key {
        let claimed = store.claim(claim(key)).await.unwrap();
        assert_eq!(claimed, Claimed::done(reply(100_000)), "{key}");
    }
    let claimed = store.claim(claim(key)).await.unwrap();
    assert!(matches!(claimed, Claimed::InFlight { .. }), "{claimed:?}");
}

#[test]
fn settings_out_of_range_are_named() {
    let minute = Duration::from_secs(61);
    let builder = SqliteStore::builder;
    for (builder, message) in [
        (
            builder().busy_timeout(minute),
            "sqlite.busy_timeout is 61s, allowed: at most 60s",
        ),
        (
            builder().queue(0),
            "sqlite.queue is 0, allowed: 1 to 1000000",
        ),
        (
            builder().batch(20_000),
            "sqlite.batch is 20000, allowed: 1 to 10000",
        ),
        (
            builder().max_bytes(9),
            "sqlite.max_bytes is 9, allowed: at least 1048576",
        ),
    ] {
        let error = builder.open("never-opened.db").unwrap_err();
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(
            source.downcast_ref::<ConfigError>().unwrap().to_string(),
            message
        );
        assert!(error.to_string().contains(message), "{error}");
    }
}
