mod journal;
mod queue;
mod shards;

#[cfg(reprise_loom)]
pub(crate) use self::shards::model as models;

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use self::{queue::MemoryQueue, shards::Shards};
use super::{
    Claim, ClaimId, Claimed, FencingToken, IdempotencyStore, OutcomeCursor, OutcomePage, Ownership,
    RecordKey, Resolution, Resolved, Stored, UnknownOutcome, verbs::verbs,
};
use crate::error::ConfigError;

/// Records and a queue in the memory of this process.
///
/// It needs no setup, and loses everything on restart: a request that is repeated after one is
/// executed again. Several processes need a store that they share.
///
/// The store is bounded and never drops a live record: when there is no room, new operations fail
/// with [`StoreErrorKind::Full`](super::StoreErrorKind::Full). Expired records are removed as others
/// come in, a shard at a time. Time is tokio's clock.
///
/// # Clone
///
/// Clones share the records.
///
/// ```
/// use tower_reprise::store::MemoryStore;
///
/// let store = MemoryStore::builder().max_records(10_000).max_bytes(64 << 20).build()?;
/// assert_eq!(store.len(), 0);
/// # Ok::<(), tower_reprise::error::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<Shards>,
    queue: Arc<Mutex<MemoryQueue>>,
}

impl MemoryStore {
    /// Creates a store for 1,000,000 records with 256 MiB of replies, and for 100,000 queue entries
    /// with 256 MiB of payloads.
    #[must_use]
    pub fn new() -> Self {
        Self::bounded(&MemoryStoreBuilder::new())
    }

    /// Creates a store with other limits.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder::new()
    }

    fn bounded(limits: &MemoryStoreBuilder) -> Self {
        Self {
            inner: Arc::new(Shards::new(limits.max_records, limits.max_bytes)),
            queue: Arc::new(Mutex::new(MemoryQueue::new(
                limits.max_entries,
                limits.max_bytes,
            ))),
        }
    }

    /// Returns the number of records, including expired ones that were not removed yet.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.records()
    }

    /// Whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("records", &self.len())
            .field("bytes", &self.inner.bytes())
            .finish_non_exhaustive()
    }
}

/// Builds a [`MemoryStore`].
#[derive(Debug, Clone)]
#[must_use]
pub struct MemoryStoreBuilder {
    max_records: u64,
    max_entries: u64,
    max_bytes: u64,
}

impl MemoryStoreBuilder {
    fn new() -> Self {
        Self {
            max_records: 1_000_000,
            max_entries: 100_000,
            max_bytes: 256 << 20,
        }
    }

    /// The maximum number of records; 1,000,000 by default. Each takes about 170 bytes, its note and
    /// its reply.
    pub fn max_records(mut self, max_records: u64) -> Self {
        self.max_records = max_records;
        self
    }

    /// The maximum number of queue entries; 100,000 by default.
    pub fn max_entries(mut self, max_entries: u64) -> Self {
        self.max_entries = max_entries;
        self
    }

    /// The maximum size of all replies, and of all queue entries, in bytes; 256 MiB each by default.
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// Creates the store.
    ///
    /// # Errors
    ///
    /// A limit is zero.
    pub fn build(self) -> Result<MemoryStore, ConfigError> {
        for (field, value) in [
            ("memory.max_records", self.max_records),
            ("memory.max_entries", self.max_entries),
            ("memory.max_bytes", self.max_bytes),
        ] {
            if value == 0 {
                return Err(ConfigError::new(None, field, value, "at least 1"));
            }
        }
        Ok(MemoryStore::bounded(&self))
    }
}

impl IdempotencyStore for MemoryStore {
    verbs! { self;
        claim(claim: Claim) -> Claimed = async move { self.inner.claim(&claim) };
        renew(key: RecordKey, token: FencingToken, lease: Duration, retention: Duration) -> Ownership
            = async move { Ok(self.inner.renew(&key, token, None, lease, retention)) };
        suspend(
            key: RecordKey, token: FencingToken, by: ClaimId, lease: Duration, retention: Duration
        ) -> Ownership
            = async move { Ok(self.inner.renew(&key, token, Some(by), lease, retention)) };
        complete(key: RecordKey, token: FencingToken, stored: Stored, retention: Duration)
            -> Ownership = async move { self.inner.complete(&key, token, stored, retention) };
        release(key: RecordKey, token: FencingToken) -> Ownership
            = async move { Ok(self.inner.release(&key, token)) };
        unknown_outcomes(after: Option<OutcomeCursor>, limit: u32) -> OutcomePage
            = async move { self.inner.unknown_outcomes(after, limit) };
        unknown_outcome(key: RecordKey) -> Option<UnknownOutcome>
            = async move { Ok(self.inner.unknown_outcome(&key)) };
        resolve(key: RecordKey, token: FencingToken, resolution: Resolution) -> Resolved
            = async move { self.inner.resolve(&key, token, resolution) };
    }
}
