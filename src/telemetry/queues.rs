//! What is logged and counted of queues. Names of queues are the user's own, and few.

use std::time::Duration;

use crate::store::{
    StoreErrorKind,
    journal::{Counts, EntryId, Outcome},
};

/// An entry was leased so long after it was due.
pub(crate) fn leased(queue: &str, lag: Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!("journal_lag_seconds", "queue" => queue.to_owned()).record(lag);
}

/// The journal knows how an entry ended.
pub(crate) fn settled(queue: &str, outcome: Outcome) {
    let name = match outcome {
        Outcome::Completed(_) => "completed",
        Outcome::Failed(_) => "failed",
        Outcome::Expired(_) => "expired",
        Outcome::Retry(_) => "retry",
        Outcome::Release(_) => "released",
    };
    #[cfg(feature = "metrics")]
    {
        metrics::counter!("journal_outcomes_total", "queue" => queue.to_owned(), "outcome" => name)
            .increment(1);
    }
    #[cfg(feature = "tracing")]
    tracing::debug!(target: "tower_reprise", queue, outcome = name, "settled");
    if matches!(outcome, Outcome::Failed(_)) {
        dead_letter(queue);
    }
}

/// A message is among the dead letters.
pub(crate) fn dead_letter(queue: &str) {
    #[cfg(feature = "metrics")]
    metrics::counter!("dlq_messages_total", "queue" => queue.to_owned()).increment(1);
}

/// Somebody should look at a dead letter.
pub(crate) fn dead_letter_alert(queue: &str, id: EntryId, label: &str, cause: &str) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "tower_reprise", queue, entry = %id, label, cause, "dead letter");
}

/// Nobody could be told of a dead letter.
pub(crate) fn alert_failed(queue: &str, id: EntryId) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "tower_reprise", queue, entry = %id, "alert of a dead letter failed");
}

/// A callback that was promised can't be sent, and is a dead letter.
pub(crate) fn callback_buried(queue: &str, replay: EntryId, cause: &'static str) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "tower_reprise", queue, %replay, cause, "callback can't be sent");
}

/// The journal failed.
pub(crate) fn journal_trouble(verb: &'static str, kind: StoreErrorKind) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "tower_reprise", verb, error_type = kind.as_str(), "journal failed");
    #[cfg(feature = "metrics")]
    metrics::counter!("journal_errors_total", "verb" => verb, "kind" => kind.as_str()).increment(1);
}

/// Another worker took an entry over.
pub(crate) fn turn_lost(queue: &str, id: EntryId) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "tower_reprise", queue, entry = %id, "lease lost to another worker");
}

/// The journal could not be told how an entry ended: it will be attempted again.
pub(crate) fn unsettled(queue: &str, id: EntryId) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "tower_reprise", queue, entry = %id, "outcome not stored");
}

/// A worker was shut down, and the journal could not be told in time what it gave back.
pub(crate) fn not_given_back(queue: &str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "tower_reprise", queue, "not given back before the shutdown");
}

/// Whether anybody wants to know how long queues are.
pub(crate) fn counts_queues() -> bool {
    cfg!(feature = "metrics")
}

/// How long a queue is.
pub(crate) fn queue(queue: &str, counts: &Counts) {
    #[cfg(feature = "metrics")]
    {
        use crate::store::journal::Status;

        for status in [Status::Queued, Status::Processing, Status::Failed] {
            let labels = [
                ("queue", queue.to_owned()),
                ("status", status.as_str().to_owned()),
            ];
            metrics::gauge!("journal_entries", &labels).set(counts.of(status) as f64);
        }
        let age = counts.oldest.unwrap_or_default();
        metrics::gauge!("journal_oldest_age_seconds", "queue" => queue.to_owned())
            .set(age.as_secs_f64());
    }
}
