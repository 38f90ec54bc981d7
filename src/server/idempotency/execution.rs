use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{Response, response};
use tokio::sync::{Mutex, MutexGuard};

use super::{engine::Engine, settings::LayerState};
use crate::{
    http::{header_filter::HeaderFilter, reply},
    server::dialect::Dialect,
    store::{FencingToken, IdempotencyStore, Lease, RecordKey, StoreError, Stored},
};

/// One execution of an operation, on the extensions of the request that is executed.
///
/// A process that is stopped for longer than its lease, and then goes on, does not know that
/// another one took over. A handler can guard its writes all the same: hand the
/// [`token`](Execution::token) on, and let the database reject a smaller one than the last.
#[derive(Clone)]
pub struct Execution(Arc<Inner>);

struct Inner {
    encoder: Arc<dyn EncodeReply>,
    key: RecordKey,
    lease: Lease,
    retention: Duration,
    lost: AtomicBool,
    /// Whether the lease may be renewed. Locked while a renewal is under way, and while the execution
    /// is suspended: a renewal that came after would end the hold with its lease.
    renewable: Mutex<bool>,
}

impl Execution {
    pub(super) fn new(
        encoder: Arc<dyn EncodeReply>,
        key: RecordKey,
        lease: Lease,
        retention: Duration,
    ) -> Self {
        Self(Arc::new(Inner {
            encoder,
            key,
            lease,
            retention,
            lost: AtomicBool::new(false),
            renewable: Mutex::new(true),
        }))
    }

    /// Returns the key of the operation's record.
    #[must_use]
    pub fn key(&self) -> RecordKey {
        self.0.key
    }

    /// Encodes a reply as the layer stores it, for a handler that commits it together with its
    /// effect: with `PostgresStore::complete_in`, under this execution's key and token. The handler
    /// then returns the same response, and repeats get it too, even if this process ends right after
    /// the commit.
    ///
    /// # Errors
    ///
    /// The layer's store is sealed, and the reply can't be.
    pub fn stored<B: AsRef<[u8]>>(&self, response: &Response<B>) -> Result<Stored, StoreError> {
        let (mut parts, ()) = Response::new(()).into_parts();
        parts.status = response.status();
        parts.headers = response.headers().clone();
        self.0
            .encoder
            .encode_reply(self.0.key, &parts, response.body().as_ref())
    }

    /// Returns how long the reply is stored.
    #[must_use]
    pub fn retention(&self) -> Duration {
        self.0.retention
    }

    /// Returns the fencing token, greater than that of every execution before.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.0.lease.token
    }

    /// Returns whether an execution before this one may have taken effect: it vanished, or did not
    /// know its [`HandlerOutcome`](super::HandlerOutcome).
    #[must_use]
    pub fn is_orphan(&self) -> bool {
        self.0.lease.orphaned
    }

    /// Returns whether it is known that another execution took over. It may not be known yet: guard
    /// what matters with the [`token`](Execution::token).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.lost.load(Ordering::Relaxed)
    }

    pub(super) fn lose(&self) {
        self.0.lost.store(true, Ordering::Relaxed);
    }

    /// Waits for the end of a renewal or suspension that is under way.
    pub(super) async fn renewable(&self) -> MutexGuard<'_, bool> {
        self.0.renewable.lock().await
    }
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Execution")
            .field("key", &self.key())
            .field("lease", &self.0.lease)
            .field("retention", &self.retention())
            .field("lost", &self.is_lost())
            .finish()
    }
}

/// Encodes replies as they are stored.
pub(super) trait EncodeReply: Send + Sync {
    fn encode_reply(
        &self,
        key: RecordKey,
        head: &response::Parts,
        body: &[u8],
    ) -> Result<Stored, StoreError>;
}

impl<St: IdempotencyStore> EncodeReply for Engine<St> {
    fn encode_reply(
        &self,
        key: RecordKey,
        head: &response::Parts,
        body: &[u8],
    ) -> Result<Stored, StoreError> {
        let reply = reply::encode(head, None, body, &HeaderFilter::default());
        self.store.as_stored(key, Stored::Reply(reply))
    }
}

impl<St: IdempotencyStore, D: Dialect> EncodeReply for LayerState<St, D> {
    fn encode_reply(
        &self,
        key: RecordKey,
        head: &response::Parts,
        body: &[u8],
    ) -> Result<Stored, StoreError> {
        let reply = reply::encode(head, None, body, &self.settings.stored_headers);
        self.engine.store.as_stored(key, Stored::Reply(reply))
    }
}
