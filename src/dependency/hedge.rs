use std::{sync::Arc, time::Duration};

use super::{Charge, Dependency, budget::Kind, latency::Latency};
use crate::telemetry::Unhedged;

impl Dependency {
    /// Returns the latencies of its attempts, if its policy hedges.
    #[inline]
    pub(crate) fn latency(&self) -> Option<&Latency> {
        self.latency.as_ref()
    }

    /// Records an attempt that was no hedge, with the time it was out unless it was ready at once.
    #[inline]
    pub(crate) fn record_latency(&self, took: Option<Duration>, answered: bool) {
        if let Some(latency) = &self.latency {
            latency.record(took, answered, || self.now());
        }
    }

    /// Returns why no hedge goes out now, whatever the call: the breaker is not closed, there are
    /// signs of overload, or the dependency asked to be left alone.
    pub(crate) fn forbids_hedges(&self) -> Option<Unhedged> {
        match self.hold() {
            Some(_) => Some(Unhedged::RetryAfter),
            None => self.breaker.forbids_hedges(),
        }
    }

    /// Charges the budget for a hedge that goes out now.
    pub(crate) fn charge_hedge(self: &Arc<Self>) -> Option<Charge> {
        let now = self.now();
        // A hedge goes out because its call is late.
        let tokens = self.budget.take_tokens(Kind::Timeout);
        let charge = tokens.and_then(|tokens| {
            let slot = self.budget.charge_hedge(now);
            if slot.is_none() {
                self.budget.give_tokens(tokens);
            }
            Some(Charge::of_hedge(Arc::clone(self), slot?, tokens))
        });
        self.report_budget(now, self.budget.usage(now));
        charge
    }
}
