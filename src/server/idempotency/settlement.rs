use std::time::Duration;

use crate::{
    call::ReplayAttempt,
    store::{ClaimId, Stored},
};

/// The memory of one settlement or claim that waits for the store, next to its reply: a task with two
/// timers, and the state of a call to the store.
pub(super) const WAITING_COST: usize = 4096;

/// The end of an execution, for its record.
#[derive(Debug, Clone)]
pub(super) enum Settlement {
    Complete(Stored),
    /// It had no effect.
    Release,
    /// It may have had one, and is to be executed again.
    Orphan,
    /// A journal executes it again, under this id; duplicates wait for that long.
    Suspend(ClaimId, Duration),
}

impl Settlement {
    /// Returns how an execution without effect is settled: its key is free, unless an attempt before
    /// it in a replay may have had an effect.
    pub(super) fn unexecuted(orphaned: bool, resumes: Option<Resumes>) -> Self {
        match resumes.filter(|_| orphaned) {
            Some(Resumes { id, hold }) => Self::Suspend(id, hold),
            None => Self::Release,
        }
    }

    /// Returns the memory that it takes while it waits.
    pub(super) fn cost(&self) -> usize {
        match self {
            Self::Complete(Stored::Reply(reply)) => WAITING_COST.saturating_add(reply.len()),
            _ => WAITING_COST,
        }
    }

    pub(super) fn without_reply(self) -> Self {
        match self {
            Self::Complete(Stored::Reply(_)) => Self::Complete(Stored::NotRetained),
            other => other,
        }
    }
}

/// The suspended execution that an attempt resumes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resumes {
    pub(super) id: ClaimId,
    /// The time for which duplicates wait for the next attempt if this one is not executed.
    pub(super) hold: Duration,
}

impl Resumes {
    pub(super) fn of(attempt: &ReplayAttempt, lease: Duration) -> Option<Self> {
        Some(Self {
            id: ClaimId::new(attempt.resumes?),
            hold: attempt.hold.unwrap_or(lease),
        })
    }
}
