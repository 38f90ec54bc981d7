use std::{fmt, sync::Arc, time::Duration};

use super::{BreakerReason, BreakerState};
use crate::call::{Cause, StopReason};

/// Something that happened to calls to a dependency, for a
/// [hook](super::DependenciesBuilder::on_event).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A retry goes out.
    #[non_exhaustive]
    Retry {
        /// The dependency.
        dependency: &'a str,
        /// The number of the retry; the first is 1.
        retry: u32,
        /// The wait before it.
        wait: Duration,
        /// The cause of the failure before it.
        cause: Cause,
    },
    /// A second attempt goes out for a call that was not answered.
    #[non_exhaustive]
    Hedge {
        /// The dependency.
        dependency: &'a str,
        /// The time that the first attempt is out.
        after: Duration,
    },
    /// A call failed and is not retried.
    #[non_exhaustive]
    GaveUp {
        /// The dependency.
        dependency: &'a str,
        /// The attempts that went out.
        attempts: u32,
        /// The reason why there are no more.
        reason: StopReason,
        /// The cause of the last failure.
        cause: Cause,
    },
    /// A breaker opened or closed.
    #[non_exhaustive]
    Breaker {
        /// The dependency.
        dependency: &'a str,
        /// Its new state.
        state: BreakerState,
        /// The reason of the change.
        reason: BreakerReason,
        /// The cause of the failure that opened it; `None` if it closed, or was opened by hand.
        cause: Option<Cause>,
    },
}

type OnEvent = dyn Fn(&Event<'_>) + Send + Sync;

/// The hook of a registry, if it has one.
#[derive(Clone, Default)]
pub(super) struct Hook(Option<Arc<OnEvent>>);

impl Hook {
    pub(super) fn new(hook: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    pub(super) fn call(&self, event: &Event<'_>) {
        if let Some(hook) = &self.0 {
            hook(event);
        }
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Hook" } else { "None" })
    }
}
