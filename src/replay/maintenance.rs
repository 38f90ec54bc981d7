use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use super::pace::Pace;
use crate::delivery::worker::Wake;

/// A switch: while it is on, requests that can be replayed are journaled rather than served, and
/// nothing is replayed but what a person triggers.
///
/// It is this process's own. Processes that share a journal are switched one by one.
///
/// # Clone
///
/// Clones are the same switch.
#[derive(Clone)]
pub struct Maintenance {
    state: Arc<Mutex<Option<State>>>,
    pace: Arc<Pace>,
    wake: Wake,
}

#[derive(Debug, Clone)]
pub(super) struct State {
    until: Option<SystemTime>,
}

impl State {
    /// How long it will still take, as far as that was said.
    pub(super) fn left(&self) -> Option<Duration> {
        self.until?.duration_since(SystemTime::now()).ok()
    }
}

impl Maintenance {
    pub(super) fn new(pace: Arc<Pace>, wake: Wake) -> Self {
        Self {
            state: Arc::default(),
            pace,
            wake,
        }
    }

    /// Switches maintenance on, until somebody switches it off. Callers are told when that is
    /// expected, if it is known.
    pub fn on(&self, until: Option<SystemTime>) {
        *self.lock() = Some(State { until });
    }

    /// Switches maintenance off: requests are served again, and what was journaled is replayed,
    /// gently at first.
    pub fn off(&self) {
        *self.lock() = None;
        self.pace.restart();
        self.wake.wake();
    }

    /// Whether it is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.lock().is_some()
    }

    pub(super) fn state(&self) -> Option<State> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Maintenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Maintenance")
            .field("on", &self.is_on())
            .finish()
    }
}
