use std::{
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::{JoinError, JoinHandle},
    time::{Instant, Interval, MissedTickBehavior, interval_at, sleep},
};

use super::{Admits, Handler, Phase, alert, slots::Slot};
use crate::{
    backoff::{Backoff, FullJitter},
    store::{
        Ownership,
        journal::{Entry, EntryId, Journal, LeaseToken, Settlement, SettlementOutcome},
    },
    telemetry,
};

/// How long to wait after a handler panicked.
const AFTER_PANIC: Duration = Duration::from_secs(5);

/// How the journal is told again how an entry ended, when it did not listen.
const PAUSE: FullJitter = FullJitter {
    base: Duration::from_millis(100),
    cap: Duration::from_secs(10),
};
/// About ten minutes.
const MAX_SETTLES: u32 = 120;

/// One entry after the other.
pub(super) struct Job<J, H> {
    pub(super) journal: Arc<J>,
    pub(super) handler: Arc<H>,
    pub(super) lease: Duration,
    /// As many as may be handled at a time.
    pub(super) places: Arc<Semaphore>,
    pub(super) phase: watch::Receiver<Phase>,
}

impl<J, H> Clone for Job<J, H> {
    fn clone(&self) -> Self {
        Self {
            journal: Arc::clone(&self.journal),
            handler: Arc::clone(&self.handler),
            lease: self.lease,
            places: Arc::clone(&self.places),
            phase: self.phase.clone(),
        }
    }
}

impl<J: Journal, H: Handler> Job<J, H> {
    /// Has an entry handled, and tells the journal how that ended. Its slot is free by then.
    pub(super) async fn run(self, entry: Entry, slot: Slot) {
        let (id, lease_token, queue) = (entry.id, entry.lease_token, entry.queue.clone());
        let owner = entry.owner.clone();
        let every = self.lease / 3;
        let mut beat = interval_at(Instant::now() + every, every);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = {
            let ended = pin!(self.ended(entry));
            self.held(id, lease_token, &queue, &mut beat, ended).await
        };
        drop(slot);
        let Some(settle) = ended else {
            return;
        };
        let settle = match settle.outcome {
            SettlementOutcome::Failed(keep) => {
                let alert = alert(&queue, id, &owner, keep);
                settle.followed_by(alert)
            }
            _ => settle,
        };
        self.settle(&queue, id, lease_token, settle).await;
    }

    /// How it ended, if it was begun at all.
    async fn ended(&self, entry: Entry) -> Settlement {
        let Some(_place) = self.place(&entry).await else {
            return Settlement::release(Duration::ZERO);
        };
        let handler = Arc::clone(&self.handler);
        let handling = async move { handler.handle(entry).await };
        let mut handling = Owned(tokio::spawn(telemetry::in_span(handling)));
        tokio::select! {
            handled = &mut handling => handled.unwrap_or_else(|error| failed(&error)),
            () = self.is(Phase::GivingBack) => {
                Settlement::retry("interrupted by a shutdown", Duration::ZERO)
            }
        }
    }

    /// A place among those that are handled; `None` if it had to be waited for, and meanwhile
    /// nothing is to be begun any more, or not this.
    async fn place(&self, entry: &Entry) -> Option<OwnedSemaphorePermit> {
        let places = Arc::clone(&self.places);
        if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            return Some(place);
        }
        let leased = Instant::now();
        let place = tokio::select! {
            biased;
            () = self.is(Phase::Finishing) => return None,
            place = places.acquire_owned() => place.ok()?,
        };
        let now = entry.changed_at.after(leased.elapsed());
        let in_time = entry.is_past() || now < entry.expires_at;
        (in_time && self.handler.admits() == Admits::All).then_some(place)
    }

    /// Waits with the lease extended; `None` if it was lost.
    async fn held<F: Future>(
        &self,
        id: EntryId,
        lease_token: LeaseToken,
        queue: &str,
        beat: &mut Interval,
        mut future: Pin<&mut F>,
    ) -> Option<F::Output> {
        loop {
            tokio::select! {
                output = &mut future => return Some(output),
                _ = beat.tick() => {}
            }
            match self.journal.extend(id, lease_token, self.lease).await {
                Ok(Ownership::Held) => {}
                Ok(Ownership::Lost) => {
                    telemetry::turn_lost(queue, id);
                    return None;
                }
                Err(error) => telemetry::journal_trouble("extend", error.kind().as_str()),
            }
        }
    }

    /// Waits until it is so far.
    async fn is(&self, at_least: Phase) {
        let mut phase = self.phase.clone();
        // If nobody can say so any more, this task is broken off as well.
        if phase.wait_for(|phase| *phase >= at_least).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn settle(&self, queue: &str, id: EntryId, lease_token: LeaseToken, settle: Settlement) {
        for n in 0..MAX_SETTLES {
            match self.journal.settle(id, lease_token, settle.clone()).await {
                Ok(Ownership::Held) => {
                    return telemetry::settled(
                        queue,
                        settle.outcome.as_str(),
                        settle.outcome.is_failed(),
                    );
                }
                Ok(Ownership::Lost) => return telemetry::turn_lost(queue, id),
                Err(error) => telemetry::journal_trouble("settle", error.kind().as_str()),
            }
            sleep(PAUSE.delay(n, Duration::ZERO, rand::random())).await;
        }
        telemetry::unsettled(queue, id);
    }
}

fn failed(error: &JoinError) -> Settlement {
    let why = if error.is_panic() {
        "its handler panicked"
    } else {
        "its handler was broken off"
    };
    Settlement::retry(why, AFTER_PANIC)
}

/// A task that ends when nobody waits for it.
struct Owned<T>(JoinHandle<T>);

impl<T> Future for Owned<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
