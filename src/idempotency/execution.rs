use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::store::{FencingToken, Lease, RecordKey};

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
