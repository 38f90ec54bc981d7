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
        Claim, ClaimId, Claimed, FencingToken, Fingerprint, IdempotencyStore, Orphans, Ownership,
        RecordKey, SqliteStore, SqliteStoreBuilder, StoreError, StoreErrorKind, Stored,
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
        orphans: Orphans::Reexecute,
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
