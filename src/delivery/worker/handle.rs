use std::{borrow::Cow, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::timeout,
};

use crate::telemetry;

/// Wakes a worker of this process before its next poll.
///
/// # Clone
///
/// Clones wake the same worker.
#[derive(Debug, Clone, Default)]
pub struct WorkerNotifier(Arc<Notify>);

impl WorkerNotifier {
    /// Creates a notifier for [`WorkerBuilder::notifier`](super::WorkerBuilder::notifier).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the worker look for due entries.
    pub fn wake(&self) {
        self.0.notify_one();
    }

    pub(super) fn shared(&self) -> &Arc<Notify> {
        &self.0
    }

    pub(super) async fn notified(&self) {
        self.0.notified().await;
    }
}

/// The phases of a worker's life, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(super) enum Phase {
    Running,
    /// No handler is started any more.
    Draining,
    /// Handlers are cancelled and their entries released.
    Releasing,
}

/// A running worker.
///
/// Dropping it cancels all handlers, and other workers take over when the leases run out. Prefer
/// [`shutdown`](Self::shutdown).
#[derive(Debug)]
#[must_use = "a worker that is dropped stops"]
pub struct WorkerHandle {
    queue: Cow<'static, str>,
    notifier: WorkerNotifier,
    phase: watch::Sender<Phase>,
    task: JoinHandle<()>,
}

impl WorkerHandle {
    /// The longest that [`shutdown`](Self::shutdown) waits, after its grace, for the journal to
    /// take released entries.
    pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

    pub(super) fn new(
        queue: Cow<'static, str>,
        notifier: WorkerNotifier,
        phase: watch::Sender<Phase>,
        task: JoinHandle<()>,
    ) -> Self {
        Self {
            queue,
            notifier,
            phase,
            task,
        }
    }

    /// Makes the worker look for due entries.
    pub fn wake(&self) {
        self.notifier.wake();
    }

    pub(super) fn is_of(&self, queue: &str) -> bool {
        self.queue == queue
    }

    /// Starts no further handler, and waits up to `grace` for those that run. Cancels the rest and
    /// releases their entries for other workers.
    ///
    /// If the journal does not take them within [`RELEASE_TIMEOUT`](Self::RELEASE_TIMEOUT), other workers
    /// take over when the leases run out.
    pub async fn shutdown(mut self, grace: Duration) {
        self.phase.send_replace(Phase::Draining);
        if timeout(grace, &mut self.task).await.is_ok() {
            return;
        }
        self.phase.send_replace(Phase::Releasing);
        if timeout(Self::RELEASE_TIMEOUT, &mut self.task)
            .await
            .is_err()
        {
            telemetry::not_given_back(&self.queue);
        }
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}
