//! Logs and metrics of queues, labelled by their names, which are the user's own and few.

use std::{fmt::Display, time::Duration};

/// Records how long after its due time an entry was leased.
pub(crate) fn leased(queue: &str, lag: Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!("journal_lag_seconds", "queue" => queue.to_owned()).record(lag);
}

/// Records that an entry was settled.
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

/// Counts a dead letter.
pub(crate) fn dead_letter(queue: &str) {
    #[cfg(feature = "metrics")]
    metrics::counter!("dlq_messages_total", "queue" => queue.to_owned()).increment(1);
}

/// Alerts people to a dead letter.
pub(crate) fn dead_letter_alert(queue: &str, id: impl Display, label: &str, cause: &str) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "tower_reprise", queue, entry = %id, label, cause, "dead letter");
}

/// Records that an alert hook failed.
pub(crate) fn alert_failed(queue: &str, id: impl Display) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "tower_reprise", queue, entry = %id, "alert of a dead letter failed");
}

/// Records that a promised callback became a dead letter.
pub(crate) fn callback_buried(queue: &str, replay: impl Display, cause: &'static str) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "tower_reprise", queue, %replay, cause, "callback can't be sent");
}

/// Records that the journal failed.
pub(crate) fn journal_trouble(verb: &'static str, kind: &'static str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "tower_reprise", verb, error_type = kind, "journal failed");
    #[cfg(feature = "metrics")]
    metrics::counter!("journal_errors_total", "verb" => verb, "kind" => kind).increment(1);
}

/// Records that an entry's lease was lost to another worker.
pub(crate) fn turn_lost(queue: &str, id: impl Display) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "tower_reprise", queue, entry = %id, "lease lost to another worker");
}

/// Records that a worker shut down before the journal took its entries back.
pub(crate) fn not_given_back(queue: &str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "tower_reprise", queue, "not given back before the shutdown");
}

/// Returns whether queues are worth counting.
pub(crate) fn counts_queues() -> bool {
    cfg!(feature = "metrics")
}

/// Records the length of a queue by status, and the age of its oldest entry.
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
