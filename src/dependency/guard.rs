use std::sync::Arc;

use tokio::time::Instant;

use super::{Dependency, breaker::Ticket};
use crate::{classify::Health, telemetry};

/// A retry that the budget granted. Dropped before it is sent, it is given back.
#[derive(Debug)]
pub(crate) struct Charge {
    dependency: Arc<Dependency>,
    /// What it takes to take it back, once it is sent.
    sent: Option<u64>,
}

impl Charge {
    pub(super) fn new(dependency: Arc<Dependency>) -> Self {
        Self {
            dependency,
            sent: None,
        }
    }

    /// The retry goes out now.
    pub(crate) fn send(&mut self) {
        if self.sent.is_none() {
            self.sent = Some(self.dependency.budget.commit(self.dependency.now()));
        }
    }

    /// The retry was refused on its way out.
    pub(crate) fn take_back(self) {
        if let Some(sent) = self.sent {
            self.dependency.budget.take_back(sent);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.sent.is_none() {
            self.dependency.budget.refund();
        }
    }
}

/// Leave to make one call. Dropped before the call's end is known, it says nothing about the
/// dependency, and a probe's place is free again, unless the call was given up for taking longer
/// than the policy allows: then the dependency hangs, which is a failure.
#[derive(Debug)]
pub(crate) struct Permit {
    dependency: Arc<Dependency>,
    ticket: Option<Ticket>,
    pending_since: Option<Instant>,
}

impl Permit {
    pub(super) fn new(dependency: Arc<Dependency>, ticket: Ticket) -> Self {
        Self {
            dependency,
            ticket: Some(ticket),
            pending_since: None,
        }
    }

    pub(crate) fn dependency(&self) -> &Dependency {
        &self.dependency
    }

    /// The call did not end at once.
    pub(crate) fn pending(&mut self) {
        self.pending_since.get_or_insert_with(Instant::now);
    }

    /// Takes in how the call ended.
    pub(crate) fn report(&mut self, health: Health) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        let dependency = &*self.dependency;
        let now = || dependency.now();
        let changed = dependency
            .breaker
            .report(ticket, health, now, || dependency.draw());
        if let Some(state) = changed {
            telemetry::breaker(dependency, state);
        }
    }

    fn is_overdue(&self) -> bool {
        let policy = self.dependency.policy();
        let limit = policy.attempt_timeout().unwrap_or(policy.total());
        self.pending_since
            .is_some_and(|since| since.elapsed() >= limit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            let overdue = self.is_overdue();
            self.report(if overdue {
                Health::Failure
            } else {
                Health::Neutral
            });
        }
    }
}
