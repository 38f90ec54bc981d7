//! The store that was chosen, as one type. A service that has only one uses that one's.

use std::{
    collections::HashMap,
    path::PathBuf,
    pin::Pin,
    str::FromStr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
#[cfg(feature = "postgres")]
use tower_reprise::store::PostgresStore;
#[cfg(feature = "redis")]
use tower_reprise::store::RedisStore;
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
    pub(crate) const ALLOWED: &str = "memory, sqlite:PATH, with the feature postgres \
        postgres://USER:PASSWORD@HOST/DATABASE, with the feature redis redis://HOST";

    /// Returns the store, or what is allowed instead if this program was built without it.
    pub(crate) fn built_in(self) -> Result<Self, String> {
        let built_in = match self {
            Self::Memory | Self::Sqlite(_) => true,
            Self::Postgres(_) => cfg!(feature = "postgres"),
            Self::Redis(_) => cfg!(feature = "redis"),
        };
        if built_in {
            return Ok(self);
        }
        let kind = self.kind();
        Err(format!(
            "a store that this reprise was built with; for this one build it with the feature {kind}: \
             `cargo install --path . --features cli,{kind}`"
        ))
    }

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
            Self::Postgres(url) => {
                let (url, pooled) = behind_pooler(&url);
                let store = PostgresStore::builder(url).transaction_pooling(pooled);
                Kind::Postgres(store.connect().await?)
            }
            #[cfg(feature = "redis")]
            Self::Redis(url) => Kind::Redis(RedisStore::connect(url).await?),
            #[cfg(not(all(feature = "postgres", feature = "redis")))]
            _ => unreachable!("`built_in` refused it when it was read"),
        };
        Ok(Store {
            kind,
            executing: Arc::default(),
        })
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

/// Returns the address without the parameter `transaction_pooling=true`, which the server does not know,
/// and whether it was there.
#[cfg(feature = "postgres")]
fn behind_pooler(url: &str) -> (String, bool) {
    let Some((address, query)) = url.split_once('?') else {
        return (url.to_owned(), false);
    };
    let (ours, theirs): (Vec<_>, Vec<_>) = query
        .split('&')
        .partition(|parameter| *parameter == "transaction_pooling=true");
    let url = match &*theirs.join("&") {
        "" => address.to_owned(),
        query => format!("{address}?{query}"),
    };
    (url, !ours.is_empty())
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

    /// Forgets an operation whose settlement the store took.
    fn settled<T>(&self, key: RecordKey, settled: Result<T, StoreError>) -> Result<T, StoreError> {
        settled.inspect(|_| _ = self.lock().remove(&key))
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

/// Implements verbs by those of the store that was chosen.
macro_rules! forward {
    ($($verb:ident($($name:ident: $of:ty),*) -> $done:ty;)*) => {
        $(async fn $verb(&self, $($name: $of),*) -> Result<$done, StoreError> {
            each!(self, store => store.$verb($($name),*))
        })*
    };
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
        self.settled(key, suspended)
    }

    async fn complete(
        &self,
        key: RecordKey,
        token: FencingToken,
        stored: Stored,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let completed = each!(self, store => store.complete(key, token, stored, retention));
        self.settled(key, completed)
    }

    async fn release(&self, key: RecordKey, token: FencingToken) -> Result<Ownership, StoreError> {
        let released = each!(self, store => store.release(key, token));
        self.settled(key, released)
    }

    forward! {
        unknown_outcomes(after: Option<OutcomeCursor>, limit: u32) -> OutcomePage;
        unknown_outcome(key: RecordKey) -> Option<UnknownOutcome>;
        resolve(key: RecordKey, token: FencingToken, resolution: Resolution) -> Resolved;
    }
}

impl Journal for Store {
    forward! {
        enqueue(entry: NewEntry) -> Enqueued;
        enqueue_many(entries: Vec<NewEntry>) -> Vec<Enqueued>;
        lanes(queue: &str, after: Option<&str>, limit: u32) -> Vec<String>;
        lease(want: LeaseRequest) -> Vec<Entry>;
        extend(id: EntryId, turn: LeaseToken, lease: Duration) -> Ownership;
        settle(id: EntryId, turn: LeaseToken, settle: Settlement) -> Ownership;
        bury(entry: NewEntry, attempts: u32, settle: Settlement) -> Enqueued;
        command(id: EntryId, command: EntryCommand) -> Option<CommandResult>;
        erase(queue: &str, owner: &str, limit: u32) -> Erased;
        find(id: EntryId) -> Option<Entry>;
        find_duplicate(queue: &str, key: RecordKey) -> Option<Duplicate>;
        list(query: Query) -> Vec<Entry>;
        count(query: Query) -> u32;
        counts(queue: &str) -> Counts;
        position(id: EntryId, limit: u32) -> Option<u32>;
        secret() -> [u8; 32];
    }

    fn watch(&self, queue: &str, wake: &Arc<Notify>) {
        match &self.kind {
            Kind::Memory(store) => store.watch(queue, wake),
            Kind::Sqlite(store) => store.watch(queue, wake),
            #[cfg(feature = "postgres")]
            Kind::Postgres(store) => store.watch(queue, wake),
            #[cfg(feature = "redis")]
            Kind::Redis(store) => store.watch(queue, wake),
        }
    }
}
