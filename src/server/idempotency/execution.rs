use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{Response, response};

use super::{Dialect, engine::Engine, settings::Shared};
use crate::http::{header_filter::Unstored, reply};
use crate::store::{FencingToken, IdempotencyStore, Lease, RecordKey, StoreError, Stored};

/// On the extensions of a request that is executed: this execution, among others of the same
/// operation.
///
/// A process that is stopped for longer than its lease, and then goes on, does not know that
/// another one took over. What a handler writes can be guarded all the same: hand the
/// [`token`](Execution::token) on, and let the database refuse what comes with a smaller one than
/// the last.
#[derive(Clone)]
pub struct Execution(Arc<Inner>);

struct Inner {
    keeps: Arc<dyn Keeps>,
    key: RecordKey,
    lease: Lease,
    retention: Duration,
    lost: AtomicBool,
}

impl Execution {
    pub(super) fn new(
        keeps: Arc<dyn Keeps>,
        key: RecordKey,
        lease: Lease,
        retention: Duration,
    ) -> Self {
        Self(Arc::new(Inner {
            keeps,
            key,
            lease,
            retention,
            lost: AtomicBool::new(false),
        }))
    }

    /// The name of the operation's record.
    #[must_use]
    pub fn key(&self) -> RecordKey {
        self.0.key
    }

    /// A reply as the layer stores it, for a handler that commits it together with its effect:
    /// with `PostgresStore::complete_in`, under this execution's key and token. Headers that are not
    /// to be stored are left out, and if the layer's store is sealed, so is this. The handler then
    /// returns the same response, and repeats get it too, even if this process ends right after
    /// the commit.
    ///
    /// # Errors
    ///
    /// It can't be sealed.
    pub fn stored<B: AsRef<[u8]>>(&self, response: &Response<B>) -> Result<Stored, StoreError> {
        let (mut parts, ()) = Response::new(()).into_parts();
        parts.status = response.status();
        parts.headers = response.headers().clone();
        self.0
            .keeps
            .stored(self.0.key, &parts, response.body().as_ref())
    }

    /// How long the reply is kept.
    #[must_use]
    pub fn retention(&self) -> Duration {
        self.0.retention
    }

    /// Greater than that of every execution before.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.0.lease.token
    }

    /// Whether an execution before this one may have taken effect: it vanished, or did not know
    /// its [`Outcome`](super::Outcome).
    #[must_use]
    pub fn is_orphan(&self) -> bool {
        self.0.lease.orphaned
    }

    /// Whether it is known that another execution took over. It may not be known yet: guard what
    /// matters with the [`token`](Execution::token).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.lost.load(Ordering::Relaxed)
    }

    pub(super) fn lose(&self) {
        self.0.lost.store(true, Ordering::Relaxed);
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

/// Makes replies what they are stored as.
pub(super) trait Keeps: Send + Sync {
    fn stored(
        &self,
        key: RecordKey,
        head: &response::Parts,
        body: &[u8],
    ) -> Result<Stored, StoreError>;
}

impl<St: IdempotencyStore> Keeps for Engine<St> {
    fn stored(
        &self,
        key: RecordKey,
        head: &response::Parts,
        body: &[u8],
    ) -> Result<Stored, StoreError> {
        let reply = reply::encode(head, None, body, &Unstored::default());
        self.store.as_stored(key, Stored::Reply(reply))
    }
}

impl<St: IdempotencyStore, D: Dialect> Keeps for Shared<St, D> {
    fn stored(
        &self,
        key: RecordKey,
        head: &response::Parts,
        body: &[u8],
    ) -> Result<Stored, StoreError> {
        let reply = reply::encode(head, None, body, &self.settings.unstored);
        self.engine.store.as_stored(key, Stored::Reply(reply))
    }
}
