use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use crate::telemetry;

/// Waits for the work of a layer that goes on behind its callers' backs: executions whose caller
/// left, and settlements that the store has not taken yet. For a graceful shutdown, after the server
/// stopped.
///
/// ```
/// use std::time::Duration;
/// # use tower_reprise::{IdempotencyLayer, server::dialect::Scope, store::{CrashPolicy, MemoryStore}};
///
/// # async fn run() -> Result<(), tower_reprise::error::ConfigError> {
/// # let layer = IdempotencyLayer::builder(MemoryStore::new())
/// #     .scope(Scope::anonymous("everybody"))
/// #     .crash_policy(CrashPolicy::Unknown)
/// #     .build()?;
/// let drain = layer.drain();
/// // axum::serve(listener, app.layer(layer)).with_graceful_shutdown(signal).await?;
/// let left = drain.wait(Duration::from_secs(30)).await;
/// if !left.is_complete() {
///     eprintln!("{} executions, {} settlements were left", left.executions, left.settlements);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Drain {
    pub(super) pending: Arc<Pending>,
}

/// The work that was left when a [`Drain`] stopped waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Drained {
    /// Executions that were still running. If the process ends now, their keys are orphans, and the
    /// [`CrashPolicy`](crate::store::CrashPolicy) decides.
    pub executions: usize,
    /// Executions that ended, but whose record the store has not taken. If the process ends now,
    /// their keys are orphans too, although the outcome was known.
    pub settlements: usize,
}

impl Drained {
    /// Returns whether nothing was left.
    #[must_use]
    pub fn is_complete(self) -> bool {
        self == Self::default()
    }
}

impl Drain {
    /// Waits until no execution and no settlement is pending, for at most this time, and returns
    /// what is left. It does not keep new requests out: stop the server first.
    pub async fn wait(&self, grace: Duration) -> Drained {
        let until = Instant::now() + grace;
        loop {
            let mut changed = pin!(self.pending.ended.notified());
            // Registered before the look, so that no end is missed in between.
            changed.as_mut().enable();
            let left = self.pending.left();
            if left.is_complete() || timeout_at(until, changed).await.is_err() {
                return self.pending.left();
            }
        }
    }
}

/// The work of a layer that is not done yet.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    executions: AtomicUsize,
    settlements: AtomicUsize,
    ended: Notify,
}

impl Pending {
    fn left(&self) -> Drained {
        Drained {
            executions: self.executions.load(Ordering::SeqCst),
            settlements: self.settlements.load(Ordering::SeqCst),
        }
    }

    pub(super) fn execution(self: &Arc<Self>) -> PendingGuard {
        self.executions.fetch_add(1, Ordering::SeqCst);
        PendingGuard {
            pending: Arc::clone(self),
            settles: false,
        }
    }

    pub(super) fn settlement(self: &Arc<Self>) -> PendingGuard {
        self.settlements.fetch_add(1, Ordering::SeqCst);
        telemetry::waiting_settlements(1.0);
        PendingGuard {
            pending: Arc::clone(self),
            settles: true,
        }
    }
}

/// Counts one execution or settlement until it is dropped.
#[derive(Debug)]
pub(crate) struct PendingGuard {
    pending: Arc<Pending>,
    settles: bool,
}

impl Drop for PendingGuard {
    fn drop(&mut self) {
        let count = match self.settles {
            true => {
                telemetry::waiting_settlements(-1.0);
                &self.pending.settlements
            }
            false => &self.pending.executions,
        };
        count.fetch_sub(1, Ordering::SeqCst);
        self.pending.ended.notify_waiters();
    }
}
