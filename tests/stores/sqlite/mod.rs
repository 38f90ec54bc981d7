//! The store in a SQLite file.

mod contract;
mod damage;
mod disks;
mod full;
mod journal;
mod queue;
mod schema;
mod sharing;

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
use tower_reprise::store::{SqliteStore, SqliteStoreBuilder, Stored, conformance::Backend};

use crate::support::crash;

/// A folder that is removed with all that is in it.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn under(parent: &str) -> Self {
        let name = format!("sqlite-{:016x}", rand::random::<u64>());
        let folder = Path::new(parent).join(name);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn on_disk() -> Self {
        Self::under(env!("CARGO_TARGET_TMPDIR"))
    }

    /// Where commits are quick: for tests that are not about what is on disk.
    pub(crate) fn new() -> Self {
        let memory = "/dev/shm";
        Self::under(match Path::new(memory).is_dir() {
            true => memory,
            false => env!("CARGO_TARGET_TMPDIR"),
        })
    }

    pub(crate) fn file(&self) -> PathBuf {
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
pub(crate) struct Time(pub(crate) Arc<AtomicU64>);

impl Time {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1_700_000_000_000_000)))
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.0.fetch_add(micros(time), Ordering::SeqCst);
    }

    pub(crate) fn go_back(&self, time: Duration) {
        self.0.fetch_sub(micros(time), Ordering::SeqCst);
    }

    pub(crate) fn store(&self) -> SqliteStoreBuilder {
        let micros = Arc::clone(&self.0);
        SqliteStore::builder().clock(move || {
            SystemTime::UNIX_EPOCH + Duration::from_micros(micros.load(Ordering::SeqCst))
        })
    }
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap()
}

pub(crate) struct Sqlite {
    pub(crate) folder: Folder,
    pub(crate) time: Time,
}

impl Sqlite {
    pub(crate) fn new() -> Self {
        Self {
            folder: Folder::new(),
            time: Time::new(),
        }
    }

    pub(crate) fn open(&self) -> SqliteStore {
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

    const CHILD: &'static str = "sqlite::contract::child";

    async fn open(address: &str) -> SqliteStore {
        SqliteStore::open(address).unwrap()
    }
}

pub(crate) fn reply(len: usize) -> Stored {
    Stored::Reply(Bytes::from(vec![7; len]))
}
