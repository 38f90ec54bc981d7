use std::time::Duration;

use crate::call::Health;

/// The state of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerState {
    /// Calls pass.
    Closed,
    /// Calls are refused, but for a probe after this time or sooner.
    Open(Duration),
    /// A probe succeeded, and more calls pass with each moment.
    Recovering,
}

/// The reason of a breaker's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerReason {
    /// Too many failures in a row, with no success between them.
    Failures,
    /// Too large a share of failures in the window.
    FailureRate,
    /// The retry budget was used up while calls failed.
    BudgetExhausted,
    /// A probe succeeded.
    Probe,
    /// [`force_open`](crate::dependency::Dependency::force_open), [`force_closed`](crate::dependency::Dependency::force_closed)
    /// or [`reset`](crate::dependency::Dependency::reset) was called.
    ByHand,
}

impl BreakerReason {
    /// Returns a stable name, for logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failures => "failures",
            Self::FailureRate => "failure_rate",
            Self::BudgetExhausted => "budget_exhausted",
            Self::Probe => "probe",
            Self::ByHand => "by_hand",
        }
    }
}

/// A call that asks to be admitted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) now: u64,
    /// Drawn uniformly from [0, 1).
    pub(crate) uniform: f64,
    /// It is a retry.
    pub(crate) retry: bool,
}

/// A call that is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The breaker is open, for about this long.
    Open(Option<Duration>),
    /// The dependency shows signs of overload, and this call is one that is not sent to it.
    Overload,
}

/// The knowledge of a breaker since it refused a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Since {
    /// No probe has ended, and none is due.
    Nothing,
    /// A probe closed it, so long ago.
    Closed(Duration),
    /// All that the call could wait for.
    Known,
}

/// The result of a call, as far as it tells about the dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) health: Health,
    /// It is a sign of overload.
    pub(crate) overload: bool,
}

impl From<Health> for Report {
    fn from(health: Health) -> Self {
        Self {
            health,
            overload: false,
        }
    }
}

/// A change of a breaker's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) state: BreakerState,
    pub(crate) reason: BreakerReason,
}
