//! What is logged and counted of queues. Names of queues are the user's own, and few.

use std::{fmt::Display, time::Duration};

/// An entry was leased so long after it was due.
pub(crate) fn leased(queue: &str, lag: Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!("journal_lag_seconds", "queue" => queue.to_owned()).record(lag);
}

/// The journal knows how an entry ended.
pub(crate) fn settled(queue: &str, outcome: &'static str, dead: bool) {
    #[cfg(feature = "metrics")]
    {
        metrics::counter!("journal_outcomes_total", "queue" => queue.to_owned(), "outcome" => outcome)
            .increment(1);
    }
    #[cfg(feature = "tracing")]
    tracing::debug!(target: "tower_reprise", queue, outcome, "settled");
    if dead {
        dead_letter(queue);
    }
}

/// A message is among the dead letters.
pub(crate) fn dead_letter(queue: &str) {
    #[cfg(feature = "metrics")]
    metrics::counter!("dlq_messages_total", "queue" => queue.to_owned()).increment(1);
}

/// Somebody should look at a dead letter.
pub(crate) fn dead_letter_alert(queue: &str, id: impl Display, label: &str, cause: &str) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "tower_reprise", queue, entry = %id, label, cause, "dead letter");
}

/// Nobody could be told of a dead letter.
pub(crate) fn alert_failed(queue: &str, id: impl Display) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "tower_reprise", queue, entry = %id, "alert of a dead letter failed");
}

/// A callback that was promised can't be sent, and is a dead letter.
pub(crate) fn callback_buried(queue: &str, replay: impl Display, cause: &'static str) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "tower_reprise", queue, %replay, cause, "callback can't be sent");
}

/// The journal failed.
pub(crate) fn journal_trouble(verb: &'static str, kind: &'static str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "tower_reprise", verb, error_type = kind, "journal failed");
    #[cfg(feature = "metrics")]
    metrics::counter!("journal_errors_total", "verb" => verb, "kind" => kind).increment(1);
}

/// Another worker took an entry over.
pub(crate) fn turn_lost(queue: &str, id: impl Display) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "tower_reprise", queue, entry = %id, "lease lost to another worker");
}

/// The journal could not be told how an entry ended: it will be attempted again.
pub(crate) fn unsettled(queue: &str, id: impl Display) {
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

/// How long a queue is, by status, and how old its oldest entry.
pub(crate) fn queue<const N: usize>(queue: &str, counts: [(&'static str, u64); N], age: Duration) {
    #[cfg(feature = "metrics")]
    {
        for (status, count) in counts {
            let labels = [("queue", queue.to_owned()), ("status", status.to_owned())];
            metrics::gauge!("journal_entries", &labels).set(count as f64);
        }
        metrics::gauge!("journal_oldest_age_seconds", "queue" => queue.to_owned())
            .set(age.as_secs_f64());
    }
}
