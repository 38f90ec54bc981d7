use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    sync::watch,
    task::{JoinError, JoinHandle},
    time::{Instant, MissedTickBehavior, interval_at, sleep},
};

use super::{Handler, Phase};
use crate::{
    backoff::{Backoff, FullJitter},
    delivery::dead_letter,
    store::{
        Ownership,
        journal::{Entry, EntryId, Journal, Outcome, Settle, Turn},
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
    pub(super) phase: watch::Receiver<Phase>,
}

impl<J, H> Clone for Job<J, H> {
    fn clone(&self) -> Self {
        Self {
            journal: Arc::clone(&self.journal),
            handler: Arc::clone(&self.handler),
            lease: self.lease,
            phase: self.phase.clone(),
        }
    }
}

impl<J: Journal, H: Handler> Job<J, H> {
    /// Has an entry handled, and tells the journal how that ended.
    pub(super) async fn run(mut self, entry: Entry) {
        let (id, turn, queue) = (entry.id, entry.turn, entry.queue.clone());
        let owner = entry.owner.clone();
        let handler = Arc::clone(&self.handler);
        let handling = async move { handler.handle(entry).await };
        let mut handling = Owned(tokio::spawn(telemetry::in_span(handling)));
        let every = self.lease / 3;
        let mut beat = interval_at(Instant::now() + every, every);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let settle = loop {
            tokio::select! {
                handled = &mut handling => break handled.unwrap_or_else(|error| failed(&error)),
                _ = beat.tick() => {
                    let extended = self.journal.extend(id, turn, self.lease).await;
                    match extended {
                        Ok(Ownership::Held) => {}
                        Ok(Ownership::Lost) => {
                            telemetry::turn_lost(&queue, id);
                            return;
                        }
                        Err(error) => telemetry::journal_trouble("extend", error.kind()),
                    }
                }
                () = gives_back(&mut self.phase) => {
                    break Settle::retry("interrupted by a shutdown", Duration::ZERO);
                }
            }
        };
        drop(handling);
        let settle = match settle.outcome {
            Outcome::Failed(keep) => {
                let alert = dead_letter::alert(&queue, id, &owner, keep);
                settle.followed_by(alert)
            }
            _ => settle,
        };
        self.settle(&queue, id, turn, settle).await;
    }

    async fn settle(&self, queue: &str, id: EntryId, turn: Turn, settle: Settle) {
        for n in 0..MAX_SETTLES {
            match self.journal.settle(id, turn, settle.clone()).await {
                Ok(Ownership::Held) => return telemetry::settled(queue, settle.outcome),
                Ok(Ownership::Lost) => return telemetry::turn_lost(queue, id),
                Err(error) => telemetry::journal_trouble("settle", error.kind()),
            }
            sleep(PAUSE.delay(n, Duration::ZERO, rand::random())).await;
        }
        telemetry::unsettled(queue, id);
    }
}

fn failed(error: &JoinError) -> Settle {
    let why = if error.is_panic() {
        "its handler panicked"
    } else {
        "its handler was broken off"
    };
    Settle::retry(why, AFTER_PANIC)
}

async fn gives_back(phase: &mut watch::Receiver<Phase>) {
    // If nobody can say so any more, this task is broken off as well.
    if phase
        .wait_for(|phase| *phase == Phase::GivingBack)
        .await
        .is_err()
    {
        std::future::pending::<()>().await;
    }
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
