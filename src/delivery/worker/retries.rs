use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{ALERTS, Handler};
use crate::{
    call::StopReason,
    dependency::Dependencies,
    error::ConfigError,
    policy::Policy,
    store::journal::{Entry, EventKind, Settlement, SettlementOutcome},
    telemetry::{self, Labels},
};

/// The pause of an entry whose target has used up its retry budget: about as long as the budget
/// looks back.
const BUDGET_PAUSE: Duration = Duration::from_secs(30);

/// The targets whose last probe is remembered before old ones are dropped.
const MAX_PROBES: usize = 1024;

/// The ids of an entry in the logs of its retries, and how many attempts it has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptLabels {
    /// The most attempts; 0 if there is no bound.
    pub max_attempts: u32,
    /// The id that ties the entry to the request or event that it came from.
    pub correlation_id: Option<String>,
    /// The key under which attempts are one operation.
    pub idempotency_key: Option<String>,
}

/// Counts, logs and limits the retries of a worker, as those of clients are.
#[derive(Clone)]
pub(super) struct Retries {
    registry: Dependencies,
    /// When a retry went out to a target that has used up its budget. One does in each pause:
    /// successes earn the budget of a quiet target, and without it there would be none after an
    /// outage.
    probed: Arc<Mutex<HashMap<String, Instant>>>,
    /// A dead-letter queue that a policy names.
    pub(super) dead_letters: Option<String>,
}

impl Retries {
    /// Finds targets in a registry.
    pub(super) fn new<C, L>(dependencies: &Dependencies<C, L>) -> Self {
        Self {
            registry: dependencies.by_name(),
            probed: Arc::default(),
            dead_letters: dependencies.dead_letters(),
        }
    }

    /// Tells the registry that the dead letters of a queue are served, and whether they are announced.
    pub(super) fn serve(&self, queue: &str, alerted: bool) {
        let is_alerts = queue == ALERTS;
        let queue = (!is_alerts).then(|| queue.into());
        self.registry
            .serve_dead_letters(queue, alerted || is_alerts);
    }

    /// Reports how much of each budget is used now: without retries nothing else would.
    pub(super) fn measure(&self) {
        for dependency in self.registry.list() {
            dependency.refresh_budget();
        }
    }

    /// Finds targets in a registry of its own.
    pub(super) fn alone() -> Result<Self, ConfigError> {
        Ok(Self::new(&Dependencies::new(Policy::events().build()?)))
    }

    /// Counts the first attempt of an entry as an original, and charges the budget of its target for
    /// others. Returns how long an entry has to wait for the budget.
    pub(super) fn begin<H: Handler>(&self, handler: &H, entry: &Entry) -> Result<(), Duration> {
        if entry.is_past() {
            return Ok(());
        }
        let target = handler.target(entry);
        if entry.attempts <= 1 {
            // An entry that was given back before was counted already.
            if let Some(target) = target.filter(|_| entry.lease_token.get() == 1) {
                self.registry.get(&target).deposit();
            }
            return Ok(());
        }
        let limited = target.is_some();
        let dependency = self
            .registry
            .get(&target.unwrap_or(Cow::Borrowed(&entry.queue)));
        let limited = limited && dependency.charge_now().is_err();
        if limited && !self.probes(dependency.name()) {
            return Err(BUDGET_PAUSE.mul_f64(rand::random_range(0.5..1.5)));
        }
        let labels = handler.labels(entry);
        telemetry::retry(
            dependency.target(),
            entry.attempts - 1,
            labels.max_attempts.saturating_sub(1),
            waited(entry),
            entry.cause.as_deref().unwrap_or("failed"),
            || Labels {
                correlation_id: labels.correlation_id.as_deref(),
                idempotency_key: labels.idempotency_key.as_deref(),
            },
        );
        Ok(())
    }

    /// Returns whether a target that has used up its budget gets a retry all the same.
    fn probes(&self, target: &str) -> bool {
        let mut probed = self.probed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |at: &Instant| at.elapsed() < BUDGET_PAUSE;
        if probed.get(target).is_some_and(is_recent) {
            return false;
        }
        if probed.len() >= MAX_PROBES {
            probed.retain(|_, at| is_recent(at));
        }
        probed.insert(target.to_owned(), Instant::now());
        true
    }

    /// Records the end of an attempt: a success earns budget, and a failure may be that of the last
    /// attempt.
    pub(super) fn end<H: Handler>(&self, handler: &H, entry: &Entry, settlement: &Settlement) {
        match (settlement.outcome, handler.target(entry)) {
            (SettlementOutcome::Completed(_), Some(target)) => {
                return self.registry.get(&target).earn();
            }
            (SettlementOutcome::Failed(_), _) => {}
            _ => return,
        }
        let labels = handler.labels(entry);
        if labels.max_attempts > 0 && entry.attempts >= labels.max_attempts {
            let target = handler.target(entry);
            let dependency = self
                .registry
                .get(&target.unwrap_or(Cow::Borrowed(&entry.queue)));
            let cause = settlement.cause.as_deref().unwrap_or("failed");
            let exhausted = StopReason::Exhausted;
            telemetry::stop_reason(
                dependency.target(),
                entry.attempts,
                exhausted,
                cause,
                false,
                || Labels {
                    correlation_id: labels.correlation_id.as_deref(),
                    idempotency_key: labels.idempotency_key.as_deref(),
                },
            );
        }
    }
}

/// Returns the time since the attempt before, as it was settled.
fn waited(entry: &Entry) -> Duration {
    let mut events = entry.history.iter().rev();
    let last = events.find(|event| event.kind == EventKind::Settlement);
    last.map_or(Duration::ZERO, |last| entry.changed_at.since(last.at))
}
