use std::{
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::{JoinError, JoinHandle},
    time::{Instant, MissedTickBehavior, interval_at, sleep},
};

use super::{Admission, Handler, alert, handle::Phase, retries::Retries, slots::Slot};
use crate::{
    backoff::{Backoff, FullJitter},
    store::{
        Ownership,
        journal::{Entry, EntryId, Journal, LeaseToken, Settlement, SettlementOutcome},
    },
    telemetry,
};

/// The wait before an entry is leased again after its handler panicked.
const AFTER_PANIC: Duration = Duration::from_secs(5);

/// The waits between settlements that the journal does not take.
const BACKOFF: FullJitter = FullJitter {
    base: Duration::from_millis(100),
    cap: Duration::from_secs(10),
};

/// Handles and settles leased entries.
pub(super) struct Job<J, H> {
    pub(super) journal: Arc<J>,
    pub(super) handler: Arc<H>,
    pub(super) retries: Retries,
    pub(super) lease: Duration,
    pub(super) in_order: bool,
    /// One permit for each handler that may run at a time.
    pub(super) permits: Arc<Semaphore>,
    pub(super) phase: watch::Receiver<Phase>,
}

impl<J, H> Clone for Job<J, H> {
    fn clone(&self) -> Self {
        Self {
            journal: Arc::clone(&self.journal),
            handler: Arc::clone(&self.handler),
            retries: self.retries.clone(),
            lease: self.lease,
            in_order: self.in_order,
            permits: Arc::clone(&self.permits),
            phase: self.phase.clone(),
        }
    }
}

impl<J: Journal, H: Handler> Job<J, H> {
    /// Handles an entry, frees its slot, and settles it.
    pub(super) async fn run(self, entry: Entry, slot: Slot) {
        let (id, token, queue) = (entry.id, entry.lease_token, entry.queue.clone());
        let owner = entry.owner.clone();
        let in_order = self.in_order || self.handler.lane(&entry.lane).in_order;
        let handled = self.handle(entry);
        let settlement = self.with_lease(id, token, &queue, handled).await;
        let Some(mut settlement) = settlement else {
            return;
        };
        // The next entry of a lane in order can't be leased before this one is settled.
        let slot = match in_order {
            true => Some(slot),
            false => {
                drop(slot);
                None
            }
        };
        settlement.keeps_place = in_order;
        if let SettlementOutcome::Failed(keep) = settlement.outcome {
            settlement = settlement.followed_by(alert(&queue, id, &owner, keep));
        }
        // A journal that takes no settlements may still extend leases. Another worker would execute
        // the entry again.
        let settled = self.settle(&queue, id, token, settlement);
        self.with_lease(id, token, &queue, settled).await;
        drop(slot);
    }

    /// Calls the handler once there is a permit, or releases the entry.
    async fn handle(&self, entry: Entry) -> Settlement {
        let Some(_permit) = self.permit(&entry).await else {
            return Settlement::release(Duration::ZERO);
        };
        if let Err(pause) = self.retries.begin(&*self.handler, &entry) {
            return Settlement::release(pause);
        }
        let (handler, retries) = (Arc::clone(&self.handler), self.retries.clone());
        let handling = async move {
            // The payload is shared, and the history is not needed.
            let summary = Entry {
                history: Vec::new(),
                ..entry.clone()
            };
            let settlement = handler.handle(entry).await;
            retries.end(&*handler, &summary, &settlement);
            settlement
        };
        let mut handling = AbortOnDrop(tokio::spawn(telemetry::in_span(handling)));
        tokio::select! {
            handled = &mut handling => handled.unwrap_or_else(|error| not_handled(&error)),
            () = self.reached(Phase::Releasing) => {
                // No attempt: deployments must not use up the attempts of an entry.
                Settlement {
                    note: "interrupted by a shutdown".to_owned(),
                    ..Settlement::release(Duration::ZERO)
                }
            }
        }
    }

    /// Waits for a permit to run the handler. Returns `None` if, while it waited, the worker was
    /// told to stop, the entry expired, or the handler stopped admitting all.
    async fn permit(&self, entry: &Entry) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return Some(permit);
        }
        let leased = Instant::now();
        let permit = tokio::select! {
            biased;
            () = self.reached(Phase::Draining) => return None,
            permit = Arc::clone(&self.permits).acquire_owned() => permit,
        };
        let permit = permit.unwrap_or_else(|_| unreachable!("the semaphore is never closed"));
        let now = entry.changed_at.after(leased.elapsed());
        let in_time = entry.is_past() || now < entry.expires_at;
        (in_time && self.handler.admission() == Admission::All).then_some(permit)
    }

    /// Polls a future and extends the lease meanwhile. Returns `None` if the lease was lost.
    async fn with_lease<F: Future>(
        &self,
        id: EntryId,
        token: LeaseToken,
        queue: &str,
        future: F,
    ) -> Option<F::Output> {
        let every = self.lease / 3;
        let mut extension = interval_at(Instant::now() + every, every);
        extension.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut future = pin!(future);
        loop {
            tokio::select! {
                output = &mut future => return Some(output),
                _ = extension.tick() => {}
            }
            match self.journal.extend(id, token, self.lease).await {
                Ok(Ownership::Held) => {}
                Ok(Ownership::Lost) => {
                    telemetry::turn_lost(queue, id);
                    return None;
                }
                Err(error) => telemetry::journal_trouble("extend", error.kind().as_str()),
            }
        }
    }

    /// Waits for this phase or a later one.
    async fn reached(&self, at_least: Phase) {
        let mut phase = self.phase.clone();
        // The sender is gone when the handle was dropped, which aborts this task, too.
        if phase.wait_for(|phase| *phase >= at_least).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Settles an entry, again and again until the journal takes it or the lease is lost.
    async fn settle(&self, queue: &str, id: EntryId, token: LeaseToken, settlement: Settlement) {
        for n in 0.. {
            match self.journal.settle(id, token, settlement.clone()).await {
                Ok(Ownership::Held) => {
                    let outcome = settlement.outcome;
                    return telemetry::settled(queue, outcome.as_str(), outcome.is_failed());
                }
                Ok(Ownership::Lost) => return telemetry::turn_lost(queue, id),
                Err(error) => telemetry::journal_trouble("settle", error.kind().as_str()),
            }
            sleep(BACKOFF.delay(n, Duration::ZERO, rand::random())).await;
        }
    }
}

fn not_handled(error: &JoinError) -> Settlement {
    let why = if error.is_panic() {
        "its handler panicked"
    } else {
        "its handler was broken off"
    };
    Settlement::retry(why, AFTER_PANIC)
}

/// A task that is aborted when this is dropped.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
