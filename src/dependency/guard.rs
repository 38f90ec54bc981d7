use std::{cell::Cell, sync::Arc};

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
    /// With what it takes to take it back.
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

    /// The retry goes out now. Returns whether it still may.
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

    /// The retry was refused on its way out.
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
        let seen_at = self.pending_since.map(|since| dependency.at(since));
        let draw = || dependency.draw();
        let changed = dependency
            .breaker
            .report(ticket, health, seen_at, now, draw);
        if let Some(state) = changed {
            dependency.breaker_changed(state);
        }
    }

    fn is_overdue(&self) -> bool {
        let limit = self.dependency.longest_attempt();
        self.pending_since
            .is_some_and(|since| since.elapsed() >= limit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            let hangs = TIMED_OUT.get() || self.is_overdue();
            self.report(if hangs {
                Health::Failure
            } else {
                Health::Neutral
            });
        }
    }
}

thread_local! {
    static TIMED_OUT: Cell<bool> = const { Cell::new(false) };
}

/// Drops a call because its time is over, so that its [`Permit`], if it has one, knows why.
pub(crate) fn time_out<T>(drop: impl FnOnce() -> T) -> T {
    // Also when what is dropped panics: the thread has other calls to drop.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            TIMED_OUT.set(self.0);
        }
    }
    let _restore = Restore(TIMED_OUT.replace(true));
    drop()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cb_5_a_panic_while_a_call_is_dropped_says_nothing_of_the_next() {
        let panics = || time_out(|| panic!("in a destructor"));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(!TIMED_OUT.get());
    }
}
