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
    Claim, Claimed, FencingToken, IdempotencyStore, Ownership, RecordKey, StoreError, Stored,
};
use crate::error::ConfigError;

/// Records in the memory of this process. Nothing to set up, and nothing that outlives a restart:
/// a request that is repeated after one is executed again.
///
/// It is bounded, and a record that is not past its time is never dropped: when there is no room,
/// new operations are refused. Records past their time are removed as others come in, a shard at a
/// time. It runs on tokio's clock.
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
    /// Room for 1,000,000 records and 256 MiB of replies, and for 100,000 entries and as many bytes
    /// in the journal.
    #[must_use]
    pub fn new() -> Self {
        Self::bounded(&MemoryStoreBuilder::new())
    }

    /// Room for as much as you say.
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

    /// How many records there are, with those past their time that were not removed yet.
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

    /// The most records at a time. Each costs about 150 bytes, its note and its reply.
    pub fn max_records(mut self, max_records: u64) -> Self {
        self.max_records = max_records;
        self
    }

    /// The most entries of the journal at a time.
    pub fn max_entries(mut self, max_entries: u64) -> Self {
        self.max_entries = max_entries;
        self
    }

    /// The most bytes of replies, and of what the journal holds, at a time.
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// The store.
    ///
    /// # Errors
    ///
    /// No room for even one record, or for any reply.
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

#[allow(
    clippy::manual_async_fn,
    reason = "async fns would keep their arguments twice"
)]
impl IdempotencyStore for MemoryStore {
    fn claim(&self, claim: Claim) -> impl Future<Output = Result<Claimed, StoreError>> + Send {
        async move { self.inner.claim(&claim) }
    }

    fn renew(
        &self,
        key: RecordKey,
        token: FencingToken,
        lease: Duration,
        retention: Duration,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send {
        async move { Ok(self.inner.renew(&key, token, lease, retention)) }
    }

    fn complete(
        &self,
        key: RecordKey,
        token: FencingToken,
        stored: Stored,
        retention: Duration,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send {
        async move { self.inner.complete(&key, token, stored, retention) }
    }

    fn release(
        &self,
        key: RecordKey,
        token: FencingToken,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send {
        async move { Ok(self.inner.release(&key, token)) }
    }
}
