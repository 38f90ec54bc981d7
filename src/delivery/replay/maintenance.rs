use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use super::pace::Pace;
use crate::{delivery::worker::WorkerNotifier, http::problem::Problem};

/// A switch: while it is on, requests are journaled rather than served if they ask for it, and
/// refused with 503 and `Retry-After` if they do not, but for those that are
/// [served all the same](super::ReplayBuilder::served_in_maintenance): reads, unless told
/// otherwise. Nothing is replayed but what a person triggers.
///
/// It is this process's own. Processes that share a journal are switched one by one.
///
/// # Clone
///
/// Clones are the same switch.
#[derive(Clone)]
pub struct Maintenance {
    /// Whether there is a state: looked at for each request.
    on: Arc<AtomicBool>,
    state: Arc<Mutex<Option<State>>>,
    pace: Arc<Pace>,
    wake: WorkerNotifier,
}

#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) until: Option<SystemTime>,
    /// For people.
    pub(crate) reason: Option<String>,
}

impl State {
    /// How long it will still take, as far as that was said.
    pub(super) fn left(&self) -> Option<Duration> {
        self.until?.duration_since(SystemTime::now()).ok()
    }
}

impl Maintenance {
    pub(super) fn new(pace: Arc<Pace>, wake: WorkerNotifier) -> Self {
        Self {
            on: Arc::default(),
            state: Arc::default(),
            pace,
            wake,
        }
    }

    /// Switches maintenance on, until somebody switches it off. Callers are told when that is
    /// expected, if it is known.
    pub fn on(&self, until: Option<SystemTime>) {
        self.set(Some(State {
            until,
            reason: None,
        }));
    }

    /// The same, and tells callers why.
    pub fn announce(&self, reason: impl Into<String>, until: Option<SystemTime>) {
        let reason = Some(reason.into());
        self.set(Some(State { until, reason }));
    }

    /// Switches maintenance off: requests are served again, and what was journaled is replayed,
    /// gently at first.
    pub fn off(&self) {
        self.set(None);
        self.pace.restart();
        self.wake.wake();
    }

    /// Whether it is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    pub(super) fn state(&self) -> Option<State> {
        self.lock().clone()
    }

    /// What is told to whom it is closed.
    pub(super) fn problem(&self) -> Problem {
        let state = self.state();
        let left = state.as_ref().and_then(State::left);
        let problem = Problem::SERVER_MAINTENANCE.retry_after(left);
        match state.and_then(|state| state.reason) {
            Some(reason) => problem.detail(format!("The service is in maintenance: {reason}")),
            None => problem,
        }
    }

    fn set(&self, state: Option<State>) {
        let mut current = self.lock();
        self.on.store(state.is_some(), Ordering::Release);
        *current = state;
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
