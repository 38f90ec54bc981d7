//! Names, help texts and keys of metrics.

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit, counter,
};

use super::Target;
use crate::error::ConfigError;

/// The counter of the calls of retry loops.
pub(super) const CALLS: &str = "calls_total";

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

macro_rules! table {
    ($($kind:ident $name:tt $help:literal;)*) => { &[$(($name, Kind::$kind, $help)),*] };
}

/// Every metric of this crate, with its help text.
const METRICS: &[(&str, Kind, &str)] = table! {
    Counter CALLS "Calls of retry loops that ended, by outcome";
    Counter "retry_attempts_total" "Retries that went out, by number";
    Counter "retry_exhausted_total" "Calls that failed after their last retry, or for want of time";
    Counter "retry_suppressed" "Retries that the budget refused";
    Histogram "retry_backoff_duration_seconds" "Waits before retries";
    Gauge "retry_budget_utilization_ratio" "Share of the retry budget that is used, 0 to 1";
    Gauge "circuit_breaker_open" "1 while the breaker refuses calls, else 0";
    Counter "calls_refused_total"
        "Calls and retries that a layer refused before they were sent, by layer";
    Counter "hedges_total" "Second attempts of calls that were late, by result";
    Counter "hedges_suppressed_total" "Calls that were late and got no second attempt, by reason";
    Counter "idempotency_requests_total" "Requests with an idempotency key, by outcome";
    Counter "idempotency_store_errors_total"
        "Failures of the idempotency store, by operation and kind";
    Gauge "idempotency_unsettled"
        "Executions that ended and wait for the store to take their outcome";
    Counter "idempotency_leases_lost_total" "Executions whose lease another execution took over";
    Gauge "idempotency_store_fill"
        "Share of the limits of the store in memory that is used, 0 to 1";
    Gauge "postgres_connections_busy"
        "Share of the connections to PostgreSQL that are in use, 0 to 1";
    Histogram "store_batch_transitions" "Transitions that share a round trip to PostgreSQL or Redis";
    Counter "dlq_messages_total" "Dead letters";
    Counter "journal_outcomes_total" "Attempts of queue entries that were settled, by outcome";
    Counter "journal_errors_total" "Failures of the journal, by operation and kind";
    Gauge "journal_entries" "Entries of a queue, by status";
    Gauge "journal_oldest_age_seconds" "Age of the oldest entry of a queue that waits or runs";
    Histogram "journal_lag_seconds" "Time from when an entry is due to when a worker leases it";
};

/// Describes every metric to the recorder that is installed, for the help texts of its exporter.
pub fn describe() {
    metrics::with_recorder(|recorder| {
        for &(name, kind, help) in METRICS {
            let (name, help) = (KeyName::from_const_str(name), SharedString::const_str(help));
            match kind {
                Kind::Counter => recorder.describe_counter(name, None, help),
                Kind::Gauge => recorder.describe_gauge(name, None, help),
                Kind::Histogram => recorder.describe_histogram(name, None, help),
            }
        }
    });
}

/// A recorder that puts a prefix before the names of this crate's metrics, and of no others.
///
/// It makes a name each time a metric is recorded, calls that succeed included: two or three
/// allocations. Where that matters, let the scraper rename instead.
#[derive(Debug, Clone)]
pub struct Prefixed<R> {
    prefix: String,
    recorder: R,
}

impl<R> Prefixed<R> {
    /// Puts `prefix` and an underscore before each name.
    ///
    /// # Errors
    ///
    /// Returns an error if the prefix is not a letter followed by letters, digits and underscores.
    pub fn new(prefix: &str, recorder: R) -> Result<Self, ConfigError> {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if !prefix.starts_with(|first: char| first.is_ascii_alphabetic())
            || !prefix.bytes().all(is_word)
        {
            let allowed = "a letter, then letters, digits and underscores";
            return Err(ConfigError::new(None, "prefix", prefix, allowed));
        }
        Ok(Self {
            prefix: prefix.to_owned(),
            recorder,
        })
    }

    fn name(&self, name: &str) -> KeyName {
        format!("{}_{name}", self.prefix).into()
    }

    fn described(&self, name: KeyName) -> KeyName {
        match METRICS.iter().any(|(known, ..)| *known == name.as_str()) {
            true => self.name(name.as_str()),
            false => name,
        }
    }

    /// Returns the key under which a metric is recorded, if it is one of this crate's.
    fn key(&self, key: &Key, metadata: &Metadata<'_>) -> Option<Key> {
        let path = metadata.target().strip_prefix(env!("CARGO_CRATE_NAME"))?;
        let ours = path.is_empty() || path.starts_with("::");
        ours.then(|| Key::from_parts(self.name(key.name()), key.labels()))
    }
}

impl<R: Recorder> Recorder for Prefixed<R> {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.recorder
            .describe_counter(self.described(name), unit, help);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.recorder
            .describe_gauge(self.described(name), unit, help);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.recorder
            .describe_histogram(self.described(name), unit, help);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        let prefixed = self.key(key, metadata);
        self.recorder
            .register_counter(prefixed.as_ref().unwrap_or(key), metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        let prefixed = self.key(key, metadata);
        self.recorder
            .register_gauge(prefixed.as_ref().unwrap_or(key), metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        let prefixed = self.key(key, metadata);
        self.recorder
            .register_histogram(prefixed.as_ref().unwrap_or(key), metadata)
    }
}

pub(super) fn labels(target: Target<'_>) -> Vec<Label> {
    vec![
        Label::new("service", target.service.to_owned()),
        Label::new("dependency", target.dependency.to_owned()),
    ]
}

pub(super) fn of(
    target: Target<'_>,
    name: &'static str,
    extra: Option<(&'static str, &'static str)>,
) {
    let mut labels = labels(target);
    labels.extend(extra.map(|(key, value)| Label::from_static_parts(key, value)));
    counter!(name, labels).increment(1);
}

/// Returns an attempt number as a label: one of ten, or `more`.
pub(super) fn number(attempt: u32) -> &'static str {
    const NUMBERS: [&str; 10] = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"];
    let index = usize::try_from(attempt)
        .unwrap_or(usize::MAX)
        .wrapping_sub(1);
    NUMBERS.get(index).copied().unwrap_or("more")
}
