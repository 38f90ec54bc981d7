//! Logs and metrics: what is written, under which names, and how to name and describe it.
//!
//! All of it goes to the recorder of the `metrics` facade and to the subscriber of `tracing` that the
//! application installs; without them it costs next to nothing. No body, token, cookie or query
//! string is ever in it. The [guide](crate::guide::operating) lists every metric and every event.
//!
//! Exporters show a help text for metrics that were described. Call `describe` once, after the recorder
//! is installed:
//!
#![cfg_attr(feature = "metrics", doc = "```")]
#![cfg_attr(not(feature = "metrics"), doc = "```rust,ignore")]
//! use metrics_exporter_prometheus::PrometheusBuilder;
//! use tower_reprise::telemetry;
//!
//! let recorder = PrometheusBuilder::new().build_recorder();
//! let scrape = recorder.handle();
//! // `calls_total` is `shop_calls_total` now. Metrics of others keep their names.
//! metrics::set_global_recorder(telemetry::Prefixed::new("shop", recorder)?)?;
//! telemetry::describe();
//! println!("{}", scrape.render());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
// Only this module knows whether the features are on. A call that succeeds is counted here, and
// nothing else.
#![cfg_attr(
    not(all(feature = "metrics", feature = "tracing")),
    allow(unused_variables)
)]

mod hedges;
mod labels;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "delivery")]
mod queues;
mod success;

use std::{fmt::Display, time::Duration};

pub(crate) use self::hedges::*;
#[cfg(feature = "metrics")]
use self::metrics as count;
#[cfg(feature = "metrics")]
pub use self::metrics::{Prefixed, describe};
#[cfg(feature = "delivery")]
pub(crate) use self::queues::*;
pub(crate) use self::{labels::Labels, success::SuccessCounter};
use crate::{
    call::{Cause, StopReason},
    error::Rule,
};

/// The labels of a dependency: the calling service and the one that is called.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(all(feature = "metrics", feature = "tracing")), allow(dead_code))]
pub(crate) struct Target<'a> {
    pub(crate) service: &'a str,
    pub(crate) dependency: &'a str,
}

/// Records that a retry was decided on and its wait begins.
pub(crate) fn retry<'a>(
    target: Target<'_>,
    attempt: u32,
    max_attempts: u32,
    wait: Duration,
    cause: impl Display,
    labels: impl FnOnce() -> Labels<'a>,
) {
    #[cfg(feature = "tracing")]
    if tracing::enabled!(target: "tower_reprise", tracing::Level::INFO) {
        let labels = labels();
        tracing::info!(
            target: "tower_reprise",
            correlation_id = labels.correlation_id.unwrap_or_default(),
            dependency = target.dependency,
            attempt,
            max_attempts,
            backoff_ms = wait.as_secs_f64() * 1000.0,
            error_type = %cause,
            idempotency_key = labels.idempotency_key.unwrap_or_default(),
            "retry {attempt} of {max_attempts}"
        );
    }
    #[cfg(feature = "metrics")]
    {
        count::of(
            target,
            "retry_attempts_total",
            Some(("attempt_number", count::number(attempt))),
        );
        ::metrics::histogram!("retry_backoff_duration_seconds", count::labels(target)).record(wait);
    }
}

/// Counts a call of a retry loop that ended otherwise than with a success at once.
pub(crate) fn call_ended(target: Target<'_>, outcome: &'static str) {
    #[cfg(feature = "metrics")]
    count::of(target, count::CALLS, Some(("outcome", outcome)));
}

/// Records that a call ended without success. `is_reply` says that the dependency replied.
pub(crate) fn stop_reason<'a>(
    target: Target<'_>,
    attempts: u32,
    reason: StopReason,
    cause: impl Display,
    is_reply: bool,
    labels: impl FnOnce() -> Labels<'a>,
) {
    #[cfg(feature = "tracing")]
    {
        macro_rules! event {
            ($level:expr) => {
                if tracing::enabled!(target: "tower_reprise", $level) {
                    tracing::event!(
                        target: "tower_reprise",
                        $level,
                        correlation_id = labels().correlation_id.unwrap_or_default(),
                        dependency = target.dependency,
                        attempts,
                        reason = reason.as_str(),
                        error_type = %cause,
                        "gave up"
                    );
                }
            };
        }
        // A reply that no retry would change, a 404 say, is the caller's business.
        match reason {
            StopReason::NotRetryable if is_reply => event!(tracing::Level::DEBUG),
            _ => event!(tracing::Level::WARN),
        }
    }
    #[cfg(feature = "metrics")]
    if matches!(reason, StopReason::Exhausted | StopReason::Deadline) {
        count::of(target, "retry_exhausted_total", None);
    }
}

/// Records that the budget refused a retry.
pub(crate) fn suppressed(target: Target<'_>) {
    #[cfg(feature = "tracing")]
    tracing::debug!(target: "tower_reprise", dependency = target.dependency, "retry suppressed: budget used up");
    #[cfg(feature = "metrics")]
    count::of(target, "retry_suppressed", None);
}

/// Records how much of the budget is used.
pub(crate) fn budget(target: Target<'_>, usage: Option<(u64, u64)>) {
    #[cfg(feature = "metrics")]
    if let Some((used, allowed)) = usage {
        let ratio = match allowed {
            0 => 1.0,
            _ => used as f64 / allowed as f64,
        };
        ::metrics::gauge!("retry_budget_utilization_ratio", count::labels(target)).set(ratio);
    }
}

/// Records that a breaker opened. The cause is that of the failure that opened it.
pub(crate) fn breaker_opened(target: Target<'_>, reason: &'static str, cause: Option<Cause>) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "tower_reprise",
        dependency = target.dependency,
        reason,
        error_type = cause.map(tracing::field::display),
        "circuit breaker opened"
    );
    #[cfg(feature = "metrics")]
    ::metrics::gauge!("circuit_breaker_open", count::labels(target)).set(1.0);
}

/// Records that a breaker closed.
pub(crate) fn breaker_closed(target: Target<'_>, reason: &'static str) {
    #[cfg(feature = "tracing")]
    tracing::info!(
        target: "tower_reprise",
        dependency = target.dependency,
        reason,
        "circuit breaker closed"
    );
    #[cfg(feature = "metrics")]
    ::metrics::gauge!("circuit_breaker_open", count::labels(target)).set(0.0);
}

/// Records that a dependency is no longer known: its gauges fall.
pub(crate) fn forgotten(target: Target<'_>, breaker: bool, budget: bool) {
    #[cfg(feature = "metrics")]
    {
        let gauges = [
            ("circuit_breaker_open", breaker),
            ("retry_budget_utilization_ratio", budget),
        ];
        for (name, _) in gauges.into_iter().filter(|(_, raised)| *raised) {
            ::metrics::gauge!(name, count::labels(target)).set(0.0);
        }
    }
}

/// Records that a layer refused a call. A retry loop above it warns of the call that it gives up.
pub(crate) fn refused(target: Target<'_>, by: &'static str, has_retry_loop: bool) {
    #[cfg(feature = "tracing")]
    match has_retry_loop {
        true => {
            tracing::debug!(target: "tower_reprise", dependency = target.dependency, by, "call refused");
        }
        false => {
            tracing::warn!(target: "tower_reprise", dependency = target.dependency, by, "call refused");
        }
    }
    #[cfg(feature = "metrics")]
    count::of(target, "calls_refused_total", Some(("by", by)));
}

/// Records that a policy was approved beyond a rule.
pub(crate) fn approved(service: &str, rule: Rule, reason: &str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "tower_reprise", service, %rule, reason, "policy approved beyond a rule");
}

/// Records that a registry got other policies.
pub(crate) fn reloaded(dependencies: usize) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: "tower_reprise", dependencies, "policies reloaded");
}

/// Records that a dependency shares the overflow entry, for want of room or for its name.
pub(crate) fn overflow(capacity: usize) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "tower_reprise",
        capacity,
        "no entry for a dependency, for want of room or for its name: such share one"
    );
}

/// Records that a retry was not sent because of its hook.
pub(crate) fn prepare_failed(target: Target<'_>, why: &'static str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "tower_reprise", dependency = target.dependency, why, "retry not sent");
}

/// The result of a request with an idempotency key.
#[cfg(feature = "server")]
#[derive(Debug, Clone, Copy)]
pub(crate) enum Answered {
    Executed,
    Replayed,
    InFlight,
    Mismatch,
    Refused,
    Orphaned,
    StoreError,
}

/// Records the result of a request with an idempotency key.
#[cfg(feature = "server")]
pub(crate) fn idempotency<'a>(answered: Answered, labels: impl FnOnce() -> Labels<'a>) {
    #[cfg(feature = "tracing")]
    if tracing::enabled!(target: "tower_reprise", tracing::Level::DEBUG) {
        let labels = labels();
        tracing::debug!(
            target: "tower_reprise",
            correlation_id = labels.correlation_id.unwrap_or_default(),
            outcome = ?answered,
            idempotency_key = labels.idempotency_key.unwrap_or_default(),
            "idempotency"
        );
    }
    #[cfg(feature = "metrics")]
    {
        // With a literal, the labels are made at compile time.
        macro_rules! counter {
            ($outcome:literal) => {
                ::metrics::counter!("idempotency_requests_total", "outcome" => $outcome)
            };
        }
        let counter = match answered {
            Answered::Executed => counter!("executed"),
            Answered::Replayed => counter!("replayed"),
            Answered::InFlight => counter!("in_flight"),
            Answered::Mismatch => counter!("mismatch"),
            Answered::Refused => counter!("refused"),
            Answered::Orphaned => counter!("orphaned"),
            Answered::StoreError => counter!("store_error"),
        };
        counter.increment(1);
    }
}

/// Records that a store failed.
#[cfg(feature = "server")]
pub(crate) fn store_trouble(verb: &'static str, kind: &'static str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "tower_reprise", verb, error_type = kind, "idempotency store failed");
    #[cfg(feature = "metrics")]
    ::metrics::counter!("idempotency_store_errors_total", "verb" => verb, "kind" => kind)
        .increment(1);
}

/// Records that the disk of a store is full, and that the room for outcomes is used.
#[cfg(feature = "sqlite")]
pub(crate) fn store_full(path: impl Display) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "tower_reprise", store = %path, "no room left, new operations refused");
}

/// Records that the file of a store is damaged.
#[cfg(feature = "sqlite")]
pub(crate) fn store_damaged(path: impl Display) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "tower_reprise", store = %path, "file damaged, every verb fails until it is opened again");
}

/// Records that an execution lost its lease to another one.
#[cfg(feature = "server")]
pub(crate) fn lease_lost(key: impl Display) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "tower_reprise", record = %key, "idempotency lease lost to another execution");
    #[cfg(feature = "metrics")]
    ::metrics::counter!("idempotency_leases_lost_total").increment(1);
}

/// Records how much of its limit a store uses, 0 to 1.
#[cfg(feature = "server")]
pub(crate) fn store_fill(share: impl FnOnce() -> f64) {
    #[cfg(feature = "metrics")]
    ::metrics::gauge!("idempotency_store_fill").set(share());
}

/// Records how many of the connections of a store are in use, 0 to 1.
#[cfg(feature = "postgres")]
pub(crate) fn store_connections(share: impl FnOnce() -> f64) {
    #[cfg(feature = "metrics")]
    ::metrics::gauge!("postgres_connections_busy").set(share());
}

/// Records how many transitions share a round trip to a store.
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) fn store_batch(transitions: usize) {
    #[cfg(feature = "metrics")]
    ::metrics::histogram!("store_batch_transitions").record(transitions as f64);
}

/// Records that an execution runs for so long that its lease is no longer renewed.
#[cfg(feature = "server")]
pub(crate) fn renewal_ended(key: impl Display) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "tower_reprise", record = %key, "execution takes too long, lease no longer renewed");
}

/// Counts settlements that wait for the store.
#[cfg(feature = "server")]
pub(crate) fn waiting_settlements(change: f64) {
    #[cfg(feature = "metrics")]
    ::metrics::gauge!("idempotency_unsettled").increment(change);
}

/// Records that a repeat was told that the outcome of its operation is unknown.
#[cfg(feature = "server")]
pub(crate) fn outcome_unknown<'a>(key: impl Display, labels: impl FnOnce() -> Labels<'a>) {
    #[cfg(feature = "tracing")]
    {
        let labels = labels();
        tracing::warn!(
            target: "tower_reprise",
            record = %key,
            correlation_id = labels.correlation_id.unwrap_or_default(),
            idempotency_key = labels.idempotency_key.unwrap_or_default(),
            "outcome unknown, to be resolved"
        );
    }
}

/// Records that somebody resolved an unknown outcome.
#[cfg(feature = "server")]
pub(crate) fn outcome_resolved(key: impl Display, finding: &'static str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "tower_reprise", record = %key, finding, "unknown outcome resolved");
}

/// Records that the result of an execution could not be stored.
#[cfg(feature = "server")]
pub(crate) fn settling_given_up(key: impl Display) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "tower_reprise", record = %key, "outcome not stored, operation orphaned");
}

/// Runs a future, on whatever task, in the current span.
#[cfg(all(feature = "server", feature = "tracing"))]
pub(crate) fn in_span<F: Future>(future: F) -> impl Future<Output = F::Output> {
    tracing::Instrument::in_current_span(future)
}

#[cfg(all(feature = "server", not(feature = "tracing")))]
pub(crate) fn in_span<F: Future>(future: F) -> F {
    future
}
