use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use super::slow_start::Paces;
use crate::{delivery::worker::WorkerNotifier, http::problem::Problem};

/// A switch: while it is on, requests are journaled rather than served if they ask for it, and
/// rejected with 503 and `Retry-After` if they do not, except those that are
/// [served all the same](super::ReplayBuilder::served_in_maintenance): reads, by default. Nothing
/// is replayed but what is triggered.
///
/// It is this process's own. Processes that share a journal are switched one by one.
///
/// # Clone
///
/// Clones are the same switch.
#[derive(Clone)]
pub struct Maintenance {
    /// Whether there is a state, without the lock: read for each request.
    on: Arc<AtomicBool>,
    state: Arc<Mutex<Option<MaintenanceState>>>,
    paces: Arc<Paces>,
    wake: WorkerNotifier,
}

#[derive(Debug, Clone)]
pub(crate) struct MaintenanceState {
    pub(crate) until: Option<SystemTime>,
    /// For people.
    pub(crate) reason: Option<String>,
}

impl MaintenanceState {
    /// Returns how long it will still take, if that was announced.
    pub(super) fn left(&self) -> Option<Duration> {
        self.until?.duration_since(SystemTime::now()).ok()
    }
}

impl Maintenance {
    pub(super) fn new(paces: Arc<Paces>, wake: WorkerNotifier) -> Self {
        Self {
            on: Arc::default(),
            state: Arc::default(),
            paces,
            wake,
        }
    }

    /// Switches maintenance on, until it is switched off. Callers are told when that is expected, if
    /// it is known.
    pub fn on(&self, until: Option<SystemTime>) {
        self.set(Some(MaintenanceState {
            until,
            reason: None,
        }));
    }

    /// The same, and tells callers why.
    pub fn announce(&self, reason: impl Into<String>, until: Option<SystemTime>) {
        let reason = Some(reason.into());
        self.set(Some(MaintenanceState { until, reason }));
    }

    /// Switches maintenance off: requests are served again, and what was journaled is replayed,
    /// gently at first.
    pub fn off(&self) {
        self.set(None);
        self.paces.restart();
        self.wake.wake();
    }

    /// Returns whether it is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    pub(super) fn state(&self) -> Option<MaintenanceState> {
        self.lock().clone()
    }

    /// Returns the answer to requests that are rejected during maintenance.
    pub(super) fn problem(&self) -> Problem {
        let state = self.state();
        let left = state.as_ref().and_then(MaintenanceState::left);
        let problem = Problem::SERVER_MAINTENANCE.retry_after(left);
        match state.and_then(|state| state.reason) {
            Some(reason) => problem.detail(format!("The service is in maintenance: {reason}")),
            None => problem,
        }
    }

    fn set(&self, state: Option<MaintenanceState>) {
        let mut current = self.lock();
        self.on.store(state.is_some(), Ordering::Release);
        *current = state;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<MaintenanceState>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

opaque_debug! { Maintenance, self, on = self.is_on() }
