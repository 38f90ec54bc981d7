use std::sync::Arc;

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
/// dependency, and a probe's place is free again.
#[derive(Debug)]
pub(crate) struct Permit {
    dependency: Arc<Dependency>,
    ticket: Option<Ticket>,
}

impl Permit {
    pub(super) fn new(dependency: Arc<Dependency>, ticket: Ticket) -> Self {
        Self {
            dependency,
            ticket: Some(ticket),
        }
    }

    pub(crate) fn dependency(&self) -> &Dependency {
        &self.dependency
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
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.report(Health::Neutral);
    }
}
