use std::sync::Arc;

use tokio::time::Instant;

use super::{Dependency, breaker::Ticket};
use crate::{call::Health, telemetry};

/// A retry that the budget granted. Dropped before it is sent, it is given back.
#[derive(Debug)]
pub(crate) struct Charge {
    dependency: Arc<Dependency>,
    state: ChargeState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChargeState {
    Granted,
    /// With the slot of the budget that it was counted in.
    Sent(u64),
    Void,
}

impl Charge {
    pub(super) fn new(dependency: Arc<Dependency>) -> Self {
        Self {
            dependency,
            state: ChargeState::Granted,
        }
    }

    /// Commits the charge of a retry that goes out now. Returns whether it still may.
    pub(crate) fn send(&mut self) -> bool {
        if self.state == ChargeState::Granted {
            let sent = self.dependency.budget.commit(self.dependency.now());
            self.state = sent.map_or(ChargeState::Void, ChargeState::Sent);
            if sent.is_none() {
                telemetry::suppressed(self.dependency.target());
            }
        }
        self.state != ChargeState::Void
    }

    /// Takes back the charge of a retry that a layer below refused.
    pub(crate) fn take_back(mut self) {
        if let ChargeState::Sent(sent) = self.state {
            self.dependency.budget.take_back(sent);
            self.state = ChargeState::Void;
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.state == ChargeState::Granted {
            self.dependency.budget.refund();
        }
    }
}

/// The right to make one call. Dropped before the result is known, it says nothing about the
/// dependency and frees a probe's place, unless the call was out for as long as it may be: then
/// the dependency hangs, which is a failure.
#[derive(Debug)]
#[must_use]
pub(crate) struct Permit {
    dependency: Arc<Dependency>,
    ticket: Option<Ticket>,
    pending_since: Option<Instant>,
    /// The end of the call's time, where that is not the limit of the policy.
    deadline: Option<Instant>,
}

impl Permit {
    pub(super) fn new(dependency: Arc<Dependency>, ticket: Ticket) -> Self {
        Self {
            dependency,
            ticket: Some(ticket),
            pending_since: None,
            deadline: None,
        }
    }

    /// Sets the time at which a layer above gives the call up.
    #[inline]
    pub(crate) fn until(mut self, deadline: Option<Instant>) -> Self {
        self.deadline = deadline;
        self
    }

    pub(crate) fn dependency(&self) -> &Arc<Dependency> {
        &self.dependency
    }

    /// Notes that the call is not ready at once.
    pub(crate) fn pending(&mut self) {
        self.pending_since.get_or_insert_with(Instant::now);
    }

    /// Reports the result of the call to the breaker.
    pub(crate) fn report(&mut self, health: Health) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        let dependency = &*self.dependency;
        let now = || dependency.now();
        let seen_at = self.pending_since.map(|since| dependency.at(since));
        let draw = || dependency.draw();
        let changed = dependency
            .breaker
            .report(ticket, health, seen_at, now, draw);
        if let Some(state) = changed {
            dependency.breaker_changed(state);
        }
    }

    /// Returns whether the call was out for as long as it may be, by the policy or by its own
    /// deadline.
    fn is_overdue(&self) -> bool {
        let Some(since) = self.pending_since else {
            return false;
        };
        let now = Instant::now();
        now.saturating_duration_since(since) >= self.dependency.longest_attempt()
            || self.deadline.is_some_and(|deadline| now >= deadline)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            let health = match self.is_overdue() {
                true => Health::Failure,
                false => Health::Neutral,
            };
            self.report(health);
        }
    }
}

#[cfg(all(test, not(reprise_loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        dependency::{BreakerState, Dependencies},
        policy::Policy,
    };

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn cb_1_cb_5_a_dropped_call_is_a_failure_only_if_it_was_out_for_all_of_its_time() {
        for (rule, polled, out, limit, opens) in [
            ("CB-5 cancelled", true, 1, None, false),
            ("CB-1 the policy's limit", true, 30, None, true),
            ("CB-1 the call's own limit", true, 1, Some(1), true),
            (
                "CB-5 cancelled before its own limit",
                true,
                1,
                Some(2),
                false,
            ),
            ("CB-5 never polled", false, 30, Some(1), false),
        ] {
            let policy = Policy::synchronous().consecutive_failures(1).build();
            let dependency = Dependencies::new(policy.expect("a policy")).get("a");
            let deadline = limit.map(|limit| Instant::now() + limit * SECOND);
            let mut permit = dependency.admit().expect("a permit").until(deadline);
            if polled {
                permit.pending();
            }
            tokio::time::advance(out * SECOND).await;
            drop(permit);
            let opened = dependency.status().breaker != BreakerState::Closed;
            assert_eq!(opened, opens, "{rule}");
        }
    }
}
