use std::{future::Future, time::Duration};

use super::DeadLetter;
use crate::{
    backoff::{Backoff, FullJitter},
    delivery::worker::Handler,
    error::BoxError,
    store::journal::{Entry, EntryId, Journal, Settlement},
    telemetry,
};

const BACKOFF: FullJitter = FullJitter {
    base: Duration::from_secs(2),
    cap: Duration::from_secs(60 * 60),
};

/// The retention of a fired alert.
const KEEP: Duration = Duration::from_secs(60 * 60);

/// Announces a dead letter.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't announce a dead letter",
    note = "`LogAlert` writes a log event; for anything else implement `Alert`"
)]
pub trait Alert: Send + Sync + 'static {
    /// Announces the letter. Called again after an error, and sometimes twice for one letter.
    fn fire(&self, letter: &DeadLetter) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// Logs an error with the letter's id and [cause](DeadLetter::cause). The metric
/// `dlq_messages_total` counts letters whatever the alert.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogAlert;

impl Alert for LogAlert {
    async fn fire(&self, letter: &DeadLetter) -> Result<(), BoxError> {
        telemetry::dead_letter_alert(&letter.queue, letter.id, &letter.label, letter.cause());
        Ok(())
    }
}

/// The handler of [`DeadLetters::alerts`](super::DeadLetters::alerts), which fires alerts.
pub struct AlertHandler<J, A> {
    journal: J,
    alert: A,
}

impl<J, A> AlertHandler<J, A> {
    pub(super) fn new(journal: J, alert: A) -> Self {
        Self { journal, alert }
    }
}

opaque_debug! { AlertHandler<J, A> }

impl<J: Journal, A: Alert> Handler for AlertHandler<J, A> {
    async fn handle(&self, entry: Entry) -> Settlement {
        let Ok(id) = <[u8; 16]>::try_from(&*entry.payload).map(EntryId::new) else {
            return Settlement::failed("not an alert", super::KEEP);
        };
        if entry.is_past() {
            telemetry::alert_failed(&entry.label, id);
            return Settlement::expired(super::KEEP);
        }
        let retry = |why: &str| {
            let delay = BACKOFF.delay(entry.attempts, Duration::ZERO, rand::random());
            Settlement::retry(why, delay)
        };
        // Which letter it was of stays known.
        let done = || Settlement::completed("", KEEP).remainder(entry.payload.clone());
        let letter = match self.journal.find(id).await {
            Ok(Some(letter)) => letter,
            // The letter expired.
            Ok(None) => return done(),
            Err(error) => {
                telemetry::journal_trouble("find", error.kind().as_str());
                return retry("the journal failed");
            }
        };
        match self.alert.fire(&DeadLetter::of(letter)).await {
            Ok(()) => done(),
            Err(_) => retry("the alert failed"),
        }
    }
}
