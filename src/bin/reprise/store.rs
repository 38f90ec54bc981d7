//! The store that was chosen, as one type. A service that has only one uses that one's.

use std::{
    collections::HashMap,
    path::PathBuf,
    pin::Pin,
    str::FromStr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
#[cfg(feature = "postgres")]
use tower_reprise::store::PostgresStore;
#[cfg(feature = "redis")]
use tower_reprise::store::RedisStore;
#[cfg(not(all(feature = "postgres", feature = "redis")))]
use tower_reprise::store::StoreErrorKind;
use tower_reprise::store::{
    Claim, ClaimId, Claimed, FencingToken, IdempotencyStore, MemoryStore, OutcomeCursor,
    OutcomePage, Ownership, RecordKey, Resolution, Resolved, SqliteStore, StoreError, Stored,
    UnknownOutcome,
    journal::{
        CommandResult, Counts, Duplicate, Enqueued, Entry, EntryCommand, EntryId, Erased, Journal,
        LeaseRequest, LeaseToken, NewEntry, Query, Settlement,
    },
};

/// Where the store is.
#[derive(Clone)]
pub(crate) enum StoreAt {
    Memory,
    Sqlite(PathBuf),
    Postgres(#[cfg_attr(not(feature = "postgres"), expect(dead_code))] String),
    Redis(#[cfg_attr(not(feature = "redis"), expect(dead_code))] String),
}

impl StoreAt {
    pub(crate) const ALLOWED: &str =
        "memory, sqlite:PATH, postgres://USER:PASSWORD@HOST/DATABASE or redis://HOST";

    /// Returns the kind of the store. The address may hold a password, so it is not shown.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite(_) => "sqlite",
            Self::Postgres(_) => "postgres",
            Self::Redis(_) => "redis",
        }
    }

    pub(crate) async fn open(&self) -> Result<Store, StoreError> {
        let kind = match self.clone() {
            Self::Memory => Kind::Memory(MemoryStore::new()),
            Self::Sqlite(path) => Kind::Sqlite(SqliteStore::open(path)?),
            #[cfg(feature = "postgres")]
            Self::Postgres(url) => Kind::Postgres(PostgresStore::connect(url).await?),
            #[cfg(feature = "redis")]
            Self::Redis(url) => Kind::Redis(RedisStore::connect(url).await?),
            #[cfg(not(all(feature = "postgres", feature = "redis")))]
            absent => return Err(absent.is_absent()),
        };
        Ok(Store {
            kind,
            executing: Arc::default(),
        })
    }
}

#[cfg(not(all(feature = "postgres", feature = "redis")))]
impl StoreAt {
    /// Returns the error of a store that this program was built without.
    fn is_absent(&self) -> StoreError {
        let kind = self.kind();
        let message = format!(
            "this reprise is without {kind}: build it with \
             `cargo install --path . --features cli,{kind}`"
        );
        StoreError::new(StoreErrorKind::Other, message)
    }
}

impl FromStr for StoreAt {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let starts = |starts: &[&str]| starts.iter().any(|start| text.starts_with(start));
        match text.strip_prefix("sqlite:") {
            Some(path) if !path.is_empty() => Ok(Self::Sqlite(path.into())),
            _ if text == "memory" => Ok(Self::Memory),
            _ if starts(&["postgres://", "postgresql://"]) => Ok(Self::Postgres(text.to_owned())),
            _ if starts(&["redis://", "redis+unix://"]) => Ok(Self::Redis(text.to_owned())),
            _ => Err(()),
        }
    }
}

#[derive(Clone)]
pub(crate) struct Store {
    kind: Kind,
    /// The operations that this process claimed and did not settle, with the ends of their leases.
    /// The process must not exit before they are settled, even if their callers are gone.
    executing: Arc<Mutex<Executing>>,
}

type Executing = HashMap<RecordKey, Instant>;

#[derive(Clone)]
enum Kind {
    Memory(MemoryStore),
    Sqlite(SqliteStore),
    #[cfg(feature = "postgres")]
    Postgres(PostgresStore),
    #[cfg(feature = "redis")]
    Redis(RedisStore),
}

impl Store {
    /// Returns the number of operations that this process executes. An operation that was left to
    /// its lease is forgotten when the lease has run out.
    pub(crate) fn executing(&self) -> usize {
        let now = Instant::now();
        let mut executing = self.lock();
        executing.retain(|_, until| *until > now);
        executing.len()
    }

    fn lock(&self) -> MutexGuard<'_, Executing> {
        self.executing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The future of a verb of any store. Boxed, each is compiled once, wherever it is awaited, and takes no
/// room in the futures of requests.
type Verb<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

macro_rules! each {
    ($of:expr, $store:ident => $verb:expr) => {{
        let verb: Verb<'_, _> = match &$of.kind {
            Kind::Memory($store) => Box::pin($verb),
            Kind::Sqlite($store) => Box::pin($verb),
            #[cfg(feature = "postgres")]
            Kind::Postgres($store) => Box::pin($verb),
            #[cfg(feature = "redis")]
            Kind::Redis($store) => Box::pin($verb),
        };
        verb.await
    }};
}

impl IdempotencyStore for Store {
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let (key, until) = (claim.key, Instant::now() + claim.lease);
        let claimed = each!(self, store => store.claim(claim));
        if let Ok(Claimed::New(_)) = claimed {
            self.lock().insert(key, until);
        }
        claimed
    }

    async fn renew(
        &self,
        key: RecordKey,
        token: FencingToken,
        lease: Duration,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let until = Instant::now() + lease;
        let renewed = each!(self, store => store.renew(key, token, lease, retention));
        if let (Ok(Ownership::Held), Some(known)) = (&renewed, self.lock().get_mut(&key)) {
            *known = until;
        }
        renewed
    }

    async fn suspend(
        &self,
        key: RecordKey,
        token: FencingToken,
        resumed_by: ClaimId,
        lease: Duration,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let suspended =
            each!(self, store => store.suspend(key, token, resumed_by, lease, retention));
        if suspended.is_ok() {
            self.lock().remove(&key);
        }
        suspended
    }

    async fn complete(
        &self,
        key: RecordKey,
        token: FencingToken,
        stored: Stored,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let completed = each!(self, store => store.complete(key, token, stored, retention));
        if completed.is_ok() {
            self.lock().remove(&key);
        }
        completed
    }

    async fn release(&self, key: RecordKey, token: FencingToken) -> Result<Ownership, StoreError> {
        let released = each!(self, store => store.release(key, token));
        if released.is_ok() {
            self.lock().remove(&key);
        }
        released
    }

    async fn unknown_outcomes(
        &self,
        after: Option<OutcomeCursor>,
        limit: u32,
    ) -> Result<OutcomePage, StoreError> {
        each!(self, store => store.unknown_outcomes(after, limit))
    }

    async fn unknown_outcome(&self, key: RecordKey) -> Result<Option<UnknownOutcome>, StoreError> {
        each!(self, store => store.unknown_outcome(key))
    }

    async fn resolve(
        &self,
        key: RecordKey,
        token: FencingToken,
        resolution: Resolution,
    ) -> Result<Resolved, StoreError> {
        each!(self, store => store.resolve(key, token, resolution))
    }
}

impl Journal for Store {
    async fn enqueue(&self, entry: NewEntry) -> Result<Enqueued, StoreError> {
        each!(self, store => store.enqueue(entry))
    }

    async fn enqueue_many(&self, entries: Vec<NewEntry>) -> Result<Vec<Enqueued>, StoreError> {
        each!(self, store => store.enqueue_many(entries))
    }

    async fn lanes(
        &self,
        queue: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        each!(self, store => store.lanes(queue, after, limit))
    }

    async fn lease(&self, want: LeaseRequest) -> Result<Vec<Entry>, StoreError> {
        each!(self, store => store.lease(want))
    }

    async fn extend(
        &self,
        id: EntryId,
        turn: LeaseToken,
        lease: Duration,
    ) -> Result<Ownership, StoreError> {
        each!(self, store => store.extend(id, turn, lease))
    }

    async fn settle(
        &self,
        id: EntryId,
        turn: LeaseToken,
        settle: Settlement,
    ) -> Result<Ownership, StoreError> {
        each!(self, store => store.settle(id, turn, settle))
    }

    async fn bury(
        &self,
        entry: NewEntry,
        attempts: u32,
        settle: Settlement,
    ) -> Result<Enqueued, StoreError> {
        each!(self, store => store.bury(entry, attempts, settle))
    }

    async fn command(
        &self,
        id: EntryId,
        command: EntryCommand,
    ) -> Result<Option<CommandResult>, StoreError> {
        each!(self, store => store.command(id, command))
    }

    async fn erase(&self, queue: &str, owner: &str, limit: u32) -> Result<Erased, StoreError> {
        each!(self, store => store.erase(queue, owner, limit).await)
    }

    async fn find(&self, id: EntryId) -> Result<Option<Entry>, StoreError> {
        each!(self, store => store.find(id))
    }

    async fn find_duplicate(
        &self,
        queue: &str,
        key: RecordKey,
    ) -> Result<Option<Duplicate>, StoreError> {
        each!(self, store => store.find_duplicate(queue, key))
    }

    async fn list(&self, query: Query) -> Result<Vec<Entry>, StoreError> {
        each!(self, store => store.list(query))
    }

    async fn count(&self, query: Query) -> Result<u32, StoreError> {
        each!(self, store => store.count(query))
    }

    async fn counts(&self, queue: &str) -> Result<Counts, StoreError> {
        each!(self, store => store.counts(queue))
    }

    async fn position(&self, id: EntryId, limit: u32) -> Result<Option<u32>, StoreError> {
        each!(self, store => store.position(id, limit))
    }

    async fn secret(&self) -> Result<[u8; 32], StoreError> {
        each!(self, store => store.secret())
    }
}
