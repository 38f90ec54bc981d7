use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use http::Response;

use super::{hygiene::Unstored, reply};
use crate::store::{FencingToken, Lease, RecordKey, Stored};

/// On the extensions of a request that is executed: this execution, among others of the same
/// operation.
///
/// A process that is stopped for longer than its lease, and then goes on, does not know that
/// another one took over. What a handler writes can be guarded all the same: hand the
/// [`token`](Execution::token) on, and let the database refuse what comes with a smaller one than
/// the last.
#[derive(Debug, Clone)]
pub struct Execution(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    key: RecordKey,
    lease: Lease,
    lost: AtomicBool,
}

impl Execution {
    pub(super) fn new(key: RecordKey, lease: Lease) -> Self {
        Self(Arc::new(Inner {
            key,
            lease,
            lost: AtomicBool::new(false),
        }))
    }

    /// The name of the operation's record.
    #[must_use]
    pub fn key(&self) -> RecordKey {
        self.0.key
    }

    /// A reply as the layer stores it, for a handler that commits it together with its effect:
    /// with `PostgresStore::complete_in`, under this execution's key and token. The handler then
    /// returns the same response, and repeats get it too, even if this process ends right after
    /// the commit.
    #[must_use]
    pub fn stored<B: AsRef<[u8]>>(&self, response: &Response<B>) -> Stored {
        let (mut parts, ()) = Response::new(()).into_parts();
        parts.status = response.status();
        parts.headers = response.headers().clone();
        let bytes: Bytes =
            reply::encode(&parts, None, response.body().as_ref(), &Unstored::default());
        Stored::Reply(bytes)
    }

    /// Greater than that of every execution before.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.0.lease.token
    }

    /// Whether an execution before this one vanished, and may have taken effect.
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
